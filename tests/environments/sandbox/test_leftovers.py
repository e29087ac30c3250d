"""What killed processes leave is found, and removed by the next one; what living ones have is not touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentgym_rtmc.environments.sandbox import folders, leftovers, owner
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.leftovers import local_leftovers
from agentgym_rtmc.environments.sandbox.local import LocalSandbox

KILLED = """
import os, signal, subprocess, sys
from agentgym_rtmc.environments.sandbox import folders, owner
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
sandbox = LocalSandbox(SandboxSpec(isolation=sys.argv[1]))
sandbox.exec(["sh", "-c", "echo x > f"])
fork = sandbox.fork()
# As a program that sets a sandbox up and is missed by the end of its parent.
environment = {owner.MARK: owner.me(), "PATH": os.environ["PATH"]}
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
orphan = subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True, **quiet)
print(folders.run_folder(), orphan.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
ALONE = f"""
import json, os, signal, subprocess, sys
from collections import Counter
from pathlib import Path
from agentgym_rtmc.environments.sandbox import cgroups, folders, layers, mounts
from agentgym_rtmc.environments.sandbox.leftovers import local_leftovers
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.environments.sandbox.base import SandboxSpec

def killed():
    done = subprocess.run([sys.executable, "-c", {KILLED!r}, sys.argv[1]], stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    folder, pid = done.stdout.split()
    assert Path(folder).is_dir() and Path("/proc", pid, "environ").read_bytes()
    return Path(folder), int(pid)

def kinds():
    return dict(Counter(leftover.kind for leftover in local_leftovers()))

def gone(folder, pid):
    return not folder.exists() and not mounts.below(folder) and os.waitpid(pid, os.WNOHANG)[0] == pid
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that the agent's user can pass, which is not so for a test's own."""
    folder = Path(tempfile.mkdtemp(prefix="leftovers-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    folder.rmdir()  # nothing is left in it


def alone(script: str, isolation: str, folder: Path) -> object:
    """What a script prints as JSON in a process namespace of its own: nobody else may clean up after it."""
    words = [
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        sys.executable,
        "-c",
        ALONE + script,
        isolation,
    ]
    done = subprocess.run(words, env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, text=True, check=False)
    if done.returncode and "unshare failed" in done.stderr:
        pytest.skip(f"no process namespace: {done.stderr}")
    assert done.returncode == 0, done.stderr
    answer: object = json.loads(done.stdout)
    return answer


def test_everything_a_killed_process_left_is_listed_and_can_be_removed(isolation: str, open_folder: Path) -> None:
    script = """
expected = {"process": 1, "folder": 1}
if not cgroups.reasons():
    expected["cgroup"] = 2 * len(set(cgroups._home().folders.values()))
if not layers.why_not():
    expected["mount"] = 1 + 3 + 2 + (sys.argv[1] == "landlock")  # the run folder itself, layers, views, a root
left = killed()
found = local_leftovers()
listed = kinds() == expected or [kinds(), expected]
for leftover in found:
    leftover.remove()
    leftover.remove()  # it may be gone already
print(json.dumps([listed, kinds(), gone(*left)]))
"""
    assert alone(script, isolation, open_folder) == [True, {}, True]


def test_the_next_sandbox_removes_it(isolation: str, open_folder: Path) -> None:
    script = """
left = killed()
with LocalSandbox(SandboxSpec(isolation=sys.argv[1])) as sandbox:
    works = sandbox.exec(["echo", "x"]).stdout
print(json.dumps([works, kinds(), gone(*left)]))
"""
    assert alone(script, isolation, open_folder) == ["x\n", {}, True]


def test_what_the_living_have_is_not_listed(isolation: str) -> None:
    with LocalSandbox(SandboxSpec(isolation=isolation)) as sandbox, sandbox.fork():
        mine = subprocess.Popen(["sleep", "600"], env={owner.MARK: owner.me()}, executable="/bin/sleep")
        foreign = subprocess.Popen(["sleep", "600"], env={owner.MARK: "0-1-2-3"}, executable="/bin/sleep")
        try:
            while b"sleep" not in Path(f"/proc/{foreign.pid}/cmdline").read_bytes():
                time.sleep(0.01)
            names = [leftover.name for leftover in local_leftovers()]
            assert not {str(mine.pid), str(foreign.pid)} & set(names)
            assert not any(str(folders.run_folder()) in name or owner.me() in name for name in names)
            script = "from agentgym_rtmc.environments.sandbox import leftovers\nleftovers.remove_once()"
            subprocess.run([sys.executable, "-c", script], check=True)
            assert (mine.poll(), foreign.poll()) == (None, None)
            assert sandbox.exec(["echo", "fine"]).stdout == "fine\n"
        finally:
            for process in (mine, foreign):
                process.kill()
                process.wait()


def test_the_mark_is_not_seen_inside(isolation: str) -> None:
    with LocalSandbox(SandboxSpec(isolation=isolation)) as sandbox:
        seen = sandbox.exec(["sh", "-c", "env; cat /proc/[0-9]*/environ"]).stdout
    assert "HOME=" in seen
    assert owner.MARK not in seen
    assert owner.me() not in seen


def test_what_an_agent_calls_itself_does_not_reach_a_terminal() -> None:
    assert leftovers._shown(b"\x1b[2Jname\0-c\0a\nb\xff\0") == "?[2Jname -c a?b\ufffd"


def test_a_number_that_was_given_out_again_is_safe() -> None:
    """A leftover is looked at once more before it is killed."""
    bystander = subprocess.Popen(["sleep", "600"], executable="/bin/sleep", env={})
    leftovers._kill(bystander.pid)
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


@pytest.mark.parametrize("make", [lambda folder: (folder / "d").mkdir(), lambda folder: None])
def test_a_folder_without_its_lock_is_stale(make: Callable[[Path], object]) -> None:
    folders.run_folder()
    folder = folders._parent_of_run_folders() / f"{os.getpid()}-unfinished"
    folder.mkdir()
    make(folder)
    assert folder in folders.stale_run_folders()
    folders.remove_stale(folder)
    assert not folder.exists()
