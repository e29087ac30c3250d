"""What `agentgym-rtmc doctor` says about containers: the engine, the limits it can hold, ways of workspaces, space.

Tries a harmless container of an image that is there; fetches and changes nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym_rtmc.doctor import Check
from agentgym_rtmc.errors import AgentGymError
from agentgym_rtmc.extras import install_hint

if TYPE_CHECKING:
    from agentgym_rtmc.environments.sandbox.docker.engine import Engine

_NEEDED_BYTES = 10 << 30
_TESTED_API = (1, 41)
_KERNEL = "boot the engine's machine with cgroup_enable=memory swapaccount=1"
_LIMITS = {
    "MemoryLimit": ("memory", _KERNEL),
    "SwapLimit": ("swap", _KERNEL),
    "CpuCfsQuota": ("CPU", "use a kernel built with CONFIG_CFS_BANDWIDTH"),
    "PidsLimit": ("processes", "use a kernel built with CONFIG_CGROUP_PIDS"),
}
_ROOTLESS = "enable delegation of control groups to users (systemd: Delegate=yes in user@.service), or run it as root"


def checks() -> Iterator[Check]:
    """All findings about containers."""
    try:
        from agentgym_rtmc.environments.sandbox.docker.engine import connect
    except ModuleNotFoundError as error:
        yield Check("container engine", "note", f"{error.name} is not installed: no containers", install_hint("docker"))
        return
    try:
        engine = connect()
        info = engine.info
    except AgentGymError as error:
        fix = "only needed for tasks that name an image: start Docker or `podman system service`, or set DOCKER_HOST"
        yield Check("container engine", "note", str(error), fix)
        return
    yield _engine(engine.address, engine.quick.version())
    yield from _limits(info)
    yield _confinement(info)
    yield _init(info)
    yield _workspaces(engine)
    detail = "the engine cannot limit what is written there; a watchdog measures it and kills what is past its limit"
    yield Check("writable roots", "note", detail, "leave writable_root off where an image works without it")
    yield _space(info)
    yield from _leftovers(engine)


def _engine(address: str, version: dict[str, Any]) -> Check:
    parts = [f"{part['Name']} {part['Version']}" for part in version.get("Components") or ()]
    api = str(version.get("ApiVersion", ""))
    detail = f"{', '.join(parts) or version.get('Version', 'unknown')}, API {api}, at {address}"
    numbers = tuple(int(part) for part in api.split(".") if part.isdigit())
    if numbers < _TESTED_API:
        return Check("container engine", "note", detail, "use Docker 20.10 or newer; older ones are not tested")
    return Check("container engine", "ok", detail)


def _limits(info: dict[str, Any]) -> Iterator[Check]:
    version = f"cgroup v{info.get('CgroupVersion') or 1} by {info.get('CgroupDriver') or 'nobody'}"
    missing = {name: fix for key, (name, fix) in _LIMITS.items() if not info.get(key)}
    if info.get("CgroupDriver") == "none":
        missing = dict.fromkeys((name for name, _ in _LIMITS.values()), _ROOTLESS)
    if not missing:
        yield Check("container limits", "ok", f"memory, swap, CPU and processes are held ({version})")
    for name, fix in missing.items():
        yield Check(f"container limit on {name}", "missing", f"the engine cannot hold it here ({version})", fix)


def _confinement(info: dict[str, Any]) -> Check:
    options = [option.partition(",")[0].removeprefix("name=") for option in info.get("SecurityOptions") or ()]
    if "seccomp" in options:
        return Check("container confinement", "ok", ", ".join(options))
    fix = "use an engine built with seccomp, on a kernel with CONFIG_SECCOMP_FILTER"
    return Check("container confinement", "missing", "the engine has no system-call filter", fix)


def _init(info: dict[str, Any]) -> Check:
    if info.get("InitBinary"):
        return Check("container init", "ok", str(info["InitBinary"]))
    return Check(
        "container init", "note", "the engine names none", "install tini (docker-init), or catatonit for podman"
    )


def _workspaces(engine: Engine) -> Check:
    from agentgym_rtmc.environments.sandbox.docker import images, ways

    there = sorted(engine.quick.images(), key=lambda row: row["Size"])
    named = [tag for row in there for tag in row.get("RepoTags") or () if tag != "<none>:<none>"]
    if not named:
        return Check("container workspaces", "note", "no image is here to try", "agentgym-rtmc prefetch IMAGE")
    try:
        reason = ways.why_no_overlay(images.find(engine, named[0]))
    except AgentGymError as error:
        return Check("container workspaces", "note", f"could not be tried with {named[0]}: {error}", "")
    if not reason:
        return Check("container workspaces", "ok", "mounted from this machine: forks take milliseconds")
    fix = "works all the same; for quick forks run as root on the engine's own machine"
    return Check("container workspaces", "note", f"copied, which makes forks slow: {reason}", fix)


def _space(info: dict[str, Any]) -> Check:
    root = Path(info.get("DockerRootDir") or "/")
    try:
        free = shutil.disk_usage(root).free
    except OSError:
        return Check("space for images", "note", f"{root} is not on this machine or closed to you", "")
    detail = f"{free >> 30} GiB free in {root}"
    if free < _NEEDED_BYTES:
        return Check("space for images", "note", detail, "docker image prune, or move the engine's data root")
    return Check("space for images", "ok", detail)


def _leftovers(engine: Engine) -> Iterator[Check]:
    from agentgym_rtmc.environments.sandbox.docker.leftovers import engine_leftovers

    left = engine_leftovers(engine)
    if left:
        yield Check("container leftovers", "note", f"{len(left)} of dead runs", "agentgym-rtmc clean")
