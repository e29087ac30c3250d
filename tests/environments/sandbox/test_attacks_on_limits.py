"""Attacks on local limits where no control group helps: what no table of processes and no folder shows at once."""

from __future__ import annotations

import pytest

from agentgym_rtmc.environments.sandbox import cgroups
from agentgym_rtmc.environments.sandbox.base import MIB, SandboxSpec
from agentgym_rtmc.environments.sandbox.local import LocalSandbox

SYSTEM_V = """
import ctypes
libc = ctypes.CDLL(None)
print([libc.shmget(7, 4096, 0o1600), libc.msgget(7, 0o1600), libc.semget(7, 16000, 0o1600)])
"""


@pytest.fixture(autouse=True)
def no_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for an ordinary user, to whom nothing has been delegated."""
    nothing = cgroups._Home({}, {}, dict.fromkeys(cgroups.CONTROLLERS, "not here"))
    monkeypatch.setattr(cgroups, "_home", lambda: nothing)


@pytest.mark.parametrize(
    "script",
    [
        "import mmap\nfor _ in range(4):\n    if os.fork() == 0: break\nx = mmap.mmap(-1, 40 << 20)\n"
        "for at in range(0, len(x), 4096): x[at] = 1\n",
        "import mmap\ntry: f = os.memfd_create('x')\nexcept OSError: print('refused', flush=True); os._exit(0)\n"
        "os.ftruncate(f, 120 << 20)\nx = mmap.mmap(f, 0)\nos.close(f)\n"
        "for at in range(0, len(x), 4096): x[at] = 1\n",
        "import ctypes, mmap\nfor _ in range(20):\n    f = ctypes.CDLL(None).syscall(447, 0)\n"
        "    if f < 0: print('refused', flush=True); os._exit(0)\n"
        "    os.ftruncate(f, 6 << 20)\n    x = mmap.mmap(f, 0)\n    for at in range(0, len(x), 4096): x[at] = 1\n"
        "    x.close()\n",
    ],
    ids=["shared by processes", "of a closed memory file", "secret"],
)
def test_shared_memory_is_counted(isolation: str, script: str) -> None:
    spec = SandboxSpec(isolation=isolation, memory_bytes=96 * MIB, file_bytes=200 * MIB)
    with LocalSandbox(spec) as sandbox:
        result = sandbox.exec(["python", "-c", f"import os, time\n{script}time.sleep(20)"], timeout=20)
        assert result.out_of_memory or result.stdout == "refused\n", result
        assert sandbox.exec(["echo", "served"]).stdout == "served\n"


def test_shared_memory_is_counted_once(isolation: str) -> None:
    script = (
        "import mmap, os, time\nx = mmap.mmap(-1, 40 << 20)\n"
        "for at in range(0, len(x), 4096): x[at] = 1\n"
        "for _ in range(5):\n    if os.fork() == 0:\n"
        "        print(sum(x[::4096]), flush=True); time.sleep(0.5); os._exit(0)\n"
        "for _ in range(5): os.wait()\n"
    )
    with LocalSandbox(SandboxSpec(isolation=isolation, memory_bytes=128 * MIB)) as sandbox:
        assert sandbox.exec(["python", "-c", script]).stdout == "10240\n" * 5


def test_system_v_objects_are_refused(isolation: str) -> None:
    with LocalSandbox(SandboxSpec(isolation=isolation)) as sandbox:
        assert sandbox.exec(["python", "-c", SYSTEM_V]).stdout == "[-1, -1, -1]\n"


def test_files_in_tmp_are_counted(isolation: str) -> None:
    fill = (
        "import os, tempfile, time\nfolder = tempfile.mkdtemp()\n"
        "for i in range(3000): open(f'{folder}/{i}', 'w').close()\ntime.sleep(20)"
    )
    with LocalSandbox(SandboxSpec(isolation=isolation, disk_files=500)) as sandbox:
        result = sandbox.exec(["python", "-c", fill], timeout=20)
        assert result.out_of_disk or "No space left on device" in result.stderr, result
        assert not result.timed_out
        assert sandbox.exec(["echo", "served"]).stdout == "served\n"


def test_disk_cannot_be_taken_in_one_call(isolation: str) -> None:
    take = (
        "import ctypes, os\nf = os.open('f', os.O_CREAT | os.O_RDWR)\n"
        "size = ctypes.c_long(1 << 20)\n"
        "print([ctypes.CDLL(None).fallocate(f, mode, ctypes.c_long(0), size) for mode in (0, 1, 16)])\n"
        "os.posix_fallocate(f, 0, 1 << 20)\nprint(os.fstat(f).st_size)"
    )
    with LocalSandbox(SandboxSpec(isolation=isolation)) as sandbox:
        assert sandbox.exec(["python", "-c", take]).stdout == "[-1, -1, -1]\n1048576\n"
