"""What Landlock and the strict system-call filter have to refuse one by one, where namespaces would hide it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentgym_rtmc.environments.sandbox import landlock, local, seccomp
from agentgym_rtmc.environments.sandbox.base import AGENT_UID, SandboxSpec
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.errors import SandboxUnavailableError

TOOLS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, work):
    try:
        result = work()
    except OSError:
        return
    if not (isinstance(result, int) and result < 0):
        print("possible:", name)
"""


@pytest.fixture
def sandbox(root_folder: Path) -> Iterator[LocalSandbox]:
    reason = local.why_not("landlock", root_folder)
    if reason:
        pytest.skip(f"landlock does not work here: {reason}")
    with LocalSandbox(SandboxSpec(isolation="landlock")) as sandbox:
        yield sandbox


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder of the agent's own user that is none of its sandbox's business, at a path that nothing translates."""
    with tempfile.TemporaryDirectory(prefix="outside-", dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        (folder / "f").write_text("top secret")
        (folder / "d").mkdir()
        for path in (folder, folder / "f", folder / "d"):
            if os.geteuid() == 0:
                os.chown(path, AGENT_UID, AGENT_UID)
        yield folder


def python(sandbox: LocalSandbox, script: str) -> str:
    """Run a script that prints what was possible."""
    result = sandbox.exec(["python", "-c", TOOLS + script], merge=True)
    assert result.code == 0, result
    return result.stdout


def test_files_of_the_same_user_outside_cannot_be_touched(sandbox: LocalSandbox, outside: Path) -> None:
    before = [(path.name, path.lstat()[:9]) for path in sorted(outside.rglob("*"))]
    script = f"""
place = {str(outside)!r}
f, d = place + "/f", place + "/d"
number = os.open(f, os.O_PATH)
for name, work in {{
    "read": lambda: open(f).read(),
    "write": lambda: open(f, "a"),
    "reopen": lambda: open(f"/proc/self/fd/{{number}}").read(),
    "truncate": lambda: os.truncate(f, 0),
    "create": lambda: open(place + "/new", "w"),
    "list": lambda: os.listdir(d),
    "link": lambda: os.link(f, "mine"),
    "link what is open": lambda: os.link(f"/proc/self/fd/{{number}}", "mine", follow_symlinks=True),
    "give": lambda: (open("x", "w").close(), os.rename("x", place + "/x")),
    "make a folder": lambda: os.mkdir(place + "/new"),
    "symlink": lambda: os.symlink("x", place + "/new"),
    "mkfifo": lambda: os.mkfifo(place + "/new"),
    "chmod": lambda: os.chmod(f, 0),
    "fchmodat2": lambda: libc.syscall(452, number, b"", 0, 0x1000),
    "fchmodat2 by path": lambda: libc.syscall(452, -100, f.encode(), 0, 0),
    "chmod through a link": lambda: (os.symlink(f, "link"), os.chmod("link", 0)),
    "chmod by a descriptor": lambda: os.chmod(f"/proc/self/fd/{{number}}", 0),
    "chmod from another folder": lambda: (os.chdir(place), os.chmod("f", 0)),
    "utime": lambda: os.utime(f, (0, 0)),
    "utime of a folder": lambda: os.utime(place, (0, 0)),
    "chown": lambda: os.chown(f, os.getuid(), os.getgid()),
    "setxattr": lambda: os.setxattr(f, "user.x", b"x"),
    "execute": lambda: open("/usr/bin/getconf", "rb"),
    "rename": lambda: os.rename(f, place + "/g"),
    "take": lambda: os.rename(place + "/g", "mine"),
    "take otherwise": lambda: os.rename(f, "mine"),
    "remove a folder": lambda: os.rmdir(d),
    "remove": lambda: os.unlink(f),
}}.items():
    attempt(name, work)
"""
    assert python(sandbox, script) == ""
    assert [(path.name, path.lstat()[:9]) for path in sorted(outside.rglob("*"))] == before


def test_modes_and_times_in_the_workspace_can_be_changed(sandbox: LocalSandbox) -> None:
    script = """
open("f", "w").close(); os.mkdir("d"); os.symlink("f", "l"); open("d/g", "w").close()
os.chmod("f", 0o641); os.chmod("l", 0o640); os.utime("f", (5, 6)); os.utime("l", (7, 8), follow_symlinks=False)
number = os.open("d", os.O_RDONLY)
os.chmod("g", 0o600, dir_fd=number); os.utime("g", ns=(1_500_000_001, 2_500_000_001), dir_fd=number)
os.chmod(os.getcwd() + "/d", 0o701)
open(os.environ["TMPDIR"] + "/t", "w").close(); os.chmod(os.environ["TMPDIR"] + "/t", 0o600)
f, l, g, d = (os.lstat(name) for name in ("f", "l", "d/g", "d"))
print(oct(f.st_mode), f.st_atime, f.st_mtime, l.st_mtime, oct(g.st_mode), g.st_mtime_ns, oct(d.st_mode))
os.utime("f"); print(os.stat("f").st_mtime > 1e9)
for path in ("missing", "", "f/x", "x" * 5000):
    attempt(path, lambda: os.chmod(path, 0o600))
