"""Snapshots as values, and the sandbox that lives on them."""

from __future__ import annotations

import stat
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_rtmc.environments.sandbox import git_index, tree
from agentgym_rtmc.environments.sandbox.base import (
    MIB,
    ExecResult,
    SandboxSpec,
    WorkspaceFileNotFoundError,
    WorkspacePathError,
)
from agentgym_rtmc.environments.sandbox.memo import Memo
from agentgym_rtmc.environments.sandbox.snapshot import EMPTY, Snapshot, SnapshotSandbox
from agentgym_rtmc.environments.sandbox.tree import Entry, make_entry
from agentgym_rtmc.environments.sandbox.workshop import Workshop

FILES = {"m.py": b"def f(a, b):\n    return a + b\n", "t.py": b"import m\nassert m.f(1, 2) == 3\n", "d/x": b""}


@pytest.fixture
def sandbox(isolation: str) -> SnapshotSandbox:
    """A sandbox with a committed repository and a memo of its own."""
    sandbox = SnapshotSandbox(SandboxSpec(isolation=isolation), Snapshot.of(FILES), memo=Memo())
    result = sandbox.exec(["sh", "-c", "git init -q . && git add -A && git commit -q -m start"], merge=True)
    assert result.code == 0, result
    return sandbox


def test_snapshots_are_values() -> None:
    one, two = Snapshot.of(FILES), Snapshot.of(dict(reversed(FILES.items())))
    assert one == two
    assert hash(one) == hash(two)
    assert one["d/x"] == (stat.S_IFREG | 0o644, b"")
    assert one["d"] == (stat.S_IFDIR | 0o755, b"")
    different = [
        one.with_file("m.py", b"other"),
        one.with_file("m.py", FILES["m.py"], 0o755),
        one.with_file("n.py", b""),
        Snapshot({path: entry for path, entry in one.entries.items() if path != "d/x"}),
    ]
    assert len({one.digest, *(snapshot.digest for snapshot in different)}) == 5
    assert one == two  # unchanged by all that


def test_snapshot_paths_are_checked() -> None:
    link = Snapshot({"l": make_entry(stat.S_IFLNK | 0o777, b"/etc"), "f": make_entry(stat.S_IFREG | 0o644, b"x")})
    for path in ("l/passwd", "f/x", "../x", "/"):
        with pytest.raises(WorkspacePathError):
            link.with_file(path, b"")
    with pytest.raises(WorkspacePathError):
        link.read("l")
    with pytest.raises(WorkspacePathError):
        link.read("l/passwd")
    with pytest.raises(WorkspaceFileNotFoundError):
        link.read("nothing")
    assert link.with_file("l", b"now a file").read("l") == b"now a file"


def test_git_checkout_brings_the_old_digest_back(sandbox: SnapshotSandbox) -> None:
    start = sandbox.snapshot
    for change in ("sed -i s/+/-/ m.py", "rm -r m.py d", "git status; git diff; git add -A", "chmod 755 m.py"):
        sandbox.exec(["sh", "-c", change])
        sandbox.exec(["git", "checkout", "-q", "."])
        assert sandbox.snapshot == start, change
    sandbox.exec(["sh", "-c", "echo y >> m.py; git add m.py"])
    assert sandbox.snapshot != start
    sandbox.exec(["sh", "-c", "git reset -q --hard; rm -f .git/ORIG_HEAD"])
    sandbox.exec(["sh", "-c", "git status"])
    staged = {path for path in sandbox.snapshot if path not in start}
    assert all(path.startswith(".git/objects/") for path in staged), staged


def test_git_never_mistakes_a_changed_file_for_a_clean_one(sandbox: SnapshotSandbox) -> None:
    """Same size, same time, another workspace: git must still see the change."""
    other = sandbox.snapshot.with_file("m.py", FILES["m.py"].replace(b"+", b"-"))
    for _ in range(3):
        sandbox.exec(["git", "status"])
        sandbox.restore(Snapshot({**sandbox.snapshot.entries, "m.py": other.entries["m.py"]}))
        assert " M m.py" in sandbox.exec(["git", "status", "--short"]).stdout
        sandbox.exec(["git", "checkout", "-q", "."])
        assert sandbox.exec(["git", "status", "--short"]).stdout == ""


