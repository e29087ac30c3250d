"""What counts as done: kinds of changes, damage, and files made to confuse the judge."""

import base64
import gzip
import io
import stat
import tarfile

import pytest

from agentgym_rtmc.environments.sandbox.snapshot import Snapshot
from agentgym_rtmc.environments.sandbox.tree import make_entry
from agentgym_rtmc.environments.terminal import archives
from agentgym_rtmc.environments.terminal.files import changed_files, read_files
from agentgym_rtmc.environments.terminal.judging import judge, same_json
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.tasks import Task


def verdict(make_task, changes, files):
    """Judge `files` as the end of a job on the usual files."""
    task = make_task(changes)
    start = read_files(task.public["files"], "x")
    return judge(task, start, read_files(files, "x"))


@pytest.fixture
def files(make_task):
    return make_task().public["files"]


@pytest.mark.parametrize(
    ("wanted", "text", "right"),
    [
        ({"number": 3}, "3\n", True),
        ({"number": 3}, "  3.0", True),
        ({"number": 3}, "3 files", False),
        ({"number": 3}, "", False),
        ({"number": 3}, "3\n3", False),
        ({"number": 3}, "nan", False),
        ({"number": 2.5}, "2.504", True),
        ({"line": "a b"}, "a b\n", True),
        ({"line": "sub/x"}, "./sub/x\n", True),
        ({"line": "a b"}, "a  b", False),
        ({"set": ["b", "a"]}, "a\nb\n", True),
        ({"set": ["a", "a"]}, "a\n", False),
        ({"set": ["a"]}, "./a\n\n", True),
        ({"lines": ["b", "a"]}, "a\nb\n", False),
        ({"lines": ["b", "a"]}, "b\na", True),
        ({"json": {"a": [1, True]}}, '{ "a" : [1.0, true] }', True),
        ({"json": {"a": [1, True]}}, '{"a": [1, 1]}', False),
        ({"json": 1}, "[" * 100_000, False),
        ("exact\n", "exact", True),
        ("exact\n", "exact \n", False),
    ],
)
def test_answers_by_value(make_task, files, wanted, text, right):
    found = verdict(make_task, {"answer.txt": wanted}, {**files, "answer.txt": text})
    assert (found.solved, found.progress) == (right, float(right))


def test_an_answer_is_a_plain_file(make_task, files):
    for spec in (
        {"folder": True},
        {"link": "a.md"},
        {"base64": base64.b64encode(b"\xff\xfe3").decode()},
        "3" * 300_000,
    ):
        assert not verdict(make_task, {"answer.txt": {"number": 3}}, {**files, "answer.txt": spec}).solved
    assert not verdict(make_task, {"answer.txt": {"number": 3}}, files).solved


def test_modes_count_where_they_are_asked_for(make_task, files):
    wanted = {"keep.txt": {"text": "stay\n", "mode": 0o600}}
    assert not verdict(make_task, wanted, files).solved
    assert verdict(make_task, wanted, {**files, "keep.txt": {"text": "stay\n", "mode": 0o600}}).solved
    assert verdict(make_task, {"keep.txt": "new"}, {**files, "keep.txt": {"text": "new", "mode": 0o640}}).solved


def test_links_and_folders(make_task, files):
    wanted = {"l": {"link": "sub/c.md"}, "empty": {"folder": True}}
    assert verdict(make_task, wanted, {**files, "l": {"link": "sub/c.md"}, "empty": {"folder": True}}).solved
    half = verdict(make_task, wanted, {**files, "l": {"link": "sub/x"}, "empty": {"folder": True}})
    assert (half.right, half.wanted, half.solved) == (1, 2, False)


@pytest.mark.parametrize(
    ("change", "damaged"),
    [
        ({"keep.txt": None}, ("keep.txt",)),
        ({"keep.txt": "other"}, ("keep.txt",)),
        ({"keep.txt": {"text": "stay\n", "mode": 0o777}}, ("keep.txt",)),
        ({"run.sh": "x\n"}, ("run.sh",)),
        ({"new": "x"}, ("new",)),
        ({"new/x": "x"}, ("new", "new/x")),
        ({"keep.txt": {"link": "a.txt"}}, ("keep.txt",)),
    ],
)
def test_all_else_must_stay(make_task, files, change, damaged):
    done = {**files, "answer.txt": "3", "a.txt": "one\n"}
    del done["a.md"]
    assert verdict(make_task, None, done).solved
    merged = {path: spec for path, spec in {**done, **change}.items() if spec is not None}
    found = verdict(make_task, None, merged)
    assert (found.right, found.damaged, found.solved) == (3, damaged, False)
    assert found.progress == pytest.approx((3 - len(damaged)) / 3)


