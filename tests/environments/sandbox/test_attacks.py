"""Hostile commands: each is contained, the host is unharmed, and the next command is served."""

from __future__ import annotations

import os
import resource
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agentgym_rtmc.environments.sandbox import folders
from agentgym_rtmc.environments.sandbox.base import MIB, Sandbox, WorkspacePathError

MakeSandbox = Callable[..., Sandbox]


@pytest.fixture
def make(make_local: MakeSandbox) -> MakeSandbox:
    """What runs inside is the same for both kinds of sandbox, so one is enough here."""
    return make_local


@pytest.fixture(autouse=True)
def next_command_is_served(sandbox: Sandbox) -> Iterator[None]:
    """After every attack the same sandbox still works."""
    sandbox.write("m.py", b"print('served')\n")
    yield
    result = sandbox.exec(["python", "-c", "print('served')"])
    assert result.stdout == "served\n", result


def run(sandbox: Sandbox, script: str, timeout: float | None = None) -> str:
    """Run a shell script; return its merged output."""
    return sandbox.exec(["bash", "-c", script], merge=True, timeout=timeout).stdout


def python(sandbox: Sandbox, script: str, timeout: float | None = None) -> str:
    """Run a Python script; return its merged output."""
    return sandbox.exec(["python", "-c", script], merge=True, timeout=timeout).stdout


