"""What goes wrong around containers: killed trainers, killed engines, full disks, containers removed from outside.

Every time: a typed error, no hang past the deadline, and afterwards no container, process, mount or folder is left.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest

from agentgym_rtmc.environments.sandbox import folders, mounts
from agentgym_rtmc.environments.sandbox.base import MIB, SandboxSpec
from agentgym_rtmc.environments.sandbox.docker.engine import ContainerGoneError
from agentgym_rtmc.environments.sandbox.docker.sandbox import DockerSandbox
from agentgym_rtmc.environments.sandbox.pool import SandboxPool
from agentgym_rtmc.errors import SandboxError, SandboxUnavailableError

ROOT = Path(__file__).parents[3]

TRAINER = """
import sys, threading
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.docker.sandbox import DockerSandbox
from agentgym_rtmc.environments.sandbox.pool import SandboxPool
image, mark = sys.argv[1:]
busy = f"import os, time\\nif os.fork() == 0: os.setsid()\\nopen('f', 'w').write('x')\\ntime.sleep(0.3)  # {mark}"
def work(how):
    spec = SandboxSpec(image=image, writable_root=how == "commit", ttl=600)
    while True:
        with DockerSandbox(spec, how=how) as parent:
            parent.write("a/b", b"x")
            for _ in range(2):
                with parent.fork() as child:
                    child.exec(["python3", "-c", busy])
                    parent.exec(["python3", "-c", busy], timeout=0.1)
for how in ("overlay", "copy", "commit"):
    threading.Thread(target=work, args=(how,)).start()
