"""What every sandbox promises, on every back end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from agentgym_rtmc.environments.sandbox.base import (
    ExecResult,
    Sandbox,
    WorkspaceFileNotFoundError,
    WorkspacePathError,
)
from agentgym_rtmc.errors import SandboxError

MakeSandbox = Callable[..., Sandbox]


def test_streams_code_and_defaults(sandbox: Sandbox) -> None:
    result = sandbox.exec(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert result == ExecResult(stdout="out\n", stderr="err\n", code=3)


def test_merged_streams_keep_their_order(sandbox: Sandbox) -> None:
    result = sandbox.exec(["sh", "-c", "echo 1; echo 2 >&2; echo 3"], merge=True)
    assert (result.stdout, result.stderr) == ("1\n2\n3\n", "")


def test_surroundings_are_the_sandbox_s_own(sandbox: Sandbox) -> None:
    script = "pwd; whoami; id -u; hostname 2>/dev/null || cat /etc/hostname; echo $HOME; tty; ls -A"
    result = sandbox.exec(["bash", "-c", script])
    assert result.stdout == "/workspace\nagent\n65534\nsandbox\n/tmp\nnot a tty\n"


def test_environment_is_added(make: MakeSandbox) -> None:
    sandbox = make(env={"COLOUR": "blue = sky", "PYTHONHASHSEED": "7"})
    assert sandbox.exec(["sh", "-c", "echo $COLOUR $PYTHONHASHSEED"]).stdout == "blue = sky 7\n"


def test_stdin(sandbox: Sandbox) -> None:
    text = b"a line\n" * 30_000
    assert sandbox.exec(["wc", "-c"], stdin=text).stdout == f"{len(text)}\n"
    assert sandbox.exec(["cat"]).stdout == ""
    assert sandbox.exec(["true"], stdin=text).code == 0  # nobody reads it


def test_unicode_and_broken_bytes_are_decoded_once(sandbox: Sandbox) -> None:
    assert sandbox.exec(["printf", "%s", "żółw 🐢"]).stdout == "żółw 🐢"
    assert sandbox.exec(["printf", r"a\377b"]).stdout == "a�b"
    assert sandbox.exec(["printf", "%s", "lone \ud800 surrogate"]).stdout == "lone ? surrogate"


@pytest.mark.parametrize(
    ("argv", "code"), [(["no-such-program"], 127), (["/etc/passwd"], 126), (["sh", "-c", "kill -9 $$"], 137)]
)
def test_exit_codes(sandbox: Sandbox, argv: list[str], code: int) -> None:
    result = sandbox.exec(argv)
    assert (result.code, result.note) == (code, "")
    assert sandbox.exec(["true"]).code == 0


def test_unusable_commands_are_answers_not_errors(sandbox: Sandbox) -> None:
    assert sandbox.exec(["echo", "a\0b"]).code == 126
    assert sandbox.exec(["echo", "x" * 1_000_000]).code == 126
    for wrong in ([], "ls"):
        with pytest.raises(ValueError, match="list of strings"):
            sandbox.exec(wrong)


@pytest.mark.parametrize("timeout", [float("nan"), float("inf")])
def test_a_timeout_that_is_none_is_refused(sandbox: Sandbox, timeout: float) -> None:
    with pytest.raises(ValueError, match="number of seconds"):
        sandbox.exec(["true"], timeout=timeout)
    assert sandbox.exec(["sleep", "60"], timeout=-1).timed_out


def test_output_is_cut_in_the_middle_and_says_so(make: MakeSandbox) -> None:
    result = make(output_bytes=1000).exec(["seq", "1", "5000"])
    assert result.truncated
    assert result.stdout.startswith("1\n2\n")
    assert result.stdout.endswith("4999\n5000\n")
    left_out = 23893 - 1000
    assert f"\n[... {left_out} bytes left out ...]\n" in result.stdout
    assert len(result.stdout) < 1100


def test_timeout_kills_the_whole_tree_and_the_sandbox_goes_on(sandbox: Sandbox) -> None:
    script = (
        "import os, time\nprint('begun', flush=True)\nos.fork()\nos.setsid() if os.fork() == 0 else 0\ntime.sleep(60)"
    )
    begun = time.monotonic()
    result = sandbox.exec(["python", "-c", script], timeout=0.5)
    assert time.monotonic() - begun < 30  # it waits for nobody who sleeps; how soon it ends is the benchmark's
    assert (result.timed_out, result.code, result.stdout) == (True, 137, "begun\n")
    assert result.note == "killed: it ran longer than 0.5 s"
    assert sandbox.exec(["echo", "still here"]).stdout == "still here\n"


def test_background_processes_end_with_the_command_even_if_they_hold_its_streams(sandbox: Sandbox) -> None:
    begun = time.monotonic()
    script = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)\nprint('parent done')"
    result = sandbox.exec(["python", "-c", script])
    assert (result.stdout, result.code, result.timed_out) == ("parent done\n", 0, False)
    assert time.monotonic() - begun < 30
    assert "sleep" not in sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/comm"]).stdout.replace("sh", "")


def test_files_persist_and_tmp_does_not(sandbox: Sandbox) -> None:
    sandbox.exec(["sh", "-c", "mkdir -p d && echo kept > d/f && chmod 750 d/f && ln -s f d/link && echo gone > /tmp/x"])
    assert sandbox.exec(["sh", "-c", "cat d/link; stat -c %a d/f; readlink d/link; ls /tmp"]).stdout == "kept\n750\nf\n"
    assert sandbox.read("d/f") == b"kept\n"


def test_write_then_run_then_read(sandbox: Sandbox) -> None:
    sandbox.write("bin/hello", b"#!/bin/sh\necho hello > said\n", mode=0o755)
    assert sandbox.exec(["bin/hello"]).code == 0
    assert sandbox.read("/workspace/said") == b"hello\n"
    sandbox.write("said", b"")
    assert sandbox.exec(["cat", "said"]).stdout == ""
    assert sandbox.exec(["sh", "-c", "echo more >> said; rm bin/hello"]).code == 0
    assert sandbox.read("said") == b"more\n"


def test_read_refuses_what_is_no_plain_file(sandbox: Sandbox) -> None:
    sandbox.exec(["sh", "-c", "mkdir d; mkfifo pipe; ln -s /etc/passwd link; ln -s /etc up; ln -s d/../x loop"])
    with pytest.raises(WorkspaceFileNotFoundError):
        sandbox.read("nothing")
    for path in (
        "d",
        "pipe",
        "link",
        "up/passwd",
        "../etc/passwd",
        "/etc/passwd",
        "d/../link",
        "",
        ".",
        "a\0b",
        "loop",
    ):
        with pytest.raises(WorkspacePathError):
            sandbox.read(path)


def test_write_never_goes_through_a_link(sandbox: Sandbox) -> None:
    sandbox.exec(["sh", "-c", "ln -s /tmp out; ln -s /etc/passwd link; echo one > a; ln a b; touch file; mkdir d"])
    for path in ("out/x", "file/x", "../x", "/tmp/x", "d"):
        with pytest.raises(WorkspacePathError):
            sandbox.write(path, b"x")
    sandbox.write("link", b"plain now\n")
    sandbox.write("a", b"two\n")
    assert (
        sandbox.exec(["sh", "-c", "cat link a b; test -L link || echo no link"]).stdout
        == "plain now\ntwo\none\nno link\n"
    )


def test_fork_is_independent_in_both_directions(sandbox: Sandbox) -> None:
    sandbox.exec(["sh", "-c", "echo shared > f; mkdir -m 700 d; ln -s f l; echo x > d/x; chmod 640 d/x"])
    with sandbox.fork() as child:
        assert child.exec(["sh", "-c", "cat l d/x; stat -c %a d d/x"]).stdout == "shared\nx\n700\n640\n"
        child.exec(["sh", "-c", "echo child > f; rm -r d"])
        sandbox.exec(["sh", "-c", "echo parent > f"])
        assert (child.read("f"), sandbox.read("f")) == (b"child\n", b"parent\n")
        assert sandbox.read("d/x") == b"x\n"
    assert sandbox.exec(["cat", "f"]).stdout == "parent\n"


def test_closed_sandboxes_say_so(make: MakeSandbox) -> None:
    sandbox = make()
    sandbox.close()
    sandbox.close()
    for use in (
        lambda: sandbox.exec(["true"]),
        lambda: sandbox.read("f"),
        lambda: sandbox.write("f", b""),
        sandbox.fork,
    ):
        with pytest.raises(SandboxError, match="closed"):
            use()


def test_tools_work(sandbox: Sandbox) -> None:
    script = """
