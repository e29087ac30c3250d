"""The file system an agent sees: made once per machine from the machine's own programs, and nothing else.

A root holds a Python (the running interpreter's binary and standard library, no site-packages but pytest's own few), a
shell, coreutils and their like, git, and the shared libraries these need. It holds nothing of this project, whose
installed package would contain the answers to its own tasks.

Invariants:
- Its name is a digest of what goes into it, so a changed machine gets a new root and an old one is never altered.
- It appears whole or not at all: built under a lock in a temporary folder, then renamed. A killed build leaves a
  temporary folder that the next build removes.

Layout: `<cache>/agentgym-rtmc/roots/<digest>/r` is the agent's `/`. The folder above it is an empty shell around it
that the `unshare` back end needs to turn the host's root away.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from pathlib import Path

from agentgym_rtmc.environments.sandbox import builds, root_sources, tree
from agentgym_rtmc.environments.sandbox.base import AGENT_UID
from agentgym_rtmc.environments.sandbox.root_sources import FIRST_SHELL, Sources
from agentgym_rtmc.errors import SandboxUnavailableError
from agentgym_rtmc.folders import cache_folder

LAYOUT = 5
"""Raise it when the same sources should give a different root."""
JAIL = "r"
"""Name of the agent's root inside a root folder."""
WORKDIRS = ("/workspace", "/testbed", "/home/agent")
"""Places inside where a workspace can appear; the root is read-only, so they exist beforehand."""
DEVICES = ("null", "zero", "full", "random", "urandom")

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",
    "USER": "agent",
    "LOGNAME": "agent",
    "SHELL": "/bin/sh",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "TERM": "dumb",
    "PAGER": "cat",
    # Caches in the workspace would make equal workspaces differ; hash order would make equal runs differ.
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_ADDOPTS": "-p no:cacheprovider",
    "PYTHONHASHSEED": "0",
    "PYTHONNOUSERSITE": "1",
    "GIT_EXEC_PATH": "/usr/lib/git-core",
    "GIT_TEMPLATE_DIR": "/usr/share/git-core/templates",
    "GIT_CONFIG_SYSTEM": "/etc/gitconfig",
    "GIT_PAGER": "cat",
    # Equal commands give equal commits, on any day.
    "GIT_AUTHOR_DATE": "2020-01-01T00:00:00+0000",
    "GIT_COMMITTER_DATE": "2020-01-01T00:00:00+0000",
}
"""Environment of every command in a root; `SandboxSpec.env` is added to it."""

_ETC = {
    "passwd": f"root:x:0:0:root:/root:/bin/sh\nagent:x:{AGENT_UID}:{AGENT_UID}:agent:/tmp:/bin/sh\n",
    "group": f"root:x:0:\nagent:x:{AGENT_UID}:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "hostname": "sandbox\n",
    "resolv.conf": "",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "gitconfig": "[user]\n\tname = agent\n\temail = agent@localhost\n[init]\n\tdefaultBranch = main\n"
    "[core]\n\tpager = cat\n[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n[safe]\n\tdirectory = *\n"
    "[advice]\n\tdetachedHead = false\n[color]\n\tui = false\n",
}
_lock = threading.Lock()
_ready: dict[Path, Path] = {}


def ensure_root(cache: Path | None = None) -> Path:
    """Return the root folder for this machine, building it when it is not there (seconds, about 100 MB).

    Raises SandboxUnavailableError when a program is missing (naming its package) or the cache is not writable.
    """
    parent = (cache or cache_folder()) / "roots"
    with _lock:
        if parent in _ready and _ready[parent].is_dir():
            return _ready[parent]
        try:
            sources = root_sources.collect(parent)
            root = parent / f"{LAYOUT}-{sources.digest()[:24]}"
            if not root.is_dir():
                with builds.building(parent):
                    if not root.is_dir():  # another process may have built it while we waited
                        _build(sources, parent, root)
            builds.in_use(root)
        except OSError as error:
            raise SandboxUnavailableError(
                f"cannot make the sandbox's root in {parent}: {error}; "
                "set XDG_CACHE_HOME to a writable folder with 200 MB free"
            ) from error
        _ready[parent] = root
        return root


def _build(sources: Sources, parent: Path, root: Path) -> None:
    shell = builds.unfinished(parent)
    jail = shell / JAIL
    for name in ("usr/bin", "usr/lib", "etc", "proc", "dev/shm", "tmp", "mnt", "root", "run", "home"):
        (jail / name).mkdir(parents=True, exist_ok=True)
    for workdir in WORKDIRS:
        (jail / workdir[1:]).mkdir(parents=True, exist_ok=True)
    # One flat library folder under all the names that loaders of the various distributions look in.
    for link, target in {
        "bin": "usr/bin",
        "sbin": "usr/bin",
        "lib": "usr/lib",
        "lib64": "usr/lib",
        "usr/sbin": "bin",
        "usr/lib64": "lib",
        f"usr/lib/{os.uname().machine}-linux-gnu": ".",
        "usr/local/lib64": "lib",
        "dev/fd": "/proc/self/fd",
        "dev/stdin": "/proc/self/fd/0",
        "dev/stdout": "/proc/self/fd/1",
        "dev/stderr": "/proc/self/fd/2",
    }.items():
        (jail / link).parent.mkdir(parents=True, exist_ok=True)
        (jail / link).symlink_to(target)
    for name in DEVICES:
        (jail / "dev" / name).touch()  # the back end puts the real device on top
    for name, text in _ETC.items():
        (jail / "etc" / name).write_text(text)
    for name in ("usr", "bin", "sbin", "lib", "lib64", "proc"):
        (shell / name).symlink_to(f"{JAIL}/{name}")
    for target, source in sorted(sources.files.items()):
        _copy(source, jail / target)
    for target, text in sources.texts.items():
        (jail / target).parent.mkdir(parents=True, exist_ok=True)
        (jail / target).write_text(text)
        (jail / target).chmod(0o755)
    for link, target in sources.links.items():
        (jail / link).parent.mkdir(parents=True, exist_ok=True)
        (jail / link).symlink_to(target)
    (jail / "usr/share/git-core/templates").mkdir(parents=True)
    _compile(jail, sources.library)
    _open_up(shell)
    (jail / FIRST_SHELL).chmod(0o111)
    try:
        shell.rename(root)
    except OSError:
        shutil.rmtree(shell)
        if not root.is_dir():
            raise


def _copy(source: Path, target: Path) -> None:
    """Copy contents and time (compiled Python files are checked against the time of their source)."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    status = source.stat()
    os.utime(target, ns=(status.st_mtime_ns, status.st_mtime_ns))
    target.chmod(0o755 if status.st_mode & 0o111 else 0o644)


def _compile(jail: Path, library: str) -> None:
    """Compile what came without a compiled file, or imports would pay for it in every command."""
    options = ["-I", "-S", "-m", "compileall", "-q", "-s", str(jail), "-p", "/"]
    subprocess.run(
        [root_sources.interpreter(), *options, jail / library],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,  # a few templates in the standard library are no valid Python
    )


def _open_up(shell: Path) -> None:
    """Let every user read the root, whatever the umask was: the agent is not the user who built it."""
    for folder, _, names in os.walk(shell, topdown=False):
        Path(folder).chmod(0o755)
        os.utime(folder, (tree.EPOCH, tree.EPOCH))  # `ls -l /` says the same on any day
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
