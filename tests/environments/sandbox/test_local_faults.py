"""Faults under local sandboxes: a trainer killed at any moment, a full disk. Typed errors, and nothing is left."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import signal
import tempfile
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from agentgym_rtmc.environments.sandbox import cgroups, folders, layers, local, mounts, owner
from agentgym_rtmc.environments.sandbox.base import MIB, SandboxSpec
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.environments.sandbox.snapshot import Snapshot, SnapshotSandbox
from agentgym_rtmc.environments.sandbox.workshop import Workshop
from agentgym_rtmc.errors import SandboxError

ROUNDS = [pytest.param(10, id="10"), pytest.param(50, id="50", marks=pytest.mark.full)]


@pytest.fixture
def place() -> Iterator[Path]:
    """A temporary folder of its own, which every user can pass, and which has to be empty at the end."""
    folder = Path(tempfile.mkdtemp(prefix="faults-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    folder.rmdir()


def forked(place: Path, work: Callable[[], object]) -> int:
    """A process of its own that does `work` with `place` as its temporary folder; cleans up and ends with 0 or 1."""
    pid = os.fork()
    if pid == 0:
        _work_and_end(place, work)
    return pid


def _work_and_end(place: Path, work: Callable[[], object]) -> NoReturn:
    code = 1
    try:
        tempfile.tempdir = str(place)
        work()
        code = 0
    except BaseException:  # noqa: BLE001 - the child must end here, whatever happens
        traceback.print_exc()
    if folders._mine and folders._mine[0] == os.getpid():
        folders._remove_run_folder(folders._mine[1])
    if os.getpid() in cgroups._homes:
        cgroups._close_all()
    os._exit(code)


def ended(pid: int) -> int:
    """Exit code of a child."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def busy(ways: list[str], mark: str, begun: int) -> None:
    """Use sandboxes of every kind until killed, always with processes that would outlive their command."""
    command = ["sh", "-c", f"echo x >> f; sleep 600.{mark} & sleep 600.{mark} & echo y; exec sleep 0.02"]

    def endless() -> None:
        shop = Workshop()
        for way in itertools.cycle(ways):
            spec = SandboxSpec(isolation=way, timeout=0.2)
            with LocalSandbox(spec) as sandbox:
                sandbox.exec(command)
                os.write(begun, b"x")
                with sandbox.fork() as child:
                    child.exec([*command[:2], f"{command[2]}; sleep 600.{mark}"])
                    sandbox.write("f", b"z")
                with SnapshotSandbox(spec, Snapshot.of({"f": b"x"}), memo=False, shop=shop) as snapshot:
                    snapshot.exec(command)

    threading.Thread(target=endless, daemon=True).start()
    endless()


def next_process(way: str) -> None:
    """What comes after the killed one: its first sandbox takes away what is left."""
    with LocalSandbox(SandboxSpec(isolation=way)) as sandbox:
        assert sandbox.exec(["echo", "works"]).stdout == "works\n"


def left(place: Path, mark: str, name: str) -> dict[str, list[str]]:
    """Processes, mounts, control groups and folders that are still there of a process called `name`."""
    found: dict[str, list[str]] = {"processes": [], "cgroups": []}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if f"600.{mark}".encode() in words or name.encode() in (entry / "environ").read_bytes():
                    found["processes"].append(words.decode(errors="replace"))
    for hierarchy in set(cgroups._hierarchies().values()):
        found["cgroups"] += [above for above, _, _ in os.walk(hierarchy.top) if name in above]
    found["mounts"] = [str(path) for path in mounts.below(place)]
    found["folders"] = [str(path) for path in place.rglob("*")]
    return {kind: things for kind, things in found.items() if things}


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_trainer_killed_at_any_moment_leaves_nothing(rounds: int, place: Path, root_folder: Path) -> None:
    ways = [way for way in local.ISOLATING if not local.why_not(way, root_folder)]
    if not ways:
        pytest.skip("no way of isolating works here")
    chance = random.Random(rounds)
    for round_ in range(rounds):
        mark = str(uuid.uuid4().int)
        begun, write = os.pipe()
        pid = forked(place, lambda mark=mark, write=write: busy(ways, mark, write))  # type: ignore[misc]
        name = owner._name.__wrapped__(pid, os.geteuid())
        os.close(write)
        assert os.read(begun, 1) == b"x"
        time.sleep(chance.uniform(0, 0.5))
        os.kill(pid, signal.SIGKILL)
        assert ended(pid) == -signal.SIGKILL
        os.close(begun)
        assert left(place, mark, name)["folders"]
        assert ended(forked(place, lambda: next_process(ways[0]))) == 0
        give_up = time.monotonic() + 10
        while (remains := left(place, mark, name)) and time.monotonic() < give_up:
            time.sleep(0.05)
        assert remains == {}, f"round {round_}"