set -e
git init -q . && echo 'x = 1' > m.py && git add -A && git commit -q -m start
sed -i 's/1/2/' m.py && git diff --stat && git stash -q && cat m.py && git stash pop -q && git diff > p
git checkout -q . && git apply p && git log --oneline | wc -l && git status --short
awk '{print $3}' m.py; find . -name '*.py' | xargs grep -n x; diff m.py p > /dev/null || echo differ
python3 -c 'import ssl, sqlite3, json, decimal, ctypes, zlib, lzma, bz2, unittest; print(1 + 1)'
"""
    result = sandbox.exec(["bash", "-c", script], merge=True)
    assert result.code == 0, result.stdout
    expected = ["1 file changed", "x = 1", "1\n", " M m.py", "?? p", "\n2\n", "1:x = 2", "differ"]
    assert all(part in result.stdout for part in expected), result.stdout


def test_pytest_works_where_it_is_installed(sandbox: Sandbox) -> None:
    sandbox.write("test_x.py", b"def test_one():\n    assert 1 + 1 == 2\n\ndef test_two():\n    assert [1] == [2]\n")
    result = sandbox.exec(["pytest", "-q"], merge=True)
    if result.code == 127:
        pytest.skip("pytest is not installed beside this program")
    assert "1 failed, 1 passed" in result.stdout
    assert sandbox.exec(["ls", "-A"]).stdout == "test_x.py\n"


def test_git_can_be_configured(sandbox: Sandbox) -> None:
    assert sandbox.exec(["git", "config", "--global", "user.name", "Somebody"]).code == 0


def test_python_is_quick_to_start_and_clean(sandbox: Sandbox) -> None:
    script = "import sys; print([m for m in sys.modules if 'agentgym' in m or 'pip' in m], sys.prefix)"
    assert sandbox.exec(["python", "-c", script]).stdout in ("[] /usr/local\n", "[] /usr\n")
    sandbox.write("m.py", b"x = 1\n")
    assert sandbox.exec(["sh", "-c", "python -c 'import m' && ls"]).stdout == "m.py\n"  # leaves no __pycache__


def test_many_at_once(make: MakeSandbox) -> None:
    sandboxes = [make() for _ in range(8)]
    results: dict[int, list[str]] = {}

    def work(number: int) -> None:
        sandbox = sandboxes[number]
        sandbox.write("n", str(number).encode())
        results[number] = [sandbox.exec(["sh", "-c", "echo x >> n; head -c 1 n"]).stdout for _ in range(5)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: [str(number)] * 5 for number in range(8)}


def test_output_that_was_cut_is_kept_whole_until_the_sandbox_is_closed(make: MakeSandbox) -> None:
    sandbox = make(output_bytes=1000)
    result = sandbox.exec(["sh", "-c", "seq 1 5000; echo warning >&2"])
    whole = "".join(f"{number}\n" for number in range(1, 5001))
    assert result.kept is not None
    assert (result.kept / "stdout").read_text() == whole
    assert (result.kept / "stderr").read_text() == "warning\n"
    merged = sandbox.exec(["sh", "-c", "seq 1 5000; echo warning >&2"], merge=True)
    assert merged.kept is not None
    assert [(path.name, path.read_text()) for path in merged.kept.iterdir()] == [("stdout", whole + "warning\n")]
    assert sandbox.exec(["seq", "1", "100"]).kept is None
    sandbox.close()
    assert not result.kept.exists()
    assert not merged.kept.exists()


def test_kept_output_is_bounded(make: MakeSandbox) -> None:
    sandbox = make(output_bytes=1000, kept_output_bytes=5000)
    results = [sandbox.exec(["seq", str(number), "9999"]) for number in range(12)]
    kept = [result.kept for result in results if result.kept and result.kept.exists()]
    assert kept
    assert kept[-1] == results[-1].kept
    assert {(folder / "stdout").stat().st_size for folder in kept} == {5000}
    assert sum(path.stat().st_size for folder in kept for path in folder.iterdir()) <= 8 * 5000
    assert make(output_bytes=1000, kept_output_bytes=0).exec(["seq", "5000"]).kept is None