def test_folders_on_the_way_are_no_damage(make_task, files):
    wanted = {"x/y/z.md": "text"}
    assert verdict(make_task, wanted, {**files, "x/y/z.md": "text"}).solved
    assert verdict(make_task, wanted, {**files, "x/y/other.md": "text"}).damaged == ("x/y/other.md",)
    closed = {**files, "x": {"folder": True, "mode": 0o700}, "x/y/z.md": "text"}
    assert verdict(make_task, wanted, closed).solved


def test_archives_are_compared_by_their_files():
    files = {"a b.md": "x\n", "d/e.md": ""}
    for compressed in (True, False):
        assert archives.read_archive(archives.write_archive(files, compressed)) == {"a b.md": b"x\n", "d/e.md": b""}
    assert archives.write_archive(files) == archives.write_archive(dict(reversed(files.items())))


def hostile_tar(*members):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            archive.addfile(member)
    return made.getvalue()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x1f\x8b",
        b"\x1f\x8b" + b"x" * 100,
        b"plain text" * 100,
        gzip.compress(b"\0" * (archives.MAX_BYTES + 1)),
        gzip.compress(archives.write_archive({"a": "b"}))[:-20],
        b"\0" * 512 * 100_000,
        hostile_tar(("self", tarfile.LNKTYPE, "self")),
        hostile_tar(("x", tarfile.SYMTYPE, "/etc/passwd"), ("../../up", tarfile.REGTYPE, "")),
        hostile_tar(*((f"f{i}", tarfile.REGTYPE, "") for i in range(archives.MAX_MEMBERS + 5))),
    ],
    ids=range(10),
)
def test_hostile_archives_are_wrong_and_nothing_more(make_task, files, data):
    spec = {"base64": base64.b64encode(data).decode()}
    found = verdict(make_task, {"x.tar.gz": {"archive": {"a.md": "one\n"}}}, {**files, "x.tar.gz": spec})
    assert not found.solved


def test_archive_of_links_holds_no_files_of_the_host():
    found = archives.read_archive(hostile_tar(("passwd", tarfile.SYMTYPE, "/etc/passwd")))
    assert found == {"passwd": b"(not a plain file)"}


def test_odd_kinds_are_damage(make_task, files):
    task = make_task()
    start = read_files(task.public["files"], "x")
    now = Snapshot({**start.entries, "pipe": make_entry(stat.S_IFIFO | 0o644)})
    assert judge(task, start, now).damaged == ("pipe",)
    assert set(changed_files(start, now)) == {"pipe"}


def test_digests_tell_modes_and_kinds_apart(files):
    start = read_files(files, "x")
    digests = {
        changed_files(start, read_files({**files, "keep.txt": spec}, "x"))["keep.txt"]
        for spec in ({"text": "stay\n", "mode": 0o600}, {"text": "stay\n", "mode": 0o755}, {"link": "stay\n"}, "stay")
    }
    assert len(digests) == 4
    assert changed_files(start, read_files({**files, "sub/c.md": "new"}, "x")).keys() == {"sub/c.md"}


@pytest.mark.parametrize(
    "files",
    [None, {}, {"/a": "x"}, {"a/../b": "x"}, {"a": 3}, {"a": {"text": "x", "mode": 4095}}, {"a": "x", "a/b": "y"}],
)
def test_broken_files_are_refused(files):
    with pytest.raises(TaskError):
        read_files(files, "x")


def test_a_task_that_expects_nothing_is_refused(files):
    start = read_files(files, "x")
    with pytest.raises(TaskError, match="'changes'"):
        judge(Task(id="x"), start, start)
    with pytest.raises(TaskError, match="nothing known"):
        judge(Task(id="x", private={"changes": {"keep.txt": {"number_of": 3}}}), start, start)


def test_json_values():
    assert same_json({"a": None}, {"a": None}) and not same_json([1], [1, 2]) and not same_json({"a": 1}, [1])