attempt("a bad address", lambda: libc.chmod(ctypes.c_void_p(8), 0))
attempt("a bad folder", lambda: os.chmod("f", 0, dir_fd=99))
"""
    expected = "0o100640 5.0 6.0 8.0 0o100600 2500000001 0o40701\nTrue\n"
    assert python(sandbox, script) == expected


def test_sockets_of_other_people_are_out_of_reach(sandbox: LocalSandbox, outside: Path) -> None:
    """The engine's socket and the desktop's bus are such: nothing but the right to open a socket guards them."""
    with socket.socket(socket.AF_UNIX) as stream, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as letters:
        stream.bind(str(outside / "stream"))
        letters.bind(str(outside / "letters"))
        stream.listen()
        script = f"""
import socket
for name in ("stream", "letters"):
    os.path.exists({str(outside)!r} + "/" + name) or print("cannot be seen")
one, two = socket.socketpair()
one.sendall(b"pairs work"); print(two.recv(99).decode())
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    for family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK, socket.AF_PACKET, 40):
        attempt((family, kind), lambda: socket.socket(family, kind))
attempt("letters", lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0].connect({str(outside / "letters")!r}))
attempt("a pair turned", lambda: one.connect({str(outside / "stream")!r}))
"""
        assert python(sandbox, script) == "pairs work\n"


def test_other_processes_are_out_of_reach(sandbox: LocalSandbox) -> None:
    """One of the agent's own user, as every process is for an ordinary user's trainer."""
    victim = subprocess.Popen(["sleep", "600"], user=AGENT_UID if os.geteuid() == 0 else None)
    try:
        script = f"""
import resource, signal
pid = {victim.pid}
buffer = ctypes.create_string_buffer(8)
for name, work in {{
    "kill": lambda: os.kill(pid, 0),
    "kill for good": lambda: os.kill(pid, 9),
    "kill a thread": lambda: libc.syscall(234, pid, pid, 9),
    "signal by descriptor": lambda: signal.pidfd_send_signal(os.pidfd_open(pid), 9),
    "its supervisor": lambda: os.kill(os.getppid(), 9),
    "trace": lambda: libc.ptrace(16, pid, None, None),
    "read its memory": lambda: open(f"/proc/{{pid}}/mem", "rb"),
    "read its memory otherwise": lambda: libc.process_vm_readv(pid, None, 0, None, 0, 0),
    "its environment": lambda: open(f"/proc/{{pid}}/environ", "rb").read(),
    "its words": lambda: open(f"/proc/{{pid}}/cmdline", "rb").read(),
    "its files": lambda: os.listdir(f"/proc/{{pid}}/fd"),
    "limit": lambda: resource.prlimit(pid, resource.RLIMIT_CPU, (1, 1)),
    "priority": lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
    "priority of all": lambda: os.setpriority(os.PRIO_USER, 0, 19),
    "processors": lambda: os.sched_setaffinity(pid, {{0}}),
    "scheduler": lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
    "disk priority": lambda: libc.syscall(251, 1, pid, 7 | 3 << 13),
}}.items():
    attempt(name, work)
try: os.kill(-1, 9)
except OSError: pass
os.nice(1); resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.sched_setaffinity(0, os.sched_getaffinity(0))
"""
        assert python(sandbox, script) == ""
        assert victim.poll() is None
        assert os.getpriority(os.PRIO_PROCESS, victim.pid) == os.getpriority(os.PRIO_PROCESS, 0)
    finally:
        victim.kill()
        victim.wait()


def test_what_belongs_to_the_whole_machine_is_refused(sandbox: LocalSandbox) -> None:
    script = """
import errno
for name, number, *arguments in [
    ("shmget", 29, 0, 4096, 0o1600), ("msgget", 68, 0, 0o1600), ("semget", 64, 0, 1, 0o1600),
    ("mq_open", 240, b"x", 66, 384, 0), ("inotify", 253), ("inotify1", 294, 0), ("syslog", 103, 3, 0, 0),
    ("unshare", 272, 0x10000000), ("keyctl", 250, 0, -3, 0), ("userfaultfd", 323, 0), ("io_uring", 425, 1, 0),
    ("bpf", 321, 0, 0, 0), ("mount", 165, b"x", b"x", b"tmpfs", 0, 0), ("another table of calls", 0x40000000 + 39),
] if os.uname().machine == "x86_64" else []:
    attempt(name, lambda: libc.syscall(number, *arguments))
