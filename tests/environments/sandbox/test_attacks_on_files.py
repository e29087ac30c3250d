"""Attacks through files and leftovers: what the two kinds of sandbox have to bear each in its own way."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable
from pathlib import Path

from agentgym_rtmc.environments.sandbox.base import MIB, ExecResult, Sandbox, WorkspacePathError

MakeSandbox = Callable[..., Sandbox]


def test_disk_fill(make: MakeSandbox) -> None:
    sandbox = make(disk_bytes=8 * MIB, file_bytes=4 * MIB)
    script = "i=0; while true; do i=$((i+1)); head -c 1000000 /dev/zero > f$i || exit 9; done"
    result = sandbox.exec(["sh", "-c", script], timeout=20)
    assert (result.out_of_disk, result.timed_out) == (True, False), result
    assert "disk limit of 8 MiB" in result.note
    killed = result.code == 137  # where a watchdog and not the kernel holds the limit
    assert killed or (result.code == 9 and "No space left on device" in result.stderr)
    assert sandbox.exec(["sh", "-c", "rm -f f*; ls"]).stdout == ""


def test_one_large_file(make: MakeSandbox) -> None:
    result = make(file_bytes=MIB).exec(["sh", "-c", "head -c 100000000 /dev/zero > big; stat -c %s big"])
    assert result.stdout == f"{MIB}\n"
    sparse = make(file_bytes=MIB).exec(["truncate", "-s", "1T", "big"])
    assert sparse.code != 0


def test_100_000_small_files(make: MakeSandbox) -> None:
    sandbox = make(disk_files=500)
    result = sandbox.exec(["python", "-c", "for i in range(100_000): open(str(i), 'w').close()"], timeout=20)
    assert result.out_of_disk
    assert "500 files" in result.note


def test_endless_folders(make: MakeSandbox) -> None:
    sandbox = make()
    script = "import os\nfor i in range(20_000):\n    os.mkdir('d'); os.chdir('d')"
    result = sandbox.exec(["python", "-c", script], timeout=20)
    assert result.out_of_disk, result
    assert "nested too deep" in result.note or "limit of 10000 files" in result.note
    assert sandbox.exec(["true"]).code == 0


def test_paths_longer_than_the_kernel_takes(make: MakeSandbox) -> None:
    """Made step by step, of characters that are several bytes each. It must not look like a failing machine."""
    sandbox = make()
    script = (
        "import os\nfor i in range(30):\n    os.mkdir('\U00010348' * 60); os.chdir('\U00010348' * 60)\nopen('x', 'w')"
    )
    sandbox.exec(["python", "-c", script])
    with contextlib.suppress(WorkspacePathError), sandbox.fork() as child:
        child.write("f", b"x")
        assert child.exec(["ls", "f"]).stdout == "f\n"
    assert sandbox.exec(["sh", "-c", "rm -rf *; ls"]) == ExecResult("", "", 0)


def test_closed_folders_hide_nothing(make: MakeSandbox) -> None:
    sandbox = make(disk_bytes=4 * MIB)
    script = "mkdir d; for i in 1 2 3 4 5 6 7 8; do head -c 1000000 /dev/zero > d/$i; done; chmod 000 d .; sleep 0.2"
    assert sandbox.exec(["sh", "-c", script], timeout=20).out_of_disk
    assert sandbox.exec(["true"]).code == 0


def test_background_processes_do_not_outlive(sandbox: Sandbox) -> None:
    mark = f"mark-{uuid.uuid4()}"
    script = f"import os, time\nfor _ in range(5):\n    if os.fork() == 0: os.setsid(); time.sleep(60)  # {mark}"
    for _ in range(5):
        assert sandbox.exec(["python", "-c", script]).code == 0
        assert processes_with(mark) == []
    assert sandbox.exec(["python", "-c", f"{script}\ntime.sleep(60)"], timeout=0.5).timed_out
    assert processes_with(mark) == []


def test_odd_names_and_kinds(sandbox: Sandbox) -> None:
    script = (
        "import os, socket\n"
        "for name in [b'\\xff\\xfe', b'new\\nline', b'-rf', b'$(reboot)', b' ', '🐢'.encode(), b'x' * 255]:\n"
        "    open(name, 'w').write('x')\n"
        "os.mkfifo('pipe'); os.symlink('/proc/self/root', 'escape'); os.symlink('loop', 'loop')\n"
        "try: socket.socket(socket.AF_UNIX).bind('socket')\n"
        "except PermissionError: pass\n"
    )
    assert sandbox.exec(["python", "-c", script]).code == 0
    with sandbox.fork() as child:
        count = "import os, stat; print(sum(not stat.S_ISSOCK(os.lstat(name).st_mode) for name in os.listdir(b'.')))"
        assert child.exec(["python", "-c", count]).stdout == "10\n"


def processes_with(mark: str) -> list[int]:
    """Processes of this machine with `mark` in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found
