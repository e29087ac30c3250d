"""Run folders: the lock, evaluations, going back to a checkpoint."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym_rtmc.durable import append_line, replace_text
from agentgym_rtmc.episode_file import EpisodeWriter, read_episodes
from agentgym_rtmc.episodes import Episode, Opening
from agentgym_rtmc.errors import ConfigError, RunFolderError
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.run_folder import RunFolder


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    (tmp_path / "config.toml").touch()
    return RunFolder.reopen(tmp_path)


def episode(name: str) -> Episode:
    return Episode(id=name, group="g", opening=Opening(task=Task(id="t"), observation="o"))


def ids(path: Path) -> list[str]:
    return [one.id for one in read_episodes(path).episodes]


def test_one_process_at_a_time(folder: RunFolder) -> None:
    with folder, pytest.raises(RunFolderError, match="another process"):
        RunFolder.reopen(folder.path)
    RunFolder.reopen(folder.path).__exit__()


def test_the_kernel_frees_the_folder_of_a_killed_process(folder: RunFolder) -> None:
    folder.__exit__()
    code = (
        "import sys, pathlib, time; from agentgym_rtmc.trainer.run_folder import RunFolder;"
        "held = RunFolder.reopen(pathlib.Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(folder.path)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(RunFolderError):
            RunFolder.reopen(folder.path)
        other.send_signal(signal.SIGKILL)
        other.wait()
    with RunFolder.reopen(folder.path):
        pass


def test_a_folder_in_which_nothing_began_is_removed(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "runs", "x") as first, RunFolder.create(tmp_path / "runs", "x") as second:
        assert first.path != second.path and not first.resumable
        second.begun = True
    assert list((tmp_path / "runs").iterdir()) == [second.path]


def test_what_is_no_run_folder_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "0101-codes").mkdir()
    (tmp_path / "0101-codes" / "config.toml").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match=r"no run folder .*0101-code; did you mean '0101-codes'"):
        RunFolder.reopen(tmp_path / "0101-code")
    with pytest.raises(RunFolderError, match=r"it has no config\.toml"):
        RunFolder.reopen(tmp_path / "empty")
    with pytest.raises(ConfigError, match=r"set run\.folder"):
        RunFolder.create(tmp_path / "file", "x")
    assert list((tmp_path / "empty").iterdir()) == []


def test_evaluations_survive_a_cut_line(folder: RunFolder) -> None:
    for update in (0, 3, 6):
        folder.append_evaluation(update, {"pass_at_1": float("nan") if update else 0.5})
    with folder.evaluations.open("a") as file:
        file.write('{"update": 9, "pass')
    assert [row["update"] for row in folder.read_evaluations()] == [0, 3, 6]
    folder.rewind(3, 0)
    lines = folder.evaluations.read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"update": 0, "pass_at_1": 0.5}, {"update": 3, "pass_at_1": None}]


def test_episodes_after_the_checkpoint_are_set_aside(folder: RunFolder) -> None:
    with EpisodeWriter(folder.episodes) as writer:
        writer.append([episode("a"), episode("b")])
        kept = folder.episodes_bytes()
        writer.append([episode("c"), episode("d")])
    folder.result.touch()
    folder.rewind(0, kept)
    assert (ids(folder.episodes), ids(folder.superseded)) == (["a", "b"], ["c", "d"])
    assert not folder.result.exists()
    # Killed again, this time in the middle of a line.
    with EpisodeWriter(folder.episodes) as writer:
        writer.append([episode("e"), episode("f")])
    with folder.episodes.open("r+b") as file:
        file.truncate(folder.episodes_bytes() - 20)
    # ... and then while setting aside.
    with folder.superseded.open("ab") as file:
        file.write(b'{"id": "e", "gro')
    folder.rewind(0, kept)
    assert (ids(folder.episodes), ids(folder.superseded)) == (["a", "b"], ["c", "d", "e"])
    # Without a checkpoint everything is done again, and the header stays.
    folder.rewind(0, 0)
    assert (ids(folder.episodes), ids(folder.superseded)) == ([], ["c", "d", "e", "a", "b"])
    folder.rewind(0, 0)
    assert ids(folder.superseded) == ["c", "d", "e", "a", "b"]


def test_a_full_disk_is_a_clear_error_and_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    replace_text(path, "old")
    before, _ = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(RunFolderError, match=r"result\.json could not be written: File too large\. Make room"):
            replace_text(path, "x" * 2000)
        with pytest.raises(RunFolderError, match="log could not"):
            append_line(tmp_path / "log", "x" * 2000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir() if "result" in p.name] == ["result.json"]
