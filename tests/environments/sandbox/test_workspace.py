"""Workspaces on the host: limits held by the kernel, forks that share nothing, nothing left mounted."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentgym_rtmc.environments.sandbox import folders, layers, mounts
from agentgym_rtmc.environments.sandbox.base import AGENT_UID, MIB, SandboxSpec, WorkspacePathError
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.environments.sandbox.workspace import (
    MAX_DEPTH,
    FolderWorkspace,
    OverlayWorkspace,
    Workspace,
    new_workspace,
)
from agentgym_rtmc.errors import SandboxBusyError, SandboxError

SPEC = SandboxSpec(disk_bytes=4 * MIB, disk_files=100)
Place = Callable[[], Path]


@pytest.fixture
def place() -> Iterator[Place]:
    """Makes empty folders in the run folder. Afterwards nothing may be mounted any more that was not before."""
    before = mounts.below(folders.run_folder()) if not layers.why_not() else []
    made: list[Path] = []

    def build() -> Path:
        made.append(folders.new_folder("place"))
        return made[-1]

    yield build
    assert mounts.below(folders.run_folder()) == before
    for folder in made:
        folders.remove_tree(folder)
        assert not folder.exists()


@pytest.fixture
def overlays() -> None:
    """Skips where this process cannot mount."""
    reason = layers.why_not()
    if reason:
        pytest.skip(f"no layered workspaces here: {reason}")


@pytest.fixture(params=["overlay", "copy"])
def make(request: pytest.FixtureRequest, place: Place) -> Iterator[Callable[..., Workspace]]:
    """Makes workspaces of both kinds; all that are made or forked are closed at the end."""
    if request.param == "overlay":
        request.getfixturevalue("overlays")
    with contextlib.ExitStack() as stack:

        def build(base: Path | None = None, spec: SandboxSpec = SPEC) -> Workspace:
            kind = OverlayWorkspace.new if request.param == "overlay" else FolderWorkspace
            workspace = kind(spec, place(), base)
            stack.callback(workspace.close)
            return workspace

        yield build


def files(workspace: Workspace) -> dict[str, str]:
    """Every plain file's text."""
    return {
        str(path.relative_to(workspace.path)): path.read_text() for path in workspace.path.rglob("*") if path.is_file()
    }


def test_forks_are_independent_in_both_directions(make: Callable[..., Workspace], place: Place) -> None:
    parent = make()
    (parent.path / "d").mkdir()
    (parent.path / "d/f").write_text("start")
    (parent.path / "gone").write_text("x")
    child = parent.fork(place())
    grandchild = child.fork(place())
    (parent.path / "d/f").write_text("parent")
    (child.path / "d/f").write_text("child")
    (child.path / "gone").unlink()
    (child.path / "d").rename(child.path / "renamed")
    assert files(parent) == {"d/f": "parent", "gone": "x"}
    assert files(child) == {"renamed/f": "child"}
    assert files(grandchild) == {"d/f": "start", "gone": "x"}
    second = child.fork(place())
    (second.path / "renamed/f").write_text("second")
    parent.close()
    assert (files(child), files(second)) == ({"renamed/f": "child"}, {"renamed/f": "second"})
    child.close()
    assert files(second) == {"renamed/f": "second"}
    second.close()
    grandchild.close()


def test_a_fork_keeps_modes_owners_links_and_times(make: Callable[..., Workspace], place: Place) -> None:
    parent = make()
    (parent.path / "f").write_text("x")
    (parent.path / "f").chmod(0o640)
    (parent.path / "l").symlink_to("/etc/passwd")
    os.mkfifo(parent.path / "p")
    (parent.path / "closed").mkdir(mode=0o500)
    for path in parent.path.iterdir() if os.geteuid() == 0 else ():
        os.chown(path, AGENT_UID, AGENT_UID, follow_symlinks=False)
    with contextlib.closing(parent.fork(place())) as child:
        for name in ("f", "l", "p", "closed", "."):
            one, two = (workspace.path.joinpath(name).lstat() for workspace in (parent, child))
            assert (one.st_mode, one.st_uid, one.st_mtime_ns) == (two.st_mode, two.st_uid, two.st_mtime_ns), name
        assert child.path.joinpath("l").readlink() == Path("/etc/passwd")


