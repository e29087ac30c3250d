#!/usr/bin/env python3
"""A private container engine for tests: `engine.py start DIR`, `engine.py stop DIR`, `engine.py crash DIR`.

Needs root and a Debian-like machine's `docker.io`, which is installed where it is missing. The engine has its socket,
data and processes below DIR and touches nothing else: no bridge, no firewall rules, no system service.

Invariants: `start` returns when the engine answers and prints its address; starting again after a `crash` continues
with the same data; after `stop` nothing of it is left: no process, mount, control group or folder.
"""

import argparse
import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PATIENCE = 60.0
"""Seconds to wait for the engine to answer, or for its processes to end."""
PROGRAMS = {"dockerd": "docker.io", "containerd": "containerd", "runc": "runc"}
FLAGS = ("--iptables=false", "--ip6tables=false", "--ip-forward=false", "--ip-masq=false", "--bridge=none")


def main() -> None:
    """Parse the command line and do it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["start", "stop", "crash"])
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    folder = options.folder.resolve()
    {"start": start, "stop": stop, "crash": crash}[options.action](folder)


def start(folder: Path) -> None:
    """Start the engine of `folder`, made if need be, and print its address when it answers."""
    if os.geteuid() != 0:
        sys.exit("engine: a private container engine needs root")
    _install()
    folder.mkdir(parents=True, exist_ok=True)
    if len(os.fsencode(_socket(folder))) > 100:
        sys.exit(f"engine: {folder} is too long for a socket's address; choose a shorter folder")
    if not _answers(folder):
        _remove_stale(folder)
        argv = ["dockerd", "-H", f"unix://{_socket(folder)}", "--pidfile", str(folder / "docker.pid")]
        argv += ["--exec-root", str(folder / "exec"), "--data-root", str(folder / "data")]
        argv += ["--cgroup-parent", f"/{_group(folder)}", *FLAGS]
        with (folder / "log").open("ab") as log:
            engine = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd="/"
            )
        give_up = time.monotonic() + PATIENCE
        while not _answers(folder):
            if engine.poll() is not None or time.monotonic() > give_up:
                tail = "\n".join((folder / "log").read_text(errors="replace").splitlines()[-15:])
                sys.exit(f"engine: it does not answer; the end of {folder / 'log'}:\n{tail}")
            time.sleep(0.02)
    print(f"unix://{_socket(folder)}")


def crash(folder: Path) -> None:
    """Kill the engine as a crash would: at once, together with its containerd, while containers run."""
    pids = [pid for pid in _processes(folder) if _name(pid) in ("dockerd", "containerd")]
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    _wait_gone(pids)


def stop(folder: Path) -> None:
    """End the engine with all it runs, and remove what it had."""
    if _answers(folder):
        _remove_containers(folder)
    daemons = [pid for pid in _processes(folder) if _name(pid) == "dockerd"]
    for pid in daemons:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    _wait_gone(daemons, seconds=15)
    # What a crash left: containers below their shims, the shims, containerd.
    while left := _processes(folder):
        for pid in [*(child for parent in left for child in _below(parent)), *left]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _wait_gone(left)
    for mount in reversed(_mounts(folder)):
        subprocess.run(["umount", "--lazy", mount], check=False)
    shutil.rmtree(folder, ignore_errors=True)
    for group in Path("/sys/fs/cgroup").glob(f"**/{_group(folder)}"):
        for path in [*sorted((p for p in group.rglob("*") if p.is_dir()), reverse=True), group]:
            with contextlib.suppress(OSError):  # a process in it is just ending
                path.rmdir()
    if folder.exists():
        sys.exit(f"engine: {folder} could not be removed")


def _socket(folder: Path) -> Path:
    return folder / "docker.sock"


def _group(folder: Path) -> str:
    return f"engine-{folder.name}"


def _install() -> None:
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    if not missing:
        return
    if shutil.which("apt-get") is None:
        sys.exit(f"engine: {', '.join(missing)} missing; install a container engine that has `dockerd`")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for argv in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *missing]):
        done = subprocess.run(["apt-get", *argv], env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"engine: apt-get {argv[0]} failed: {done.stderr.strip()[-500:]}")


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=PATIENCE)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _request(folder: Path, method: str, path: str) -> bytes:
    connection = _UnixConnection(_socket(folder))
    try:
        connection.request(method, path)
        return connection.getresponse().read()
    finally:
        connection.close()


def _answers(folder: Path) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return _request(folder, "GET", "/_ping") == b"OK"
    return False


def _remove_containers(folder: Path) -> None:
    """Without this the engine would give each container its time to end."""
    import json

    with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
        for row in json.loads(_request(folder, "GET", "/containers/json?all=1")):
            _request(folder, "DELETE", f"/containers/{row['Id']}?force=1&v=1")


def _processes(folder: Path) -> list[int]:
    """The engine's own processes: those with a path below the folder, or the folder itself, on their command line."""
    needles = (os.fsencode(f"{folder}/"), os.fsencode(folder) + b"\0")
    mine, found = (os.getpid(), os.getppid()), []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) not in mine:
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes()
                if any(needle in line for needle in needles) and _name(int(entry.name)) in _NAMES:
                    found.append(int(entry.name))
    return found


_NAMES = ("dockerd", "containerd", "containerd-shim", "runc", "docker-proxy")


def _name(pid: int) -> str:
    """Name of a process; the kernel cuts it at 15 characters."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _below(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for word in (task / "children").read_text().split():
                found += [int(word), *_below(int(word))]
    return found


def _wait_gone(pids: list[int], seconds: float = PATIENCE) -> None:
    give_up = time.monotonic() + seconds
    while any(_alive(pid) for pid in pids) and time.monotonic() < give_up:
        time.sleep(0.02)


def _alive(pid: int) -> bool:
    with contextlib.suppress(OSError, IndexError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def _mounts(folder: Path) -> list[str]:
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if point.startswith(f"{folder}/")]


def _remove_stale(folder: Path) -> None:
    """Remove the notes a killed engine left of its processes: their numbers may be somebody else's by now."""
    for note in (folder / "docker.pid", folder / "exec/containerd/containerd.pid"):
        with contextlib.suppress(OSError, ValueError):
            if int(note.read_text()) not in _processes(folder):
                note.unlink()


if __name__ == "__main__":
    main()
