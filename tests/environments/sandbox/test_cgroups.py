"""Control groups: limits that the kernel holds over all processes of a sandbox, and groups that go with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentgym_rtmc.environments.sandbox import cgroups, local, owner
from agentgym_rtmc.environments.sandbox.base import MIB, SandboxSpec
from agentgym_rtmc.environments.sandbox.cgroups import Cgroup
from agentgym_rtmc.environments.sandbox.local import LocalSandbox

MEMORY_BOMB = "x = []\nwhile True:\n    x.append(b'x' * 100_000)"


@pytest.fixture(autouse=True)
def everything_held() -> None:
    """Skips where the kernel does not hold every limit for this process."""
    if cgroups.reasons():
        pytest.skip(f"no control groups here: {cgroups.reasons()}")


@pytest.fixture
def group() -> Iterator[Cgroup]:
    group = Cgroup(SandboxSpec(memory_bytes=48 * MIB, processes=4), 0)
    yield group
    group.close()


def run(group: Cgroup, script: str) -> subprocess.CompletedProcess[str]:
    """A script in the group, with no other limit than the group's."""
    return subprocess.run(
        [*group.enter, sys.executable, "-S", "-c", script], capture_output=True, text=True, check=False, timeout=60
    )


def test_memory_is_held_and_told(group: Cgroup) -> None:
    assert group.oom_kills() == 0
    assert run(group, MEMORY_BOMB).returncode == -signal.SIGKILL
    assert group.oom_kills() == 1
    assert run(group, "print('fine')").stdout == "fine\n"


def test_memory_of_files_in_memory_counts(group: Cgroup) -> None:
    script = "import os\nf = os.fdopen(os.memfd_create('x'), 'wb')\nwhile True: f.write(b'x' * 1_000_000)"
    assert run(group, script).returncode == -signal.SIGKILL
    assert group.oom_kills() == 1


