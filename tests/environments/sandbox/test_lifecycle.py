"""Nothing outlives its run: parents killed with -9, forked parents, closed sandboxes, ordinary users."""

from __future__ import annotations

import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from agentgym_rtmc.environments.sandbox import folders, local
from agentgym_rtmc.environments.sandbox.base import MIB, Sandbox, SandboxSpec
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.environments.sandbox.snapshot import Snapshot, SnapshotSandbox
from agentgym_rtmc.errors import SandboxError

MakeSandbox = Callable[..., Sandbox]

PARENT = """
import sys, threading
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.folders import run_folder
isolation, mark = sys.argv[1:]
script = f"import os, time\\nif os.fork() == 0: os.setsid()\\nopen('begun', 'w')\\ntime.sleep(60)  # {mark}"
sandbox = LocalSandbox(SandboxSpec(isolation=isolation))
print(run_folder(), sandbox.workspace, flush=True)
threading.Thread(target=lambda: sandbox.exec(["python", "-c", script], timeout=60)).start()
"""


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


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether `condition` came true within `seconds`."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.01)
    return True


def test_commands_die_with_a_killed_parent_and_the_next_process_cleans_up(isolation: str) -> None:
    mark = f"mark-{uuid.uuid4()}"
    with subprocess.Popen([sys.executable, "-c", PARENT, isolation, mark], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout
        run_folder, workspace = parent.stdout.readline().split()
        assert wait_until((Path(workspace) / "begun").exists, 20)
        parent.kill()
    # The parent is dead and reaped; the kernel now ends what it ran.
    assert wait_until(lambda: processes_with(mark) == [], 2), processes_with(mark)
    assert Path(run_folder).exists()
    subprocess.run(
        [sys.executable, "-c", "from agentgym_rtmc.environments.sandbox.folders import run_folder; run_folder()"],
        check=True,
    )
    assert not Path(run_folder).exists()


def test_folders_of_living_processes_are_left_alone() -> None:
    mine = folders.new_folder("mine")
    subprocess.run(
        [sys.executable, "-c", "from agentgym_rtmc.environments.sandbox.folders import run_folder; run_folder()"],
        check=True,
    )
    assert mine.exists()
    folders.remove_tree(mine)


def test_closing_removes_the_folder_whatever_is_in_it(isolation: str) -> None:
    sandbox = LocalSandbox(SandboxSpec(isolation=isolation, disk_files=1000))
    sandbox.exec(["python", "-c", "import os\nfor i in range(2000):\n    os.mkdir('d'); os.chdir('d')"])
    sandbox.exec(["sh", "-c", "mkdir -p closed/x; touch closed/x/y; chmod 000 closed/x closed"])
    folder = sandbox.workspace.parent
    sandbox.close()
    assert not folder.exists()


def test_no_descriptors_leak(make: MakeSandbox) -> None:
    sandbox = make(timeout=0.05)
    sandbox.exec(["true"], timeout=10)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    rounds = 5
    for _ in range(rounds):
        for argv in (["true"], ["sleep", "9"], ["no-such-program"], ["echo", "x" * 1_000_000]):
            sandbox.exec(argv)
    # A leak would grow with the rounds; connections to an engine, of which two may be needed at once, are kept.
    assert len(os.listdir("/proc/self/fd")) - before < rounds  # noqa: PTH208


def test_what_the_machine_refuses_is_a_sandbox_error_and_passes(make: MakeSandbox) -> None:
    sandbox = make()
    sandbox.exec(["true"])
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(SandboxError, match="Too many open files"):
            sandbox.exec(["echo", "a"])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sandbox.exec(["echo", "b"]).stdout == "b\n"


@pytest.mark.parametrize("timeout", [0.0001, 0.001, 0.003, 0.01, 0.02])
def test_deadlines_during_the_set_up(sandbox: Sandbox, timeout: float) -> None:
    mark = f"mark-{uuid.uuid4()}"
    result = sandbox.exec(["python", "-c", f"import time; time.sleep(60)  # {mark}"], timeout=timeout)
    assert (result.timed_out, result.code) == (True, 137)
    assert processes_with(mark) == []
    assert sandbox.exec(["echo", "fine"]).stdout == "fine\n"


def test_an_exception_in_the_caller_ends_the_command(sandbox: Sandbox) -> None:
    mark = f"mark-{uuid.uuid4()}"

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            sandbox.exec(["python", "-c", f"import time; time.sleep(60)  # {mark}"])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert processes_with(mark) == []
    assert sandbox.exec(["echo", "fine"]).stdout == "fine\n"


def in_a_child(work: Callable[[], object]) -> object:
    """Run `work` in a forked child and return its result."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            answer: object = work()
        except BaseException:  # noqa: BLE001 - the child must end here, whatever happens
            answer = traceback.format_exc()
        with os.fdopen(write, "wb") as pipe:
            pickle.dump(answer, pipe)
        if folders._mine and folders._mine[0] == os.getpid():
            folders.remove_tree(folders._mine[1])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        result: object = pickle.load(pipe)
    os.waitpid(pid, 0)
    return result


def test_a_forked_child_has_folders_of_its_own(isolation: str) -> None:
    spec = SandboxSpec(isolation=isolation)
    parent = SnapshotSandbox(spec, Snapshot.of({"f": b"x"}), memo=False)
    parent.exec(["true"])

    def work() -> object:
        child = parent.fork()
        return child.exec(["sh", "-c", "echo child >> f; cat f"]).stdout, str(folders.run_folder())

    assert in_a_child(work) != ("xchild\n", str(folders.run_folder()))
    assert in_a_child(lambda: work()[0]) == "xchild\n"  # type: ignore[index]
    assert parent.exec(["cat", "f"]).stdout == "x"


def test_surroundings_of_the_trainer_make_no_difference(isolation: str, tmp_path: Path) -> None:
    """Its umask, its working directory that is gone, names on its machine that are no text, a missing PATH."""

    def work() -> object:
        odd = Path(tempfile.mkdtemp(prefix=os.fsdecode(b"odd-\xff-"), dir="/var/tmp"))
        odd.chmod(0o755)
        tempfile.tempdir = str(odd)
        gone = tmp_path / "gone"
        gone.mkdir()
        os.chdir(gone)
        gone.rmdir()
        os.umask(0o077)
        os.environ["PATH"] = ""
        try:
            with LocalSandbox(SandboxSpec(isolation=isolation)) as sandbox:
                made = sandbox.exec(["sh", "-c", "touch f; mkdir d; stat -c %a f d"])
        finally:
            folders.remove_tree(odd)
        return made.stdout, made.stderr

    assert in_a_child(work) == ("644\n755\n", "")


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests already run as an ordinary user")
def test_works_for_an_ordinary_user(isolation: str, root_folder: Path) -> None:
    """Everything that differs between root and others: namespaces, ownership, closed files, limits, links."""
    place = Path(tempfile.mkdtemp(prefix="ordinary-", dir="/var/tmp"))
    try:
        place.chmod(0o755)
        # The cache of root is closed to others, so they get a hard-linked copy of the sandbox's root.
        subprocess.run(["cp", "-al", root_folder, place / "root"], check=True)
        (place / "tmp").mkdir()
        (place / "tmp").chmod(0o777)
        answer = in_a_child(lambda: as_ordinary_user(isolation, place))
    finally:
        shutil.rmtree(place)
    named = isolation != "landlock"  # which has no table of users, and no /proc
    assert answer == {
        "who": "agent\n65534\n" if named else "65534\n",
        "host uid": 65534,
        "caps": "0000000000000000\n" if named else "",
        "timed out": True,
        "bomb": True,
        "disk": True,
        "undumpable": True,
        "memory file": "refused\n",
        "closed": "secret\n600\n",
        "restored": True,
        "left": [],
    }, answer


def as_ordinary_user(isolation: str, place: Path) -> dict[str, object]:
    """Become nobody for good and use both kinds of sandbox."""
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    tempfile.tempdir = str(place / "tmp")
    local._tried.clear()
    mark = f"mark-{uuid.uuid4()}"
    spec = SandboxSpec(isolation=isolation, root=place / "root", disk_bytes=4 * MIB, processes=20, timeout=5)
    found: dict[str, object] = {}
    with LocalSandbox(spec) as sandbox:
        found["who"] = sandbox.exec(["sh", "-c", "whoami; id -u; touch mine"]).stdout
        found["host uid"] = (sandbox.workspace / "mine").stat().st_uid
        found["caps"] = sandbox.exec(["sh", "-c", "grep CapEff /proc/self/status | cut -f2"]).stdout
        found["timed out"] = sandbox.exec(
            ["python", "-c", f"import time; time.sleep(60) # {mark}"], timeout=0.3
        ).timed_out
        bomb = sandbox.exec(["python", "-c", "import os\nwhile True: os.fork()"], timeout=2)
        found["bomb"] = "Resource temporarily unavailable" in bomb.stderr or bool(bomb.note)
        fill = "mkdir d; for i in 1 2 3 4 5 6 7 8; do head -c 1000000 /dev/zero > d/$i; done; chmod 000 d .; sleep 0.3"
        found["disk"] = sandbox.exec(["sh", "-c", fill]).out_of_disk
    small = spec.model_copy(update={"memory_bytes": 96 * MIB})
    with LocalSandbox(small) as sandbox:
        hide = "import ctypes, os, time\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\nfor _ in range(4): os.fork()\n"
        filling = sandbox.exec(["python", "-c", f"{hide}x = b'x' * (24 << 20)\ntime.sleep(3)"])
        found["undumpable"] = filling.out_of_memory
        make = "import os\ntry: os.memfd_create('x')\nexcept OSError: print('refused')"
        found["memory file"] = sandbox.exec(["python", "-c", make]).stdout
    with SnapshotSandbox(spec, memo=False) as snap:
        snap.exec(["sh", "-c", "mkdir -p a/b; echo secret > a/b/f; chmod 000 a/b/f; chmod 000 a/b; chmod 500 a"])
        start = snap.snapshot
        found["closed"] = snap.exec(["sh", "-c", "chmod 700 a/b; chmod 600 a/b/f; cat a/b/f; stat -c %a a/b/f"]).stdout
        snap.exec(["sh", "-c", "chmod -R 700 a; rm -r a; echo file > a"])
        snap.restore(start)
        snap.exec(["true"])
        found["restored"] = snap.snapshot == start
    found["left"] = processes_with(mark)
    return found
