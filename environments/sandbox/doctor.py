"""What `agentgym-rtmc doctor` says about sandboxes on this machine. Looks, tries harmless commands, changes nothing
but the cache, where the root is built on first use."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agentgym_rtmc.doctor import Check
from agentgym_rtmc.environments.sandbox import cgroups, layers, local, root, root_sources, seccomp
from agentgym_rtmc.errors import SandboxUnavailableError
from agentgym_rtmc.folders import cache_folder

_NEEDED_BYTES = 300 << 20
_FREE_SPACE = "free some space, or point XDG_CACHE_HOME (root) and TMPDIR (workspaces) to another disk"


def checks() -> Iterator[Check]:
    """All findings of this room."""
    if sys.platform != "linux":
        fix = "use WSL2, a Linux virtual machine or a container"
        yield Check("sandbox", "missing", f"local sandboxes need Linux; this is {sys.platform}", fix)
        return
    if os.environ.get(local.UNSAFE_SWITCH) == "1":
        fix = f"unset {local.UNSAFE_SWITCH}"
        yield Check("sandbox isolation", "note", "switched off: commands can do what your user can", fix)
    yield from _root()
    yield from _limits()
    yield from _held()
    yield from _space()


def _root() -> Iterator[Check]:
    missing = root_sources.missing_programs()
    if missing:
        detail = "; ".join(f"{', '.join(names)} (package {package})" for package, names in missing.items())
        packages = " ".join(package.split()[0] for package in missing)
        yield Check("sandbox programs", "missing", f"missing: {detail}", f"install: {packages}")
        return
    yield Check("sandbox programs", "ok", "everything that the sandbox's root is made of is installed")
    try:
        folder = root.ensure_root()
    except SandboxUnavailableError as error:
        yield Check("sandbox root", "missing", str(error), "set XDG_CACHE_HOME to a writable folder")
        return
    yield Check("sandbox root", "ok", str(folder))
    if not (folder / root.JAIL / "usr/local/bin/pytest").exists():
        fix = "pip install pytest, where agents are to use it"
        yield Check("pytest in sandboxes", "note", "not installed beside this program, so agents lack it", fix)
    yield from _backends(folder)


def _backends(folder: Path) -> Iterator[Check]:
    reasons = {name: local.why_not(name, folder) for name in local.ISOLATING}
    works = [name for name, reason in reasons.items() if not reason]
    for name, reason in reasons.items():
        if not reason:
            yield Check(f"sandbox by {name}", "ok", "a trial command ran" + (" (in use)" if name == works[0] else ""))
        else:
            fix = f"not needed: {works[0]} works" if works else local.HELP
            yield Check(f"sandbox by {name}", "note" if works else "missing", reason, fix)


def _limits() -> Iterator[Check]:
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    if children.exists():
        yield Check("sandbox watchdog", "ok", "memory, disk and processes of a command can be added up")
    else:
        fix = "use a kernel built with CONFIG_PROC_CHILDREN"
        yield Check("sandbox watchdog", "note", "memory of several processes together is not limited", fix)
    version = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2] if part.isdigit())
    if version >= (5, 14):
        yield Check("sandbox process limit", "ok", "counted per sandbox by the kernel")
    else:
        detail = "this kernel counts a user's processes over all sandboxes, so many at once get in each other's way"
        yield Check("sandbox process limit", "note", detail, "use Linux 5.14 or newer, or a larger `processes` limit")
    if seccomp.column() is None:
        detail = f"none for {platform.machine()}; namespaces and dropped capabilities still hold"
        yield Check("system-call filter", "note", detail, "use x86_64 or aarch64")


def _held() -> Iterator[Check]:
    """Which limits the kernel holds, and which only the watchdog does."""
    reasons = cgroups.reasons()
    for controller, what in {"memory": "memory", "pids": "number of processes", "cpu": "share of CPUs"}.items():
        name = f"sandbox {controller} group"
        if controller not in reasons:
            yield Check(name, "ok", f"the kernel holds the {what} of a sandbox as a whole")
        else:
            instead = "is not limited as a whole" if controller == "cpu" else "is only watched as a whole"
            yield Check(name, "note", f"the {what} {instead}: {reasons[controller]}", cgroups.DELEGATE)
    reason = layers.why_not()
    if reason:
        detail = f"workspaces are plain folders, only watched, and a fork copies them: {reason}"
        yield Check("sandbox workspaces", "note", detail, "run as root with CAP_SYS_ADMIN (a privileged container)")
    else:
        detail = "the kernel holds the size, and forks take constant time; they lie in memory or swap"
        yield Check("sandbox workspaces", "ok", detail)


def _space() -> Iterator[Check]:
    for name, folder in (("cache", cache_folder()), ("temporary folder", Path(tempfile.gettempdir()))):
        existing = next(path for path in (folder, *folder.parents) if path.exists())
        free = shutil.disk_usage(existing).free
        detail = f"{free >> 20} MiB free in {folder}"
        if free >= _NEEDED_BYTES:
            yield Check(f"space in the {name}", "ok", detail)
        else:
            yield Check(f"space in the {name}", "missing", detail, _FREE_SPACE)