libc.syscall(600)
print(errno.errorcode[ctypes.get_errno()])
"""
    assert python(sandbox, script) == "ENOSYS\n"


def test_another_sandbox_is_out_of_reach_even_if_its_place_is_known(sandbox: LocalSandbox) -> None:
    with LocalSandbox(sandbox.spec) as other:
        other.write("f", b"theirs")
        script = f"""
for place in ({str(other.workspace)!r}, {str(other.workspace.parent)!r}, {str(sandbox.workspace.parent)!r}):
    attempt(place, lambda: os.listdir(place))
    attempt("read", lambda: open(place + "/f").read())
    attempt("chmod", lambda: os.chmod(place, 0o777))
    attempt("create", lambda: open(place + "/new", "w"))
"""
        assert python(sandbox, script) == ""


def test_paths_in_commands_and_output_are_the_usual_ones(sandbox: LocalSandbox) -> None:
    sandbox.write("d/m.py", b"import sys\nprint(sys.argv[1:], __file__)\nraise SystemExit(1 / 0)\n")
    result = sandbox.exec(["python", "/workspace/d/m.py", "a=/workspace", "/workspaces", "x/workspace", "/tmp"])
    assert result.stdout == "['a=/workspace', '/workspaces', 'x/workspace', '/tmp'] /workspace/d/m.py\n"
    assert 'File "/workspace/d/m.py", line 3' in result.stderr
    assert sandbox.exec(["bash", "-c", "cd /tmp && pwd; echo x > /tmp/x && ls /tmp; which git"]).stdout == (
        "/tmp\nx\n/usr/bin/git\n"
    )
    assert str(sandbox.workspace) not in sandbox.exec(["bash", "-c", "env; pwd; mount"], merge=True).stdout


def test_the_command_ends_with_its_supervisor_s_owner(root_folder: Path) -> None:
    """However the processes are related: there is no namespace that would end them."""
    mark = f"mark-{uuid.uuid4()}"
    script = f"""
import sys, threading
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
sandbox = LocalSandbox(SandboxSpec(isolation="landlock"))
command = '''
import ctypes, os, time
ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)  # no signal at the parent's death
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
print("begun", flush=True)
time.sleep(600)  # {mark}
'''
threading.Thread(target=lambda: sandbox.exec(["python", "-c", command], timeout=600)).start()
print("started", flush=True)
"""
    if local.why_not("landlock", root_folder):
        pytest.skip("landlock does not work here")
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        give_up = time.monotonic() + 30
        while len(sleepers(mark)) < 6 and time.monotonic() < give_up:
            time.sleep(0.05)
        assert len(sleepers(mark)) >= 6
        parent.send_signal(signal.SIGKILL)
    give_up = time.monotonic() + 5
    while sleepers(mark) and time.monotonic() < give_up:
        time.sleep(0.01)
    assert sleepers(mark) == []


def sleepers(mark: str) -> list[str]:
    """Processes with `mark` in their command line."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and mark.encode() in (folder / "cmdline").read_bytes():
                found.append(folder.name)
        except OSError:
            continue
    return found


def test_old_kernels_and_other_machines_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landlock, "version", lambda: 0)
    assert "has no Landlock" in landlock.why_not()
    monkeypatch.setattr(landlock, "version", lambda: 4)
    assert "version 4" in landlock.why_not()
    assert seccomp.strict_program(network=False, memory_files=True, machine="riscv64") is None
    for machine in ("x86_64", "aarch64"):
        programs = [seccomp.strict_program(network, network, machine) for network in (False, True)]
        assert all(program is not None and len(program) % 8 == 0 for program in programs)
        assert programs[0] != programs[1]


def test_tmpdir_that_the_agent_cannot_pass_is_explained(tmp_path: Path) -> None:
    if os.geteuid() != 0 or landlock.why_not():
        pytest.skip("matters where root runs landlock")
    tmp_path.chmod(0o700)
    script = (
        "from agentgym_rtmc.environments.sandbox.local import LocalSandbox\n"
        "from agentgym_rtmc.environments.sandbox.base import SandboxSpec\n"
        "LocalSandbox(SandboxSpec(isolation='landlock'))"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert f"cannot pass {tmp_path}; set TMPDIR" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_colon_in_tmpdir_is_explained(tmp_path: Path) -> None:
    if landlock.why_not():
        pytest.skip(landlock.why_not())
    for folder, root in ((tmp_path / "a:b", tmp_path), (tmp_path, tmp_path / "a:b")):
        with pytest.raises(SandboxUnavailableError, match="has a colon; set TMPDIR"):
            landlock.Landlock(SandboxSpec(), root, folder, folder / "workspace")