def test_processes_are_held(group: Cgroup) -> None:
    script = (
        "import os\nn = 0\ntry:\n    while os.fork(): n += 1\n    else: os.pause()\nexcept BlockingIOError: print(n)"
    )
    script = script.replace("os.pause()", "__import__('signal').pause()") + "\nos.kill(0, 9)"
    done = subprocess.run(
        ["setsid", "-w", *group.enter, sys.executable, "-S", "-u", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )
    assert 0 < int(done.stdout) <= 4 + 8


def test_cpu_is_held() -> None:
    group = Cgroup(SandboxSpec(cpus=0.1), 0)
    run(group, "import time\nend = time.thread_time() + 0.1\nwhile time.thread_time() < end: pass")
    counts = dict(line.split() for line in (group._folders["cpu"] / "cpu.stat").read_text().splitlines())
    assert int(counts["nr_throttled"]) > 0
    group.close()


def test_closing_kills_and_removes(group: Cgroup) -> None:
    script = "import os, time\nif os.fork(): os._exit(0)\nos.setsid()\nprint(os.getpid(), flush=True)\ntime.sleep(100)"
    process = subprocess.Popen([*group.enter, sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    pid = int(process.stdout.readline())
    folders = group._places()
    assert all(pid in cgroups._members(folder) for folder in folders)
    group.close()
    group.close()
    assert not any(folder.exists() for folder in folders)
    assert process.stdout.read() == ""  # nobody is left to hold it
    process.wait()
    process.stdout.close()


def test_what_already_runs_is_taken_in(group: Cgroup) -> None:
    script = "import os, time\nos.fork()\nos.fork()\ntime.sleep(100)"
    process = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    try:
        pids = lambda: [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and group_of(pid) == process.pid]  # noqa: E731, PTH208
        while len(pids()) < 4:
            pass
        group.adopt(pids)
        assert all(cgroups._members(folder) == set(pids()) for folder in group._places())
        assert group.kill()
    finally:
        process.kill()
        process.wait()


def group_of(pid: str) -> int:
    """Process group of a process that may just end."""
    try:
        return os.getpgid(int(pid))
    except ProcessLookupError:
        return 0


@pytest.mark.parametrize("brief", [False, True])
def test_a_command_is_in_the_group_and_cannot_see_it(isolation: str, brief: bool) -> None:
    with LocalSandbox(SandboxSpec(isolation=isolation), brief=brief) as sandbox:
        folders = sandbox._cgroup._places()
        seen: list[int] = []
        thread = threading.Thread(target=lambda: seen.append(sandbox.exec(["sleep", "0.5"]).code))
        thread.start()
        while thread.is_alive() and not all(len(cgroups._members(folder)) >= 2 for folder in folders):
            thread.join(0.01)
        assert thread.is_alive(), "it ended before it was in its groups"
        thread.join()
        assert seen == [0]
        assert all(cgroups._members(folder) == set() for folder in folders)
        if not brief:  # one that is taken in later has its own view of the groups already
            assert "agentgym" not in sandbox.exec(["cat", "/proc/self/cgroup"]).stdout
    assert not any(folder.exists() for folder in folders)


@pytest.mark.parametrize("brief", [False, True])
def test_groups_that_somebody_removed_are_made_again(isolation: str, brief: bool) -> None:
    spec = SandboxSpec(isolation=isolation, memory_bytes=48 * MIB, file_bytes=200 * MIB)
    with LocalSandbox(spec, brief=brief) as sandbox:
        assert sandbox.exec(["true"]).code == 0
        removed = sandbox._cgroup._places()
        cgroups.remove(removed[0])
        assert sandbox.exec(["echo", "served"]).stdout == "served\n"
        assert all(folder.is_dir() for folder in sandbox._cgroup._places())
        assert not any(folder.exists() for folder in removed)
        held = "import os, time\nf = os.fdopen(os.memfd_create('x'), 'wb')\nwhile True: f.write(b'x' * 100_000)"
        assert sandbox.exec(["python", "-c", held]).out_of_memory
        cgroups.remove(sandbox._cgroup._places()[-1])
    assert not any(folder.exists() for folder in sandbox._cgroup._places())


def test_without_isolation_a_group_still_ends_what_has_left_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "_warned", True)
    script = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\nprint('done')"
    with LocalSandbox(SandboxSpec(isolation="none")) as sandbox:
        assert sandbox.exec(["python3", "-c", script]).stdout == "done\n"
        assert all(cgroups._members(folder) == set() for folder in sandbox._cgroup._places())


def test_a_fork_has_groups_of_its_own(isolation: str) -> None:
    with LocalSandbox(SandboxSpec(isolation=isolation)) as parent, parent.fork() as child:
        assert not set(parent._cgroup._places()) & set(child._cgroup._places())


def test_groups_of_a_dead_process_are_found_and_those_of_a_living_one_are_not(group: Cgroup) -> None:
    script = """
import os, signal, subprocess
from agentgym_rtmc.environments.sandbox.cgroups import Cgroup
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
group = Cgroup(SandboxSpec(), 0)
orphan = subprocess.Popen([*group.enter, "sleep", "100"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
while not all(orphan.pid in map(int, (folder / "cgroup.procs").read_text().split()) for folder in group._places()): pass
print(os.getppid(), *group._places(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    parent, *folders = done.stdout.split()
    assert int(parent) == os.getpid()
    left = cgroups.left_by_the_dead()
    assert set(folders) <= {str(folder) for folder in left}
    assert not any(owner.me() in folder.name for folder in left)
    for folder in left:
        cgroups.remove(folder)
    assert not any(Path(folder).exists() for folder in folders)
    assert all(folder.exists() for folder in group._places())


def test_names_of_the_living_and_of_others_are_not_dead() -> None:
    user, namespace, pid, start = owner.me().split("-")
    assert not owner.is_dead(owner.me())
    assert owner.is_dead(f"{user}-{namespace}-{pid}-{int(start) - 1}")
    assert owner.is_dead(f"{user}-{namespace}-{2**22 + 1}-{start}")
    for other in (f"{int(user) + 1}-{namespace}-{pid}-1", f"{user}-1-{pid}-1", "nonsense", ""):
        assert not owner.is_dead(other)
    waits_to_be_reaped = subprocess.Popen(
        [sys.executable, "-c", "from agentgym_rtmc.environments.sandbox import owner\nprint(owner.me())"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert waits_to_be_reaped.stdout
    name = waits_to_be_reaped.stdout.read().strip()
    while not owner.is_dead(name):
        pass
    waits_to_be_reaped.wait()
    waits_to_be_reaped.stdout.close()
