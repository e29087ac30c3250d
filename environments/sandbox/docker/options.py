"""From a `SandboxSpec` to what the engine is asked for: everything that keeps a container in is listed here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from docker.types import Mount, Ulimit

from agentgym_rtmc.environments.sandbox.base import AGENT_UID, MIB, SandboxSpec
from agentgym_rtmc.environments.sandbox.docker import labels, scripts
from agentgym_rtmc.environments.sandbox.docker.images import Image

AGENT = f"{AGENT_UID}:{AGENT_UID}"
_LEAST_PROCESSES = 24
"""The engine's own helper needs some threads for a moment, before it becomes the agent's command."""
_OWN_BYTES = 16 * MIB
"""Memory beside the agent's: the first processes, our shell, and the engine's helper for a moment."""

DEFAULTS = {
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    # Caches in the workspace would make equal workspaces differ; hash order would make equal runs differ.
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_ADDOPTS": "-p no:cacheprovider",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
    # Equal commands give equal commits, on any day.
    "GIT_AUTHOR_DATE": "2020-01-01T00:00:00+0000",
    "GIT_COMMITTER_DATE": "2020-01-01T00:00:00+0000",
}
"""Environment of commands unless the image or the spec says otherwise."""
FIXED = {"HOME": "/tmp", "USER": "agent", "LOGNAME": "agent", "SHELL": "/bin/sh"}
"""Environment of commands whatever the image says: it speaks of another user. The spec may differ."""


def environment(spec: SandboxSpec, image_env: Sequence[str]) -> dict[str, str]:
    """Environment of the agent's commands: defaults, the image's own, ours, the spec's; the later wins."""
    image = dict(line.split("=", 1) for line in image_env if "=" in line)
    return DEFAULTS | image | FIXED | spec.env


def most_processes(spec: SandboxSpec) -> int:
    """How many processes and threads a container may have."""
    return max(spec.processes + scripts.ALWAYS_THERE, _LEAST_PROCESSES)


def create_arguments(
    spec: SandboxSpec, image: Image, slot: str | None, base_bytes: int = 0, base_files: int = 0
) -> dict[str, Any]:
    """Keyword arguments of `APIClient.create_container`.

    `slot`: folder of the engine's machine on which the workspace will be mounted; None puts the workspace into a memory
    file system of the container's own, or, with a writable root, where the image has it. `base_bytes`, `base_files`:
    room for what such a file system starts with.
    """
    safe = "nosuid,nodev,exec"
    counted = "" if image.engine.is_podman else f",nr_inodes={spec.disk_files + 1}"  # one is the folder itself
    tmpfs = {
        # What an image declares as a volume would be a folder of the engine's machine without a limit.
        **{place: f"size={spec.disk_bytes},mode=0755,{safe}" for place in image.volumes if place != spec.workdir},
        scripts.FOLDER: f"size={32 * MIB},mode=0755,{safe}",
        "/tmp": f"size={spec.disk_bytes},mode=1777,{safe}{counted}",
    }
    if not image.engine.is_podman:  # which makes this one itself
        tmpfs["/dev/shm"] = f"size={spec.disk_bytes},mode=1777,nosuid,nodev,noexec{counted}"
    mounts, to_open = [], list[str]()
    if slot is not None:
        mounts.append(Mount(target=spec.workdir, source=slot, type="bind", propagation="rslave"))
    elif not spec.writable_root:
        tmpfs[spec.workdir] = f"size={spec.disk_bytes + base_bytes},{safe},"
        if image.engine.is_podman:  # it takes neither an owner nor a number of files
            tmpfs[spec.workdir] += "notmpcopyup"
            to_open.append(spec.workdir)
        else:
            files = spec.disk_files + base_files + 1  # one is the folder itself
            tmpfs[spec.workdir] += f"nr_inodes={files},mode=0755,uid={AGENT_UID},gid={AGENT_UID}"
    memory = spec.memory_bytes + _OWN_BYTES + (0 if spec.writable_root else spec.disk_bytes + base_bytes)
    limits = {
        "cpu": (spec.cpu_seconds, spec.cpu_seconds + 1),
        "fsize": (spec.file_bytes, spec.file_bytes),
        "nofile": (spec.open_files, spec.open_files),
        "core": (0, 0),
        "nice": (0, 0),
        "rtprio": (0, 0),
    }
    host = image.engine.slow.create_host_config(
        auto_remove=True,
        init=True,
        network_mode="host" if spec.network else "none",
        nano_cpus=math.ceil(spec.cpus * 1e9),
        mem_limit=memory,
        memswap_limit=memory,
        pids_limit=most_processes(spec),
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        read_only=not spec.writable_root,
        tmpfs=tmpfs,
        shm_size=spec.disk_bytes,
        mounts=mounts,
        ulimits=[Ulimit(name=name, soft=soft, hard=hard) for name, (soft, hard) in limits.items()],
        # System V objects would outlive their command: shared memory that no process holds, and all the others.
        sysctls={"kernel.shm_rmid_forced": "1", "kernel.msgmni": "0", "kernel.sem": "0 0 0 0"},
        # The machine's own name servers are nobody's business here.
        dns=None if spec.network else ["127.0.0.1"],
        dns_search=None if spec.network else ["."],
        log_config={"Type": "none"},
    )
    return {
        "image": image.id,
        "entrypoint": ["/bin/sh", "-c", scripts.MAIN, "sh", str(math.ceil(spec.ttl)), *to_open],
        "command": [],
        "user": "0:0",
        "hostname": None if spec.network else "sandbox",
        "working_dir": "/",
        "environment": environment(spec, image.env),
        "labels": labels.labels(spec.ttl),
        "stdin_open": True,
        "healthcheck": {"test": ["NONE"]},
        "host_config": host,
    }