def on_a_small_disk(place: Path, work: Callable[[Path], object]) -> None:
    """Do `work` in a process whose temporary folder is a disk of one MiB, and see that nothing is left."""
    if layers.why_not():
        pytest.skip(f"no small disk can be made: {layers.why_not()}")
    disk = place / "disk"
    disk.mkdir()
    mounts.tmpfs(disk, MIB, 1000)
    disk.chmod(0o755)
    try:
        pid = forked(disk, lambda: work(disk))
        name = owner._name.__wrapped__(pid, os.geteuid())
        assert ended(pid) == 0
        assert left(disk, "-", name) == {"mounts": [str(disk)]}
    finally:
        mounts.detach_below(disk)
        disk.rmdir()


def fill(disk: Path) -> Path:
    """Fill what is left of a disk; return the file that did it."""
    with (disk / "ballast").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 512)
    return disk / "ballast"


def refused(work: Callable[[], object]) -> str:
    """The text of the SandboxError that `work` has to raise."""
    with pytest.raises(SandboxError) as caught:
        work()
    return str(caught.value)


def test_a_full_disk_is_a_sandbox_error_and_passes(isolation: str, place: Path) -> None:
    def work(disk: Path) -> None:
        spec = SandboxSpec(isolation=isolation, output_bytes=1000)
        with LocalSandbox(spec) as sandbox:
            ballast = fill(disk)
            for made in range(50):  # folders may still fit
                try:
                    LocalSandbox(spec).close()
                except SandboxError as error:
                    assert "No space left" in str(error), (made, error)
                    break
            else:
                raise AssertionError("nothing was refused")
            if isolation == "unshare":  # which notes on disk that it has started a command
                assert "could not start" in refused(lambda: sandbox.exec(["echo", "x"]))
            else:
                assert sandbox.exec(["echo", "short output needs no disk"]).code == 0
                assert "No space left" in refused(lambda: sandbox.exec(["seq", "1000000"]))
            assert "No space left" in refused(sandbox.fork)
            ballast.unlink()
            assert sandbox.exec(["seq", "2000"]).kept is not None
            with sandbox.fork() as child:
                assert child.exec(["echo", "x"]).code == 0

    on_a_small_disk(place, work)


def test_a_plain_folder_on_a_full_disk_is_told_to_both(place: Path, isolation: str) -> None:
    """Where the kernel holds no limit, the agent's command and the host's own writing meet the disk's end."""
    from agentgym_rtmc.environments.sandbox.workspace import FolderWorkspace

    def work(disk: Path) -> None:
        spec = SandboxSpec(isolation=isolation)
        with LocalSandbox(spec, make_workspace=FolderWorkspace) as sandbox:
            ballast = fill(disk)
            if isolation != "unshare":  # which notes on disk that it has started a command
                result = sandbox.exec(["sh", "-c", "head -c 100000 /dev/zero > f"], merge=True)
                assert "No space left" in result.stdout
            assert "No space left" in refused(lambda: sandbox.write("f", b"x" * 100_000))
            ballast.unlink()
            sandbox.write("f", b"x" * 100_000)

    on_a_small_disk(place, work)


def test_no_room_for_a_run_folder_is_explained(place: Path, isolation: str) -> None:
    def work(disk: Path) -> None:
        numbers = itertools.count()
        with pytest.raises(OSError, match="No space left") as caught:
            while True:
                (disk / str(next(numbers))).touch()
        assert caught.value.errno == errno.ENOSPC
        assert "set TMPDIR" in refused(lambda: LocalSandbox(SandboxSpec(isolation=isolation)))
        for path in disk.iterdir():
            if path.is_file():
                path.unlink()

    on_a_small_disk(place, work)
