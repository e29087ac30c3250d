"""`episodes.jsonl`: what was appended is there after any crash, and nothing is dropped in silence."""

import logging
import resource
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgym_rtmc import Call, Episode, Opening, Task, Turn
from agentgym_rtmc.episode_file import EpisodeReader, EpisodeWriter, read_episodes
from agentgym_rtmc.errors import EpisodeFileError


def episode(number: int, text: str = "ls é\n") -> Episode:
    turn = Turn(
        text=text,
        calls=(Call(name="shell", arguments={"command": text}),),
        observation="a\u2028b\r\n",
        reward=0.1,
        info={"files": {"a.py": None}},
        context_ids=(1, 2),
        token_ids=(3,),
        logprobs=(-0.1234567890123,),
    )
    opening = Opening(task=Task(id="t", public={"n": number}), observation="go", seed=number)
    return Episode(id=f"e{number}", group="g", opening=opening, turns=(turn, turn), terminated=True)


def write(path: Path, *numbers: int) -> None:
    with EpisodeWriter(path) as writer:
        for number in numbers:
            writer.append([episode(number)])


def ids(path: Path, strict: bool = True) -> list[str]:
    return [one.id for one in read_episodes(path, strict=strict).episodes]


def test_what_is_written_is_read_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "episodes.jsonl"
    with EpisodeWriter(path) as writer:
        writer.append([])
        writer.append([episode(0), episode(1)])
        assert ids(path) == ["e0", "e1"]
        writer.append([episode(2)])
    write(path, 3)
    result = read_episodes(path)
    assert result.episodes == [episode(i) for i in range(4)]
    assert result.skipped == []
    assert result.report == ""
    assert path.read_text().splitlines()[0] == '{"format": "agentgym-rtmc episodes", "version": 1}'
    assert path.read_bytes().count(b"\n") == 5
    assert [entry.name for entry in path.parent.iterdir()] == ["episodes.jsonl"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(text=st.text(st.characters(exclude_categories=())), reward=st.floats(allow_nan=False, allow_infinity=False))
def test_any_episode_survives(tmp_path: Path, text: str, reward: float) -> None:
    turn = Turn(text=text, observation=text, reward=reward, token_ids=(1,), logprobs=(reward,))
    one = Episode(id="e", group=text, opening=Opening(task=Task(id="t"), observation=text), turns=(turn,))
    path = tmp_path / "episodes.jsonl"
    path.unlink(missing_ok=True)
    with EpisodeWriter(path) as writer:
        writer.append([one])
    assert read_episodes(path).episodes == [one]


def test_a_cut_at_any_byte_costs_only_the_episode_it_hits(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "episodes.jsonl"
    write(path, 0, 1)
    whole = path.read_bytes()
    header = whole.index(b"\n") + 1
    first = whole.index(b"\n", header) + 1
    for size in range(header, len(whole), 17):
        path.write_bytes(whole[:size])
        caplog.clear()
        before = read_episodes(path)
        complete = (size >= first - 1) + (size >= len(whole) - 1)
        torn = size not in (header, first) and size != len(whole) - 1
        assert len(before.episodes) == complete
        assert [one.cut for one in before.skipped] == [True] * torn
        assert ("cut off by a crash" in caplog.text) is torn
        write(path, 2)
        after = read_episodes(path)
        assert after.episodes == [*before.episodes, episode(2)]
        assert [one.line for one in after.skipped] == [one.line for one in before.skipped]
        assert after.report.startswith("skipped 1 line cut off by a crash (line ") is torn


def test_two_crashes_in_a_row(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    write(path, 0, 1)
    path.write_bytes(path.read_bytes()[:-20])
    write(path, 2)
    # The second crash cuts the note that the first one had led to.
    content = path.read_bytes()
    path.write_bytes(content[: content.index(b'{"note"') + 9])
    assert [one.cut for one in read_episodes(path, strict=False).skipped] == [False, True]
    write(path, 3)
    result = read_episodes(path)
    assert [one.id for one in result.episodes] == ["e0", "e3"]
    assert [(one.line, one.cut) for one in result.skipped] == [(3, True), (4, True)]


def test_a_broken_middle_line_is_named_or_skipped_on_request(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    write(path, 0, 1, 2)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b'{"id": "x"}\n', b"\xff\n", lines[3]]))
    with pytest.raises(EpisodeFileError, match=r"episodes\.jsonl, line 3: not an episode: group: Field required"):
        read_episodes(path)
    result = read_episodes(path, strict=False)
    assert [one.id for one in result.episodes] == ["e0", "e2"]
    assert [(one.line, one.cut) for one in result.skipped] == [(3, False), (4, False)]
    assert result.report == "skipped 2 lines corrupt (line 3, 4)"


def test_a_broken_last_line_with_its_newline_was_not_cut(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    write(path, 0)
    path.write_bytes(path.read_bytes() + b"{}\n")
    with pytest.raises(EpisodeFileError, match="line 3"):
        read_episodes(path)
    assert ids(path, strict=False) == ["e0"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is not an episode file: it is empty"),
        (b"hello\n", "does not begin with the header"),
        (b"[" * 9000, "does not begin with the header"),
        (b'{"id": "e1"}\n', "does not begin with the header"),
        (b'{"format": "notes", "version": 1}\n', "is not an episode file but 'notes'"),
        (b'{"format": "agentgym-rtmc episodes", "version": 9}\n', "has version 9 of the format, this program reads"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "episodes.jsonl"
    path.write_bytes(content)
    with pytest.raises(EpisodeFileError, match=complaint):
        read_episodes(path)
    if content:
        with pytest.raises(EpisodeFileError, match=complaint):
            EpisodeWriter(path)
        assert path.read_bytes() == content


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(EpisodeFileError, match=r"none\.jsonl: cannot be read: No such file"):
        read_episodes(tmp_path / "none.jsonl")
    with pytest.raises(EpisodeFileError, match="cannot be read: Is a directory"):
        read_episodes(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(EpisodeFileError, match="cannot be written"):
        EpisodeWriter(tmp_path / "file" / "episodes.jsonl")


def test_an_empty_file_becomes_an_episode_file(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    path.touch()
    write(path, 0)
    assert ids(path) == ["e0"]


def test_reading_is_lazy_and_repeatable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "episodes.jsonl"
    write(path, 0, 1)
    with path.open("ab") as file:
        file.write(b"broken\n")
    reader = EpisodeReader(path)
    episodes = iter(reader)
    assert [next(episodes).id, next(episodes).id] == ["e0", "e1"]
    with pytest.raises(EpisodeFileError):
        next(episodes)
    reader.strict = False
    with caplog.at_level(logging.WARNING):
        assert [len(list(reader)), len(list(reader))] == [2, 2]
    assert len(reader.skipped) == 1


def test_a_full_disk_costs_the_batch_and_no_more(tmp_path: Path) -> None:
    """The child may write files of 4 kB at most: the batch that does not fit fails, the file stays whole."""
    path = tmp_path / "episodes.jsonl"
    script = textwrap.dedent("""
        import resource, signal, sys
        from agentgym_rtmc import Episode, Opening, Task
        from agentgym_rtmc.episode_file import EpisodeWriter
        from agentgym_rtmc.errors import EpisodeFileError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        opening = Opening(task=Task(id="t"), observation="o" * 1000)
        with EpisodeWriter(sys.argv[1]) as writer:
            resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
            kept = 0
            try:
                for n in range(9):
                    writer.append([Episode(id=f"e{n}", group="g", opening=opening)])
                    kept += 1
            except EpisodeFileError as error:
                print(kept, error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            writer.append([Episode(id="later", group="g", opening=opening)])
    """)
    if resource.getrlimit(resource.RLIMIT_FSIZE)[1] != resource.RLIM_INFINITY:
        pytest.skip("this machine limits the size of files")
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, timeout=60, check=True)
    assert "cannot be written: File too large" in done.stdout
    kept = int(done.stdout.split()[0])
    result = read_episodes(path)
    assert [one.id for one in result.episodes] == [*(f"e{n}" for n in range(kept)), "later"]
    assert len(result.skipped) == 1


def test_kill_9_loses_nothing_that_append_returned_for(tmp_path: Path) -> None:
    path = tmp_path / "episodes.jsonl"
    script = textwrap.dedent("""
        import sys
        from agentgym_rtmc import Episode, Opening, Task
        from agentgym_rtmc.episode_file import EpisodeWriter
        opening = Opening(task=Task(id="t"), observation="o" * 200_000)
        writer = EpisodeWriter(sys.argv[1])
        for n in range(int(sys.argv[2]), 100_000):
            writer.append([Episode(id=f"{n}-{half}", group="g", opening=opening) for half in "ab"])
            print(n, flush=True)
    """)
    acknowledged: list[int] = []
    for round_ in range(3):
        first = 1000 * round_
        child = subprocess.Popen([sys.executable, "-c", script, path, str(first)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        try:
            acknowledged.append(int(child.stdout.readline()))
            time.sleep(0.05 * round_)
        finally:
            child.kill()
            rest = child.stdout.read()
            child.stdout.close()
            child.wait()
        # The last line of a killed process may be cut as well.
        acknowledged += [int(line) for line in rest.splitlines(keepends=True) if line.endswith("\n")]
        result = read_episodes(path)
        found = {one.id for one in result.episodes}
        assert found >= {f"{n}-{half}" for n in acknowledged for half in "ab"}
        assert len(result.skipped) <= round_ + 1
    write(path, 7)
    assert read_episodes(path).episodes[-1].id == "e7"