def test_host_files_cannot_be_read(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("top secret")
    secret.chmod(0o666)
    places = [str(secret), "/etc/shadow", "/proc/1/environ", "/proc/1/root/etc/shadow", "/proc/1/cwd/", "/dev/vda"]
    places += ["/dev/sda", "/proc/kcore", "/proc/kmsg", "/root/.bashrc", str(Path(__file__))]
    if sandbox.spec.isolation != "docker":  # an image has its own logs, and engines show the kernel's objects
        places += ["/sys/kernel", "/var/log"]
    for place in places:
        output = run(sandbox, f"cat '{place}' || ls -A '{place}'")
        assert "top secret" not in output
        assert "No such file" in output or "denied" in output or "permitted" in output, (place, output)


def test_host_environment_is_not_passed_on(sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "very-private")
    monkeypatch.setenv("LD_PRELOAD_CHECK", "very-private")
    assert "very-private" not in run(sandbox, "env; cat /proc/*/environ")


def test_the_project_cannot_be_found(sandbox: Sandbox) -> None:
    assert "ModuleNotFoundError" in python(sandbox, "import agentgym_rtmc")
    assert (
        run(sandbox, "find / -iname '*agentgym*' -not -path '/proc/*' 2>/dev/null; grep -rlis agentgym /usr /etc") == ""
    )
    assert "pydantic" not in run(sandbox, "ls /usr/local/lib/python3*/site-packages")


def test_network_is_out_of_reach(sandbox: Sandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"""
import socket
for address in [("127.0.0.1", {port}), ("169.254.169.254", 80), ("192.0.2.1", 80)]:
    try:
        socket.create_connection(address, timeout=2)
        print("reached", address)
    except OSError as error:
        print("refused")
try:
    socket.getaddrinfo("example.org", 80)
    print("resolved")
except OSError:
    print("refused")
"""
        assert python(sandbox, script) == "refused\n" * 4


def test_sockets_that_no_namespace_holds_are_refused(sandbox: Sandbox) -> None:
    """A virtual machine's vsock leads to the machine that it runs on; kernel crypto and the like widen the attack."""
    if sandbox.spec.isolation == "docker":
        pytest.skip("the engine's filter decides; `docs/security.md` says which engines let vsock through")
    families = [number for number in range(46) if number not in (1, 2, 10, 16)]
    script = f"""
import socket
for family in {families}:
    for kind in (1, 2, 3, 5):
        try:
            socket.socket(family, kind)
            print("possible:", family, kind)
        except PermissionError:
            pass
"""
    assert python(sandbox, script) == ""


def test_network_can_be_asked_for(make: MakeSandbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        script = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=5); print('reached')"
        assert python(make(network=True), script) == "reached\n"


def test_abstract_sockets_of_the_host_are_out_of_reach(sandbox: Sandbox) -> None:
    name = f"\0{uuid.uuid4()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()
        output = python(sandbox, f"import socket; socket.socket(socket.AF_UNIX).connect({name!r})")
    assert "ConnectionRefusedError" in output or "PermissionError" in output


def test_fork_bomb(make: MakeSandbox) -> None:
    sandbox = make(processes=24)
    result = sandbox.exec(["python", "-c", "import os, time\nwhile True:\n    os.fork()"], timeout=1)
    assert "Resource temporarily unavailable" in result.stderr or result.note
    assert sandbox.exec(["sh", "-c", ":(){ :|:& };:; sleep 0.2; echo end"], timeout=2).code in (0, 2, 137)


def test_limits_count_per_sandbox(make: MakeSandbox) -> None:
    """One sandbox full of processes does not keep another from starting some."""
    bomb, other = make(processes=24), make(processes=24)
    attack = "import os, time\nfor _ in range(20):\n    if os.fork() == 0: time.sleep(3)\ntime.sleep(3)"
    thread = threading.Thread(target=lambda: bomb.exec(["python", "-c", attack], timeout=2))
    thread.start()
    time.sleep(0.5)
    assert run(other, "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1 & done; wait; echo fine") == "fine\n"
    thread.join()


def test_memory_bomb_of_one_process(make: MakeSandbox) -> None:
    result = make(memory_bytes=96 * MIB).exec(
        ["python", "-c", "x = []\nwhile True:\n    x.append(b'x' * 100_000)"], timeout=20
    )
    assert result.out_of_memory or "MemoryError" in result.stderr, result
    assert result.code != 0
    assert not result.timed_out


def test_memory_bomb_of_many_processes(make: MakeSandbox) -> None:
    script = "import os, time\nfor _ in range(6):\n    if os.fork() == 0: break\nx = b'x' * 40_000_000\ntime.sleep(20)"
    result = make(memory_bytes=128 * MIB).exec(["python", "-c", script], timeout=20)
    assert (result.out_of_memory, result.code, result.timed_out) == (True, 137, False), result


@pytest.mark.parametrize(
    "script",
    [
        "f = open('/dev/shm/x', 'wb')\n",
        "f = os.fdopen(os.memfd_create('x'), 'wb')\n",
        "f = open('/tmp/x', 'wb'); os.unlink('/tmp/x')\n",
        "f = open('x', 'wb'); os.unlink('x')\n",
    ],
    ids=["shared memory", "memory file", "unlinked in tmp", "unlinked in the workspace"],
)
def test_hidden_memory_and_disk(make: MakeSandbox, script: str) -> None:
    """Bytes that no process and no folder shows are counted too."""
    sandbox = make(memory_bytes=48 * MIB, file_bytes=120 * MIB, disk_bytes=80 * MIB)
    fill = f"import os, time\n{script}for _ in range(100): f.write(b'x' * (1 << 20)); f.flush()\ntime.sleep(20)"
    result = sandbox.exec(["python", "-c", fill], timeout=20)
    assert not result.timed_out
    assert (result.out_of_memory and result.code == 137) or "No space left on device" in result.stderr, result


def test_tmp_is_bounded(make: MakeSandbox) -> None:
    result = make(disk_bytes=4 * MIB, file_bytes=64 * MIB).exec(["sh", "-c", "head -c 50000000 /dev/zero > /tmp/x"])
    assert "No space left" in result.stderr


def test_gigabytes_of_output(sandbox: Sandbox) -> None:
    result = sandbox.exec(["sh", "-c", "head -c 10000000000 /dev/zero"], timeout=20)
    assert not result.timed_out
    assert "64 MiB of output" in result.note
    assert result.truncated
    assert len(result.stdout) < sandbox.spec.output_bytes + 100


def test_devices_mounts_and_namespaces(sandbox: Sandbox) -> None:
    script = r"""
import ctypes, os, stat
libc = ctypes.CDLL(None, use_errno=True)
status_filter = libc.prctl(21, 0, 0, 0, 0) == 2 and SHARED_MEMORY_IS_REFUSED
tries = {
    "mount": lambda: libc.mount(b"tmpfs", b"/workspace", b"tmpfs", 0, None),
    "remount": lambda: libc.mount(None, b"/", None, 0x20 | 0x1000, None),
    "umount": lambda: libc.umount2(b"/proc", 2),
    "user namespace": lambda: libc.unshare(0x10000000),
    "mount namespace": lambda: libc.unshare(0x00020000),
    "chroot": lambda: libc.chroot(b"/workspace"),
    "pivot_root": lambda: libc.syscall(155, b"/workspace", b"/workspace"),
    "setuid": lambda: libc.setuid(0),
    "setgid": lambda: libc.setgid(0),
    "mknod": lambda: libc.mknod(b"disk", stat.S_IFBLK | 0o666, os.makedev(254, 0)),
    "sethostname": lambda: libc.sethostname(b"x", 1),
    "ptrace 1": lambda: libc.ptrace(16, 1, None, None),
    "reboot": lambda: libc.reboot(0),
}
for name, attempt in tries.items():
    if attempt() == 0:
        print("possible:", name)
pid = libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) if os.uname().machine == "x86_64" else -1
if pid == 0:
    os._exit(0)
if pid > 0:
    print("possible: clone into a user namespace")
if status_filter and libc.shmget(0, 4096, 0o1600) >= 0:
    print("possible: shared memory that belongs to nobody")
for name in ("/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/proc/1/mem", "/dev/mem", "/dev/kmsg", "/dev/vda"):
    try:
        open(name, "r+b").close()
        print("possible:", name)
    except OSError:
        pass
capabilities = (ctypes.c_uint32 * 6)()
assert libc.capget((ctypes.c_uint32 * 2)(0x20080522, 0), capabilities) == 0
print(list(capabilities), [libc.prctl(47, 1, number, 0, 0) for number in range(40) if libc.prctl(47, 1, number, 0, 0)])
print("no new privileges:", libc.prctl(39, 0, 0, 0, 0))
"""
    # Containers have a shared memory of their own, which `test_containers` looks at.
    script = script.replace("SHARED_MEMORY_IS_REFUSED", str(sandbox.spec.isolation != "docker"))
    assert python(sandbox, script) == "[0, 0, 0, 0, 0, 0] []\nno new privileges: 1\n"


def test_set_id_programs_gain_nothing(sandbox: Sandbox) -> None:
    assert run(sandbox, "cp /usr/bin/id mine && chmod 6755 mine && ./mine -u") == "65534\n"
    assert run(sandbox, "find / -perm /6000 -type f -not -path '/proc/*' -not -path '/workspace/*' 2>/dev/null") == ""


def test_the_root_cannot_be_changed(sandbox: Sandbox, root_folder: Path) -> None:
    before = sorted(str(path) for path in (root_folder / "r/usr/bin").iterdir())
    run(sandbox, "rm -rf /usr /etc /bin /lib* /home; rm -f /bin/sh; echo broken > /bin/sh; touch /new /etc/new")
    assert sorted(str(path) for path in (root_folder / "r/usr/bin").iterdir()) == before
    assert not (root_folder / "r/new").exists()
    assert run(sandbox, "echo shell works") == "shell works\n"


def test_signals_stay_inside(sandbox: Sandbox) -> None:
    output = python(
        sandbox,
        f"import os\nfor pid in (1, {os.getpid()}, {os.getppid()}):\n"
        "    try: os.kill(pid, 9); print('sent', pid)\n    except OSError as error: print(error.strerror)",
    )
    assert f"sent {os.getpid()}" not in output
    assert run(sandbox, "kill -9 -1; echo survived").endswith("survived\n")
    assert sandbox.exec(["sh", "-c", "sleep 9 & kill -9 -1; kill -9 $$"]).code == 137


def test_nothing_of_the_host_is_open(sandbox: Sandbox) -> None:
    script = """
import os
for number in range(1024):
    try: print(number, os.fstat(number) is not None, end="; ")
    except OSError: pass
"""
    assert python(sandbox, script) == "0 True; 1 True; 2 True; "


def test_other_workspaces_cannot_be_seen(make: MakeSandbox, sandbox: Sandbox) -> None:
    other = make()
    other.write("theirs", b"private\n")
    assert run(sandbox, "grep -rl private / --include=theirs 2>/dev/null") == ""


def test_the_engine_s_socket_is_out_of_reach(sandbox: Sandbox) -> None:
    """Neither where engines have theirs, nor anywhere: one is listening where everybody may connect."""
    with tempfile.TemporaryDirectory(prefix="open-", dir="/var/tmp") as place, socket.socket(socket.AF_UNIX) as server:
        Path(place).chmod(0o777)
        server.bind(f"{place}/engine.sock")
        Path(place, "engine.sock").chmod(0o777)
        server.listen()
        places = [
            f"{place}/engine.sock",
            os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")[len("unix://") :],
        ]
        places += ["/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock"]
        places += ["/run/podman/podman.sock", "/run/dbus/system_bus_socket", "/run/systemd/private", "/dev/log"]
        script = f"""
import os, socket
for place in {places!r}:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            socket.socket(socket.AF_UNIX, kind).connect(place)
            print("reached", place)
        except OSError:
            pass
print([name for name in os.environ if "DOCKER" in name or "AGENTGYM" in name])
"""
        assert python(sandbox, script) == "[]\n"


def test_links_and_archives_lead_nowhere(sandbox: Sandbox) -> None:
    name = f"escape-{uuid.uuid4()}"
    script = f"""
import io, os, subprocess, tarfile
with tarfile.open("a.tar", "w") as archive:
    def add(path, kind=tarfile.REGTYPE, link=""):
        member = tarfile.TarInfo(path)
        member.type, member.linkname = kind, link
        archive.addfile(member, io.BytesIO())
    for place in ("../" * 20, "../", "/", "/etc/", "/tmp/../", "/proc/self/root/"):
        add(place + {name!r})
    for number, target in enumerate(("/", "/etc", "..", "/proc/1/root", "/proc/1/cwd")):
        add(f"up{{number}}", tarfile.SYMTYPE, target)
        add(f"up{{number}}/" + {name!r})
    for target in ("/etc/passwd", "/bin/sh", "/proc/1/environ", "../../../../etc/shadow"):
        add("hard" + target.replace("/", "-"), tarfile.LNKTYPE, target)
subprocess.run(["tar", "-xPf", "a.tar", "--overwrite"], stderr=subprocess.DEVNULL)
with tarfile.open("a.tar") as archive:
    for member in archive:
        try: archive.extract(member)
        except Exception: pass
for target in ("/etc/passwd", "/etc/shadow", "/bin/sh", "/proc/1/environ", "/proc/self/mem"):
    try: os.link(target, "mine" + target.replace("/", "-"))
    except OSError: pass
print([name for name in os.listdir(".") if name.startswith("mine")])
"""
    assert python(sandbox, script) == "[]\n"
    run = folders.run_folder()
    for place in (Path("/"), Path("/etc"), Path("/tmp"), Path("/var/tmp"), run.parent, run, *run.iterdir()):
        assert not (place / name).exists(), place
    for number in range(5):
        with pytest.raises(WorkspacePathError):
            sandbox.write(f"up{number}/{name}", b"x")
        with pytest.raises(WorkspacePathError):
            sandbox.read(f"up{number}/passwd")


def test_a_held_stdout_does_not_hold_the_caller(sandbox: Sandbox) -> None:
    """Neither in the background, in a session of its own, nor handed on through a socket or a pipe."""
    script = """
import os, time
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.dup2(1, 50); os.dup2(2, 51)
            while True: time.sleep(1)
        os._exit(0)
print("done", flush=True)
"""
    result = sandbox.exec(["python", "-c", script], timeout=8)
    assert (result.stdout, result.code, result.timed_out) == ("done\n", 0, False)


def test_a_deleted_or_replaced_shell_is_there_again(sandbox: Sandbox) -> None:
    run(sandbox, "rm -f /bin/sh /bin/bash /usr/bin/sh /usr/bin/bash; cp /bin/true sh; cp /bin/true bash; hash -r")
    assert run(sandbox, "echo $0; type -P sh") != ""
    assert sandbox.exec(["sh", "-c", "echo still a shell"]).stdout == "still a shell\n"


def test_a_full_workspace_is_the_agent_s_doing(make: MakeSandbox) -> None:
    """It must not look like a failing machine, which would have the episode tried again, and loses no old file."""
    sandbox = make(disk_bytes=2 * MIB, disk_files=50)
    sandbox.write("old", b"as it was")
    run(sandbox, "head -c 30000000 /dev/zero > big")
    with pytest.raises(WorkspacePathError, match="no room"):
        sandbox.write("old", b"x" * 100_000)
    assert sandbox.read("old") == b"as it was"
    assert run(sandbox, "rm big; ls -A; for i in $(seq 100); do : > n$i; done 2>/dev/null") == "old\n"
    with pytest.raises(WorkspacePathError, match="no room"):
        sandbox.write("a/b/c", b"x")


def test_no_right_to_claim_processors_is_passed_on(make: MakeSandbox) -> None:
    kinds = (13, 14)  # RLIMIT_NICE, RLIMIT_RTPRIO
    before = [resource.getrlimit(kind) for kind in kinds]
    try:
        for kind in kinds:
            resource.setrlimit(kind, (10, 10))
    except (ValueError, PermissionError):
        pytest.skip("only the mighty can claim them")
    try:
        script = f"import resource; print([resource.prlimit(0, kind) for kind in {kinds}])"
        assert python(make(), script) == "[(0, 0), (0, 0)]\n"
    finally:
        for kind, limits in zip(kinds, before, strict=True):
            resource.setrlimit(kind, limits)


def test_a_limit_of_the_trainer_s_own_is_no_failure(make: MakeSandbox) -> None:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if make().spec.isolation == "docker":
        pytest.skip("the engine has limits of its own, and refuses")
    assert run(make(open_files=2 * most), "ulimit -n; ulimit -Hn") == f"{most}\n{most}\n"


def test_a_name_that_is_no_text_hides_no_process(sandbox: Sandbox) -> None:
    rename = "import ctypes, os, time\nctypes.CDLL(None).prctl(15, b'\\xff\\n) R 1', 0, 0, 0)\n"
    result = sandbox.exec(["python", "-c", f"{rename}os.fork() or os.setsid(); time.sleep(60)"], timeout=1)
    assert (result.timed_out, result.code) == (True, 137), result
