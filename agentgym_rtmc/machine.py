"""The ground floor's own machine checks: Python, packages, torch and its device, disk, memory, cache folder.

Invariants: a check changes nothing it leaves behind; torch is imported only if it is installed, and only here.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agentgym_rtmc.doctor import Check
from agentgym_rtmc.extras import EXTRAS, install_hint
from agentgym_rtmc.folders import cache_folder

_GIB = 1024**3
_LOW_DISK, _LOW_MEMORY = 2 * _GIB, 3 * _GIB


def checks() -> Iterator[Check]:
    """Yield the findings, the fast ones first."""
    yield _python()
    yield _core_packages()
    yield from _extras()
    yield _disk()
    yield _memory()
    yield _cache()
    yield _torch()


def _python() -> Check:
    system = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
    if platform.system() != "Linux":
        return Check("python", "note", f"{system}: no local sandbox", "run in Docker or, on Windows, in WSL2")
    return Check("python", "ok", f"{system}, {len(os.sched_getaffinity(0))} cores")


def _core_packages() -> Check:
    requirements = importlib.metadata.requires("agentgym-rtmc") or []
    names = [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in requirements if "extra ==" not in line]
    found, absent = _versions(names)
    if absent:
        return Check("core packages", "missing", f"not installed: {', '.join(absent)}", "pip install agentgym-rtmc")
    return Check("core packages", "ok", found)


def _extras() -> Iterator[Check]:
    for extra in dict.fromkeys(EXTRAS.values()):
        packages = [package for package, owner in EXTRAS.items() if owner == extra]
        found, absent = _versions(packages)
        if absent:
            detail = f"not installed: {', '.join(absent)}" + (f" (there: {found})" if found else "")
            yield Check(f"extra {extra}", "note", detail, install_hint(packages[0]))
        else:
            yield Check(f"extra {extra}", "ok", found)


def _versions(packages: list[str]) -> tuple[str, list[str]]:
    """Return "name version, …" of the packages found, and the names of the others."""
    found, absent = [], []
    for package in packages:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            absent.append(package)
    return ", ".join(found), absent


def _disk() -> Check:
    here = Path.cwd()
    free = shutil.disk_usage(here).free
    detail = f"{free / _GIB:.1f} GiB free in {here}"
    if free < _LOW_DISK:
        return Check("disk", "note", detail, "run folders and checkpoints may fill it; make room or set run.folder")
    return Check("disk", "ok", detail)


def _memory() -> Check:
    free = _available_memory()
    if free is None:
        return Check("memory", "note", "cannot be read on this system")
    detail = f"{free / _GIB:.1f} GiB available"
    if free < _LOW_MEMORY:
        return Check("memory", "note", detail, "close other programs or run fewer episodes at once")
    return Check("memory", "ok", detail)


def _available_memory() -> int | None:
    """Return the bytes this process can still use, by the machine and by its control group. None: unknown."""
    try:
        fields = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        return min(free, max(0, limit - int((group / "memory.current").read_text())))
    except (OSError, ValueError):
        # No limit ("max"), or another version of control groups.
        return free


def _cache() -> Check:
    folder = cache_folder()
    # The nearest folder that exists, so that looking makes nothing.
    place = next(path for path in (folder, *folder.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=place):
            return Check("cache folder", "ok", str(folder))
    except OSError as error:
        detail = f"{folder} cannot be written: {error.strerror}"
        return Check("cache folder", "missing", detail, "set XDG_CACHE_HOME to a folder of yours")


def _torch() -> Check:
    try:
        import torch
    except ModuleNotFoundError:
        return Check("torch", "note", "not installed: credit, environments and signatures work", install_hint("torch"))
    except (ImportError, OSError) as error:
        return Check("torch", "missing", f"cannot be imported: {error}", "reinstall torch")
    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
        return Check("torch", "ok", f"{torch.__version__} on {', '.join(names)}")
    detail = f"{torch.__version__} on the CPU with {torch.get_num_threads()} threads"
    if torch.version.cuda:
        return Check("torch", "note", f"{detail}: built for CUDA {torch.version.cuda}, but it sees no GPU", "")
    return Check("torch", "ok", detail)