def test_memo_answers_known_commands_with_their_files(sandbox: SnapshotSandbox) -> None:
    start = sandbox.snapshot
    command = ["sh", "-c", "echo z >> m.py; date +%N; echo err >&2; exit 4"]
    first = sandbox.exec(command)
    after = sandbox.snapshot
    hits = sandbox.hits
    sandbox.restore(start)
    assert sandbox.exec(command) == first
    assert (sandbox.snapshot, sandbox.hits) == (after, hits + 1)
    assert sandbox.exec(command) != first  # other files: another command
    for same_files_other_command in (
        {"argv": command, "timeout": 3.0},
        {"argv": command, "stdin": b""},
        {"argv": command, "merge": True},
        {"argv": [*command, "x"]},
    ):
        sandbox.restore(start)
        sandbox.exec(**same_files_other_command)  # type: ignore[arg-type]
        assert sandbox.hits == hits + 1, same_files_other_command


def test_memo_refers_to_no_file(isolation: str) -> None:
    sandbox = SnapshotSandbox(SandboxSpec(isolation=isolation, output_bytes=300), memo=Memo())
    first, second = sandbox.exec(["seq", "1000"]), sandbox.exec(["seq", "1000"])
    assert sandbox.hits == 1
    assert first.kept is not None
    assert second.kept is None
    assert first == second
    sandbox.close()


def test_memo_can_be_switched_off(isolation: str) -> None:
    sandbox = SnapshotSandbox(SandboxSpec(isolation=isolation), memo=False)
    outputs = {sandbox.exec(["date", "+%s%N"]).stdout for _ in range(3)}
    assert (len(outputs), sandbox.hits, sandbox.misses) == (3, 0, 3)


def test_killed_commands_are_not_remembered_but_their_files_are_kept(sandbox: SnapshotSandbox) -> None:
    start = sandbox.snapshot
    command = ["sh", "-c", "echo done > half; sleep 20"]
    for _ in range(2):
        sandbox.restore(start)
        hits = sandbox.hits
        assert sandbox.exec(command, timeout=0.3).timed_out
        assert sandbox.hits == hits
        assert sandbox.read("half") == b"done\n"


def test_files_past_the_limits_are_refused_as_a_whole(isolation: str) -> None:
    spec = SandboxSpec(isolation=isolation, disk_bytes=2 * MIB, disk_files=30)
    sandbox = SnapshotSandbox(spec, Snapshot.of(FILES), memo=False)
    start = sandbox.snapshot
    for script in (
        "rm m.py; head -c 3000000 /dev/zero > big",
        "rm m.py; for i in $(seq 60); do : > $i; done",
        "rm m.py; d=d; for i in $(seq 80); do mkdir $d; d=$d/d; done",
    ):
        result = sandbox.exec(["sh", "-c", script])
        assert result.out_of_disk
        assert "back as it was" in result.note
        assert sandbox.snapshot == start
        assert sandbox.exec(["ls"]).stdout == "d\nm.py\nt.py\n"


def test_listings_do_not_depend_on_the_day(sandbox: SnapshotSandbox) -> None:
    sandbox.exec(["sh", "-c", "echo new > n"])
    lines = sandbox.exec(["ls", "-lR"]).stdout.splitlines()
    assert {" ".join(line.split()[5:8]) for line in lines if line.startswith(("-", "d"))} == {"Jan 1 2020"}


def test_sockets_are_dropped_and_told(isolation: str) -> None:
    sandbox = SnapshotSandbox(SandboxSpec(isolation=isolation), memo=False)
    result = sandbox.exec(["python", "-c", "import socket; socket.socket(socket.AF_UNIX).bind('s')"])
    assert result.note == "1 sockets or devices in the workspace were not kept"
    assert sandbox.exec(["ls"]).stdout == ""