def test_a_base_is_shown_and_never_changed(make: Callable[..., Workspace], place: Place, tmp_path: Path) -> None:
    (tmp_path / "f").write_text("base")
    (tmp_path / "old").write_text("old")
    parent = make(base=tmp_path)
    assert files(parent) == {"f": "base", "old": "old"}
    with contextlib.closing(parent.fork(place())) as child:
        (parent.path / "f").write_text("parent")
        (child.path / "old").unlink()
        assert files(child) == {"f": "base"}
        with contextlib.closing(child.fork(place())) as grandchild:
            assert files(grandchild) == {"f": "base"}
    assert sorted(os.listdir(tmp_path)) == ["f", "old"]  # noqa: PTH208
    assert (tmp_path / "f").read_text() == "base"


def test_a_removed_workspace_takes_nothing_of_the_base_with_it(place: Place, tmp_path: Path, overlays: None) -> None:
    """Even where a mount of the base itself is left in a folder that is removed."""
    (tmp_path / "f").write_text("base")
    folder = place()
    (folder / "below").mkdir()
    mounts.bind(tmp_path, folder / "below")
    folders.remove_tree(folder)
    assert not folder.exists()
    assert (tmp_path / "f").read_text() == "base"


def test_the_kernel_holds_the_limits(place: Place, overlays: None) -> None:
    workspace = OverlayWorkspace.new(SPEC, place())
    meter = workspace.meter()
    with pytest.raises(OSError, match="No space left") as caught:
        (workspace.path / "big").write_bytes(b"x" * 5 * MIB)
    assert caught.value.errno == errno.ENOSPC
    assert (meter.look(), meter.end()) == (None, "full-disk")
    (workspace.path / "big").unlink()
    assert workspace.meter().end() is None
    with pytest.raises(OSError, match="No space left"):
        for number in range(200):
            (workspace.path / str(number)).touch()
    assert 99 <= len(os.listdir(workspace.path)) <= 101  # noqa: PTH208
    assert workspace.meter().end() == "full-files"
    workspace.close()


def test_a_fork_has_the_room_that_its_files_leave(place: Place, overlays: None) -> None:
    parent = OverlayWorkspace.new(SPEC, place())
    (parent.path / "one").write_bytes(b"x" * MIB)
    child = parent.fork(place())
    for workspace in (parent, child):
        (workspace.path / "two").write_bytes(b"x" * 2 * MIB)
        with pytest.raises(OSError, match="No space left"):
            (workspace.path / "three").write_bytes(b"x" * 3 * MIB)
        (workspace.path / "three").unlink()
    # Fuller than half: a copy, so that what is there can still be changed in its place.
    grandchild = child.fork(place())
    for workspace in (child, grandchild):
        with (workspace.path / "two").open("r+b") as file:
            file.write(b"y" * 2 * MIB)
    for workspace in (parent, child, grandchild):
        workspace.close()


def test_what_was_overwritten_gives_its_room_back(place: Place, overlays: None) -> None:
    workspace = OverlayWorkspace.new(SPEC, place())
    for round_ in range(12):
        (workspace.path / "f").write_bytes(bytes([round_]) * MIB)
        workspace.fork(place()).close()
    assert (workspace.path / "f").read_bytes() == bytes([11]) * MIB
    workspace.close()


def test_an_open_writer_refuses_the_fork_and_keeps_working(place: Place, overlays: None) -> None:
    parent = OverlayWorkspace.new(SPEC, place())
    for round_ in range(2):  # plain, then layered
        with (parent.path / "f").open("w") as writer:
            writer.write("one ")
            writer.flush()
            with pytest.raises(SandboxBusyError, match="open for writing"):
                parent.fork(place())
            writer.write("two")
        assert files(parent)["f"] == "one two"
        with (parent.path / "f").open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 3)
        with pytest.raises(SandboxBusyError):
            parent.fork(place())
        mapped[:3] = b"map"
        mapped.close()
        with (parent.path / "f").open() as reader, contextlib.closing(parent.fork(place())) as child:
            (parent.path / "f").write_text("parent")
            (child.path / "f").write_text("child")
            assert reader.read() == "map two", round_  # what was there when it was opened
            assert (files(parent)["f"], files(child)["f"]) == ("parent", "child")
    parent.close()


def test_an_unlinked_open_file_refuses_the_fork_too(place: Place, overlays: None) -> None:
    parent = OverlayWorkspace.new(SPEC, place())
    (parent.path / "f").write_text("x")
    with (parent.path / "f").open("a"):
        (parent.path / "f").unlink()
        with pytest.raises(SandboxBusyError):
            parent.fork(place())
    parent.fork(place()).close()
    parent.close()


