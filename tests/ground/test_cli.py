"""The command line: light help, one clear line for what went wrong, and quiet ends."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from agentgym_rtmc import __version__
from agentgym_rtmc.cli import COMMANDS, main
from agentgym_rtmc.doctor import register_checks, run_checks


def run(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agentgym_rtmc", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env={**os.environ, **environment},
        check=False,
    )


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for room, commands in COMMANDS.items():
        assert f"{room}:" in shown
        for name, (_, text) in commands.items():
            assert f"  {name} " in shown
            assert text in shown
    assert main([]) == 2
    assert capsys.readouterr().out == shown


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"agentgym-rtmc {__version__}\n"


def test_help_loads_no_room() -> None:
    script = """
        import sys
        from agentgym_rtmc.cli import main
        main(["--help"])
        heavy = {"torch", "transformers", "typer", "rich", "libcst", "tree_sitter"} & set(sys.modules)
        rooms = [name for name in sys.modules if name.startswith("agentgym_rtmc.") and name.count(".") > 1]
        print(sorted(heavy), sorted(rooms), file=sys.stderr)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=True
    )
    heavy, _, rooms = done.stderr.strip().partition("] [")
    assert heavy == "["
    assert "environments" not in rooms
    assert "trainer" not in rooms
    assert "signatures" not in rooms


def test_help_is_fast() -> None:
    """Within 2.5 times what importing Gymnasium takes, in CPU time: other programs may be running."""

    def cpu_seconds(*command: str) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *command], capture_output=True, timeout=60, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    pairs = [(cpu_seconds("-m", "agentgym_rtmc", "--help"), cpu_seconds("-c", "import gymnasium")) for _ in range(3)]
    ours, gymnasiums = (min(times) for times in zip(*pairs, strict=True))
    assert ours < 2.5 * gymnasiums


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["trian"], "error: there is no command 'trian'; did you mean 'train'?"),
        (["xyz"], "error: there is no command 'xyz'; known: audit, "),
        (["--jsn", "envs"], "error: there is no option '--jsn' before the command; see agentgym-rtmc --help"),
        (["play", "CodeRepare-v0"], "error: no environment 'CodeRepare-v0' is registered; did you mean"),
        (["play", "no_such_module:x/Y-v0"], "cannot import 'no_such_module'; is it installed and on the path?"),
        (["envs", "--import", "no_such_module"], "cannot import 'no_such_module'"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["play", "--debug", "Nothing-v0"]) == 2
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("AGENTGYM_RTMC_DEBUG", "1")
    assert main(["play", "Nothing-v0"]) == 2
    assert "Traceback" in capsys.readouterr().err
    monkeypatch.setenv("AGENTGYM_RTMC_DEBUG", "0")
    assert main(["play", "Nothing-v0"]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_wrong_arguments_of_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "--jsn"]) == 2
    assert "--json" in capsys.readouterr().err
    assert main(["play"]) == 2
    assert main(["envs", "--help"]) == 0


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    for room in COMMANDS.values():
        for name in room:
            assert main([name, "--help"]) == 0, name
            assert f"agentgym-rtmc {name}" in capsys.readouterr().out


def test_a_target_may_be_an_app_with_commands_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent / "modules")
    monkeypatch.setitem(COMMANDS, "Test", {"fruit": ("fruit_app:app", "about fruit")})
    assert main(["fruit", "count", "--kind", "pear"]) == 0
    assert capsys.readouterr().out == "3 pear\n"
    assert main(["fruit", "--help"]) == 0
    assert "agentgym-rtmc fruit" in capsys.readouterr().out
    assert main(["fruit", "peel"]) == 2
    assert capsys.readouterr().err == "error: pears cannot be peeled\n"
    assert main(["fruit", "leave"]) == 5


def test_envs_as_json_without_torch() -> None:
    script = """
        import sys
        sys.modules["torch"] = sys.modules["transformers"] = None
        from agentgym_rtmc.cli import main
        sys.exit(main(["envs", "--json"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=True
    )
    (entry,) = [one for one in json.loads(done.stdout) if one["id"] == "agentgym_rtmc/CodeRepair-v0"]
    assert entry["task_sets"] == ["builtin", "humanevalpack", "quixbugs"]
    assert entry["default_signature"] == "operations"


def test_a_missing_package_names_the_extra() -> None:
    script = """
        import sys
        sys.modules["torch"] = None
        from agentgym_rtmc.cli import main
        sys.exit(main(["late"]) if main(["early"]) == 2 else 1)
    """
    prepare = """
        from agentgym_rtmc import cli
        cli.COMMANDS["Test"] = {"early": ("needs_torch:run", ""), "late": ("needs_torch_later:run", "")}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(prepare) + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent / "modules")},
    )
    assert done.returncode == 2
    assert done.stderr == "error: this needs torch, which is not installed: pip install 'agentgym-rtmc[train]'\n" * 2


def test_an_interruption_is_130_and_a_word(tmp_path: Path) -> None:
    (tmp_path / "sleepy.py").write_text("print('asleep', flush=True)\nimport time\ntime.sleep(60)\n")
    for where in ("module", "command"):
        if where == "command":
            (tmp_path / "sleepy.py").write_text(
                "import agentgym_rtmc.registration, time\n"
                "def load(): print('asleep', flush=True); time.sleep(60)\n"
                "agentgym_rtmc.register_env('test/S-v0', 'sleepy:E', task_sets={'all': 'sleepy:load'})\n"
            )
        child = subprocess.Popen(
            [sys.executable, "-m", "agentgym_rtmc", "play", "sleepy:test/S-v0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "asleep\n"
        child.send_signal(signal.SIGINT)
        _, complaint = child.communicate(timeout=60)
        assert (child.returncode, complaint) == (130, "interrupted\n"), where


def test_a_broken_pipe_is_quiet() -> None:
    for command in (["--help"], ["envs", "--json"], ["envs"], ["envs", "--help"]):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [sys.executable, "-m", "agentgym_rtmc", *command],
            stdout=write,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
        os.close(write)
        assert done.stderr == b""
        assert done.returncode in (1, 141)


def test_doctor_as_json_and_as_a_table() -> None:
    done = run("doctor", "--json")
    found = json.loads(done.stdout)
    names = {one["check"] for one in found["checks"]}
    assert names >= {"python", "core packages", "extra train", "extra vllm", "disk", "memory", "cache folder", "torch"}
    assert found["missing"] == sum(one["status"] == "missing" for one in found["checks"])
    assert done.returncode == (1 if found["missing"] else 0)
    assert all(one["fix"] for one in found["checks"] if one["status"] == "missing")


def test_doctor_finds_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    script = """
        import sys
        sys.modules["torch"] = None
        from agentgym_rtmc.cli import main
        sys.exit(main(["doctor"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "XDG_CACHE_HOME": "/proc/1/none"},
    )
    assert done.returncode == 1
    assert "/proc/1/none/agentgym-rtmc cannot be written" in done.stdout
    assert "not installed: credit, environments and signatures work" in done.stdout
    assert re.search(r"^[1-9] missing$", done.stdout, re.MULTILINE)


def test_a_check_that_fails_is_a_finding_and_keeps_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent / "modules")
    monkeypatch.setattr("agentgym_rtmc.doctor._CHECKERS", {})
    register_checks("good", "sick_checks:half")
    register_checks("gone", "no_such_module:checks")
    found = run_checks()
    assert [(one.name, one.status) for one in found["good"]] == [("first", "ok"), ("good", "missing")]
    assert found["good"][1].detail == "the check itself failed: RuntimeError: ill"
    assert "cannot import 'no_such_module'" in found["gone"][0].detail