def test_workspaces_are_reused_and_always_hold_what_they_should(isolation: str) -> None:
    shop = Workshop(max_idle=2)
    spec = SandboxSpec(isolation=isolation)
    sandboxes = [
        SnapshotSandbox(spec, Snapshot.of({"n": str(n).encode(), f"only-{n}/x": b""}), memo=False, shop=shop)
        for n in range(4)
    ]
    wrong: list[str] = []

    def work(number: int) -> None:
        for round_ in range(4):
            found = sandboxes[number].exec(["sh", "-c", "cat n; ls; echo more >> n; rm -rf only-*"]).stdout
            expected = str(number) + "more\n" * round_ + ("n\n" if round_ else f"n\nonly-{number}\n")
            if found != expected:
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(shop._idle) == 2
    shop.close()


MODES = st.sampled_from([0o644, 0o755, 0o600, 0o000, 0o444])
NAMES = st.sampled_from(["a", "b", "c.py", "-x", "ü"])


@st.composite
def trees(draw: st.DrawFn) -> dict[str, Entry]:
    """Random workspaces in which names change their kind a lot."""
    entries: dict[str, Entry] = {}
    places = [""]
    for _ in range(draw(st.integers(0, 12))):
        path = draw(st.sampled_from(places)) + draw(NAMES)
        if path in entries:
            continue
        kind = draw(st.sampled_from([stat.S_IFREG, stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK, stat.S_IFIFO]))
        if kind == stat.S_IFDIR:
            places.append(path + "/")
        mode = 0o777 if kind == stat.S_IFLNK else draw(MODES)
        data = draw(st.binary(min_size=1, max_size=20)).replace(b"\0", b"x")
        entries[path] = make_entry(kind | mode, data if kind in (stat.S_IFREG, stat.S_IFLNK) else b"")
    return entries


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(trees(), min_size=1, max_size=4))
def test_writing_a_tree_over_another_gives_exactly_that_tree(steps: list[dict[str, Entry]]) -> None:
    current: dict[str, Entry] = {}
    with tempfile.TemporaryDirectory() as folder:
        for target in steps:
            tree.write(Path(folder), current, target)
            assert tree.read(Path(folder)).entries == target
            current = target


def test_index_meaning_ignores_the_disk_only() -> None:
    def index(mtime: int, object_id: bytes, extension: bytes = b"") -> bytes:
        entry = mtime.to_bytes(4, "big") * 4 + bytes(8) + (0o100644).to_bytes(4, "big") + mtime.to_bytes(4, "big") * 3
        entry += object_id + (4).to_bytes(2, "big") + b"m.py" + b"\0" * 6
        return b"DIRC" + (2).to_bytes(4, "big") + (1).to_bytes(4, "big") + entry + extension + bytes(20)

    cache, other = b"TREE" + (2).to_bytes(4, "big") + b"xx", b"REUC" + (2).to_bytes(4, "big") + b"xx"
    same = {git_index.meaning(index(time, b"1" * 20, extension)) for time in (1, 2) for extension in (b"", cache)}
    assert len(same) == 1
    assert git_index.meaning(index(1, b"2" * 20)) not in same
    assert git_index.meaning(index(1, b"1" * 20, other)) not in same
    for odd in (b"", b"DIRC", index(1, b"1" * 20)[:-30], b"DIRC\0\0\0\4" + bytes(40)):
        assert git_index.meaning(odd) == odd


def test_large_indexes_are_not_kept() -> None:
    before = git_index._remembered.cache_info().currsize
    huge = b"DIRC" + bytes(2 << 20)
    assert git_index.meaning(huge) == huge
    assert git_index._remembered.cache_info().currsize == before


def test_memo_is_bounded() -> None:
    memo = Memo(max_entries=3)
    answer = ExecResult(stdout="x" * 100, stderr="", code=0)
    for number in range(5):
        memo.put(number, answer, EMPTY, EMPTY)
    assert (len(memo), memo.get(0), memo.get(4) is not None) == (3, None, True)
    assert (memo.hits, memo.misses) == (1, 1)
    small = Memo(max_bytes=5000)
    for number in range(10):
        small.put(number, answer, EMPTY, Snapshot.of({"f": b"x" * 1000}))
    assert len(small) == 2
    small.put(99, answer, EMPTY, Snapshot.of({"f": b"x" * 10_000}))
    assert len(small) == 0