def test_many_forks_of_one_prepared_state_stay_shallow(place: Place, overlays: None) -> None:
    prepared = OverlayWorkspace.new(SPEC, place())
    (prepared.path / "f").write_text("prepared")
    forks = [prepared.fork(place()) for _ in range(3 * MAX_DEPTH)]
    assert {len(fork._stack.frozen) for fork in (prepared, *forks)} == {1}
    forks[0].path.joinpath("f").write_text("changed")
    assert [files(fork)["f"] for fork in (prepared, *forks)] == ["prepared", "changed"] + ["prepared"] * 23
    for workspace in (prepared, *forks):
        workspace.close()


def test_deep_chains_are_flattened(place: Place, overlays: None, tmp_path: Path) -> None:
    (tmp_path / "base").write_text("base")
    (tmp_path / "gone").write_text("base")
    workspace = OverlayWorkspace.new(SPEC, place(), tmp_path)
    (workspace.path / "gone").unlink()
    old = []
    for depth in range(3 * MAX_DEPTH):
        (workspace.path / f"f{depth}").write_text(str(depth))
        old.append(workspace)
        workspace = workspace.fork(place())
        assert len(workspace._stack.frozen) <= MAX_DEPTH
        assert files(workspace) == {"base": "base"} | {f"f{n}": str(n) for n in range(depth + 1)}
    assert files(old[3]) == {"base": "base"} | {f"f{n}": str(n) for n in range(4)}
    for each in (*old, workspace):
        each.close()


def test_what_cannot_be_copied_is_the_agent_s_doing(place: Place, overlays: None) -> None:
    workspace = OverlayWorkspace.new(SandboxSpec(disk_bytes=4 * MIB, disk_files=2500), place())
    (workspace.path / "f").write_bytes(b"x" * 3 * MIB)
    script = "import os\nfor i in range(100):\n    os.mkdir('d' * 200); os.chdir('d' * 200)"
    subprocess.run([sys.executable, "-c", script], cwd=workspace.path, check=True)
    at = place()
    with pytest.raises(WorkspacePathError, match="cannot be copied"):
        workspace.fork(at)
    (workspace.path / "f").write_text("still writable")
    workspace.close()


def test_a_refused_mount_leaves_the_parent_as_it_was(place: Place, overlays: None) -> None:
    parent = OverlayWorkspace.new(SPEC, place())
    (parent.path / "f").write_text("x")
    with pytest.raises(OSError, match="No such file"):
        parent.fork(place() / "missing")
    (parent.path / "f").write_text("y")
    with contextlib.closing(parent.fork(place())) as child:
        assert files(child) == {"f": "y"}
    parent.close()


def test_workspaces_are_plain_folders_for_ordinary_users(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert new_workspace(SPEC, place()).how == "copy"
    with pytest.raises(SandboxError, match="only root"):
        OverlayWorkspace.new(SPEC, place())


def test_odd_names_of_the_temporary_folder(overlays: None, tmp_path: Path) -> None:
    odd = tmp_path / "a b,c:d\\e\n#"
    odd.mkdir()
    script = """
from pathlib import Path
from agentgym_rtmc.environments.sandbox import folders, mounts
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.workspace import new_workspace
one, two = folders.new_folder("one"), folders.new_folder("two")
parent = new_workspace(SandboxSpec(), one)
(parent.path / "f").write_text("x")
child = parent.fork(two)
print(child.how, (two / "f").read_text(), len(mounts.below(folders.run_folder())))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"TMPDIR": str(odd)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "overlay x 6\n", done.stderr  # the run folder, three layers, two views
    assert mounts.below(odd) == []
    assert os.listdir(odd) == []  # noqa: PTH208


def test_a_sandbox_says_that_it_is_busy_and_goes_on(isolation: str, overlays: None) -> None:
    with LocalSandbox(SandboxSpec(isolation=isolation)) as sandbox:
        assert sandbox.forks_by == "overlay"
        sandbox.exec(["sh", "-c", "echo one > f"])
        with (sandbox.workspace / "f").open("a") as writer:
            with pytest.raises(SandboxBusyError):
                sandbox.fork()
            writer.write("two\n")
        with sandbox.fork() as child:
            assert child.exec(["sh", "-c", "echo three >> f; cat f"]).stdout == "one\ntwo\nthree\n"
        assert sandbox.exec(["sh", "-c", "echo four >> f; cat f"]).stdout == "one\ntwo\nfour\n"