print("begun", flush=True)
"""


def engine(action: str, folder: Path) -> None:
    """Start or crash the tests' engine."""
    subprocess.run([sys.executable, ROOT / ".ci/engine.py", action, folder], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def api(engine_folder: Path) -> Iterator[docker.APIClient]:
    """The bare client."""
    client = docker.APIClient(f"unix://{engine_folder}/docker.sock", version="auto", timeout=60)
    client.headers["Connection"] = "close"
    yield client
    client.close()


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


def counts(api: docker.APIClient, place: Path) -> dict[str, int]:
    """Everything that a run can leave, counted: in the engine, in this process's folder, and in that of trainers."""
    return {
        "containers": len(api.containers(all=True)),
        "images": len(api.images(all=True)),
        "processes": len(processes_with("/sbin/docker-init")),
        "mounts": len(mounts.below(folders.run_folder())) + len(mounts.below(place)),
        "folders": len(list(folders.run_folder().iterdir())) + len(list(place.glob("*/*"))),
    }


@pytest.fixture
def nothing_is_left(api: docker.APIClient, image: str, tmp_path: Path) -> Iterator[None]:
    """After the test there is no more of anything than before it; what an earlier test left may have gone since."""
    with DockerSandbox(SandboxSpec(image=image)):
        pass  # what a process keeps from its first sandbox on does not count
    before = counts(api, tmp_path)
    yield

    def no_more() -> bool:
        return all(number <= before[what] for what, number in counts(api, tmp_path).items())

    assert wait_until(no_more, 20), (before, counts(api, tmp_path))


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` came true within `seconds`."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.05)
    return True


def kill_trainers(rounds: int, image: str, place: Path) -> None:
    """Start trainers and kill each at a random moment; then clean up what they left in `place` and in the engine."""
    environment = {**os.environ, "TMPDIR": str(place)}
    chance = random.Random(rounds)
    marks = [f"mark-{uuid.uuid4()}" for _ in range(rounds)]
    for mark in marks:
        argv = [sys.executable, "-c", TRAINER, image, mark]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment) as trainer:
            assert trainer.stdout
            assert trainer.stdout.readline() == b"begun\n"
            time.sleep(chance.uniform(0, 2))
            trainer.kill()
    clean = [sys.executable, "-m", "agentgym_rtmc", "clean", "--yes"]
    assert wait_until(lambda: not any(processes_with(mark) for mark in marks), 20)
    done = subprocess.run(clean, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "folder" in done.stdout  # each left at least that
    assert "removed" in done.stderr


@pytest.mark.usefixtures("nothing_is_left")
def test_killed_trainers_leave_nothing(image: str, tmp_path: Path) -> None:
    kill_trainers(10, image, tmp_path)


@pytest.mark.full
@pytest.mark.usefixtures("nothing_is_left")
def test_killed_trainers_leave_nothing_50_times(image: str, tmp_path: Path) -> None:
    kill_trainers(50, image, tmp_path)


@pytest.mark.usefixtures("nothing_is_left")
def test_a_killed_engine_is_a_typed_error_and_the_pool_heals(engine_folder: Path, image: str) -> None:
    spec = SandboxSpec(image=image)
    with SandboxPool(spec, limit=4, ready=2) as pool:
        lent = pool.acquire(60)
        assert wait_until(lambda: pool.ready() == 2, 60)
        crash = threading.Timer(0.7, engine, ("crash", engine_folder))
        crash.start()
        with pytest.raises(SandboxError):
            lent.exec(["sleep", "30"], timeout=40)
        crash.join()
        assert not lent.alive()
        with pytest.raises(SandboxError):
            lent.exec(["true"])
        with pytest.raises(SandboxError):
            lent.read("f")
        with pytest.raises(SandboxError, match="no sandbox became free in time"):
            pool.acquire(0.5)
        engine("start", engine_folder)
        pool.release(lent)
        with pool.lease(60) as healed:
            assert healed.exec(["echo", "healed"]).stdout == "healed\n"


@pytest.mark.usefixtures("nothing_is_left")
def test_no_engine_at_all(image: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(SandboxUnavailableError, match="no container engine answers"):
        DockerSandbox(SandboxSpec(image=image))
    monkeypatch.setenv("DOCKER_HOST", "ssh://somewhere")
    with pytest.raises(SandboxUnavailableError, match="forward a remote engine's socket"):
        DockerSandbox(SandboxSpec(image=image))
    for wrong in ("garbage", "fd://", "tcp://127.0.0.1:99999", "npipe:////./x"):
        monkeypatch.setenv("DOCKER_HOST", wrong)
        with pytest.raises(SandboxUnavailableError, match="socket"):
            DockerSandbox(SandboxSpec(image=image))


@pytest.mark.parametrize("how", ["overlay", "copy", "commit"])
@pytest.mark.usefixtures("nothing_is_left")
def test_a_container_removed_from_outside(api: docker.APIClient, image: str, how: str) -> None:
    sandbox = DockerSandbox(SandboxSpec(image=image, writable_root=how == "commit"), how=how)  # type: ignore[arg-type]
    removing = threading.Timer(0.5, lambda: api.remove_container(sandbox.container, force=True))
    removing.start()
    with pytest.raises(ContainerGoneError):
        sandbox.exec(["sleep", "30"], timeout=40)
    assert not sandbox.alive()
    uses: list[Callable[[], object]] = [
        lambda: sandbox.exec(["true"]),
        lambda: sandbox.write("f", b""),
        sandbox.fork,
    ]
    for use in uses:
        with pytest.raises(ContainerGoneError):
            use()
    sandbox.close()
    removing.join()


@pytest.mark.usefixtures("nothing_is_left")
def test_a_container_past_its_time(image: str) -> None:
    with DockerSandbox(SandboxSpec(image=image, ttl=1)) as sandbox:
        with pytest.raises(ContainerGoneError):
            sandbox.exec(["sleep", "30"], timeout=40)
        assert not sandbox.alive()


@pytest.mark.usefixtures("nothing_is_left")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_on_our_side(image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output that is to be kept, and what an image holds at the workspace."""
    mounts.tmpfs(tmp_path, 1 * MIB, 1000)
    try:
        with DockerSandbox(SandboxSpec(image=image, output_bytes=1000)) as sandbox:
            monkeypatch.setattr(folders, "new_folder", lambda name: Path(tempfile.mkdtemp(dir=tmp_path)))
            with pytest.raises(SandboxError, match="free some space"):
                sandbox.exec(["sh", "-c", "seq 1000000; sleep 9"])
            monkeypatch.undo()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        with pytest.raises(SandboxError, match="free some space"):
            DockerSandbox(SandboxSpec(image=image, workdir="/usr/lib/python3"))
            DockerSandbox(SandboxSpec(image=image, workdir="/usr/lib/git-core"))
        monkeypatch.undo()
        assert not [path for path in (tmp_path / "cache/agentgym-rtmc/images").glob("*") if path.name != "lock"]
    finally:
        mounts.detach_below(tmp_path)


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_on_the_engine_s_side(image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="full-", dir="/tmp") as name:
        folder = Path(name) / "e"
        (folder / "data").mkdir(parents=True)
        mounts.tmpfs(folder / "data", 400 * MIB, 100_000)
        try:
            engine("start", folder)
            monkeypatch.setenv("DOCKER_HOST", f"unix://{folder}/docker.sock")
            build = [sys.executable, ROOT / ".ci/base_image.py"]
            here = subprocess.run(build, capture_output=True, text=True, check=True).stdout.strip()
            with DockerSandbox(SandboxSpec(image=here, writable_root=True, disk_bytes=900 * MIB)) as sandbox:
                fill = "i=0; while head -c 30000000 /dev/zero > $i; do i=$((i+1)); done"
                filled = sandbox.exec(["sh", "-c", fill])
                assert "No space left on device" in filled.stderr
                with pytest.raises(SandboxError):
                    sandbox.fork()
                with pytest.raises(SandboxError):
                    DockerSandbox(SandboxSpec(image=here))
                assert sandbox.exec(["sh", "-c", "rm -f *; echo freed"]).stdout == "freed\n"
                with sandbox.fork() as child:
                    assert child.exec(["echo", "works"]).stdout == "works\n"
        finally:
            engine("stop", folder)


@pytest.mark.full
@pytest.mark.usefixtures("nothing_is_left")
def test_an_engine_that_stops_answering_is_no_hang(engine_folder: Path, image: str) -> None:
    pid = int((engine_folder / "docker.pid").read_text())
    with DockerSandbox(SandboxSpec(image=image)) as sandbox:
        stopping = threading.Timer(0.5, os.kill, (pid, 19))
        stopping.start()
        begun = time.monotonic()
        try:
            with pytest.raises(SandboxError):
                sandbox.exec(["sleep", "30"], timeout=2)
            assert time.monotonic() - begun < 60  # not to measure anything: a hang would have no end
        finally:
            stopping.join()
            os.kill(pid, 18)
