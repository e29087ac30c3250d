"""Which files of this machine go into a sandbox's root, and where.

Invariants: programs are found by name on fixed system folders (not on the user's PATH, where wrappers live); a missing
necessary one is reported with the package that brings it; a library is found the way the system's loader finds it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

from agentgym_rtmc.errors import SandboxUnavailableError

SYSTEM_PATH = ("/usr/bin", "/bin", "/usr/sbin", "/sbin", "/usr/local/bin")

# fmt: off
COREUTILS = (
    "arch", "b2sum", "base32", "base64", "basename", "cat", "chgrp", "chmod", "chown", "cksum", "comm", "cp", "csplit",
    "cut", "date", "dd", "df", "dir", "dirname", "du", "echo", "env", "expand", "expr", "factor", "false", "fmt",
    "fold", "groups", "head", "hostid", "id", "install", "join", "link", "ln", "logname", "ls", "md5sum", "mkdir",
    "mkfifo", "mktemp", "mv", "nice", "nl", "nohup", "nproc", "numfmt", "od", "paste", "pathchk", "pr", "printenv",
    "printf", "ptx", "pwd", "readlink", "realpath", "rm", "rmdir", "seq", "sha1sum", "sha224sum", "sha256sum",
    "sha384sum", "sha512sum", "shred", "shuf", "sleep", "sort", "split", "stat", "stty", "sum", "sync",
    "tac", "tail", "tee", "test", "timeout", "touch", "tr", "true", "truncate", "tsort", "tty", "uname", "unexpand",
    "uniq", "unlink", "vdir", "wc", "who", "whoami", "yes", "[",
)
# fmt: on
NECESSARY: dict[str, tuple[str, ...]] = {
    "coreutils": ("cat", "cp", "env", "head", "ls", "mkdir", "mv", "rm", "sort", "tail", "tr", "true", "wc"),
    "bash": ("bash",),
    "sed": ("sed",),
    "grep": ("grep",),
    "findutils": ("find", "xargs"),
    "diffutils": ("diff", "cmp"),
    "git": ("git",),
    "util-linux": ("setpriv", "prlimit", "unshare", "mount", "umount", "pivot_root"),
    "libc-bin (glibc-common on Fedora)": ("ldd",),
}
"""Package to programs without which a root is not built. `awk` and `sh` are looked for under several names."""
# fmt: off
OPTIONAL = (
    *COREUTILS,
    "diff3", "sdiff", "egrep", "fgrep", "patch", "tar", "gzip", "gunzip", "zcat", "which", "ps", "tree",
)
# fmt: on
LAUNCHERS = ("setpriv", "prlimit", "unshare", "umount")
"""Programs that the back ends run inside the root before the agent's command."""
LAUNCHER_FOLDER = "usr/lib/launch"
FIRST_SHELL = f"{LAUNCHER_FOLDER}/sh"
"""A shell that can be executed but not read: the kernel keeps other processes of the same user from tracing it."""
# fmt: off
GIT_HELPERS = (
    "git-sh-setup", "git-sh-i18n", "git-sh-i18n--envsubst", "git-merge-one-file", "git-merge-octopus",
    "git-merge-resolve", "git-submodule", "git-bisect", "git-filter-branch", "git-request-pull", "git-difftool--helper",
    "git-mergetool--lib",
)
# fmt: on
PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
_LEFT_OUT_OF_PYTHON = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idle_test",
    "tkinter",
    "idlelib",
    "turtledemo",
    "ensurepip",
    "lib2to3",
    "sitecustomize.py",
    "usercustomize.py",
}
_PYTEST_COMMAND = "#!/usr/local/bin/python3\nimport sys\nimport pytest\nsys.exit(pytest.main())\n"


@dataclass(frozen=True)
class Sources:
    """Everything a root is made of; paths inside are relative to the agent's `/`."""

    library: str
    """The standard library's folder inside."""
    files: dict[str, Path] = field(default_factory=dict)
    """Path inside to the file on this machine whose contents go there."""
    links: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """Path inside to the text of a small script of ours."""

    def digest(self) -> str:
        """Digest over every path with its source's size and time; equal machines give equal digests."""
        return hashlib.sha256("\n".join(self._lines()).encode()).hexdigest()

    def _lines(self) -> list[str]:
        lines = [f"link {link} {target}" for link, target in self.links.items()]
        lines += [f"text {path} {text!r}" for path, text in self.texts.items()]
        for target, source in self.files.items():
            status = source.stat()
            lines.append(f"file {target} {source} {status.st_size} {status.st_mtime_ns} {status.st_mode & 0o111}")
        return sorted(lines)


def interpreter() -> Path:
    """The real binary behind the running interpreter, outside any virtual environment."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    binary = Path(base).resolve()
    if not binary.is_file():
        raise SandboxUnavailableError(f"cannot find the Python binary behind {sys.executable}; reinstall that Python")
    return binary


def find_program(name: str) -> Path | None:
    """The file of a system program, links resolved; None when it is not installed."""
    for folder in SYSTEM_PATH:
        path = Path(folder, name)
        if path.is_file() and os.access(path, os.X_OK):
            return path.resolve()
    return None


def missing_programs() -> dict[str, list[str]]:
    """Package to necessary programs of it that this machine lacks; empty when a root can be built."""
    missing = {package: [name for name in names if find_program(name) is None] for package, names in NECESSARY.items()}
    if not any(find_program(name) for name in ("mawk", "gawk", "awk")):
        missing["mawk (gawk on Fedora)"] = ["awk"]
    return {package: names for package, names in missing.items() if names}


def collect(cache: Path) -> Sources:
    """Find everything that goes into a root. `cache` is where the answer of `ldd` is remembered between processes.

    Raises SandboxUnavailableError when a necessary program is missing.
    """
    missing = missing_programs()
    if missing:
        parts = "; ".join(f"{', '.join(names)} from package {package}" for package, names in missing.items())
        raise SandboxUnavailableError(f"the sandbox's root needs programs that this machine lacks: {parts}")
    sources = Sources(library=f"usr/local/lib/python{sys.version_info.major}.{sys.version_info.minor}")
    _add_programs(sources)
    _add_git(sources)
    _add_python(sources)
    _add_pytest(sources)
    _add_locale(sources)
    _add_libraries(sources, cache)
    return sources


def _add_programs(sources: Sources) -> None:
    wanted = {name: find_program(name) for names in NECESSARY.values() for name in names}
    wanted |= {name: find_program(name) for name in OPTIONAL}
    wanted["sh"] = find_program("dash") or find_program("bash")
    wanted["awk"] = find_program("mawk") or find_program("gawk") or find_program("awk")
    for name in ("ldd", "mount", "pivot_root", *LAUNCHERS):
        wanted.pop(name, None)
    seen: dict[Path, str] = {}
    for name, path in sorted(wanted.items()):
        if path is None or _foreign_script(path):
            continue
        if path in seen:
            sources.links[f"usr/bin/{name}"] = seen[path]
        else:
            seen[path] = name
            sources.files[f"usr/bin/{name}"] = path
    shell = wanted["sh"]
    assert shell is not None  # checked by missing_programs, as is what follows
    sources.files[FIRST_SHELL] = shell
    for name in LAUNCHERS:
        path = find_program(name)
        assert path is not None
        sources.files[f"{LAUNCHER_FOLDER}/{name}"] = path


def _foreign_script(path: Path) -> bool:
    """Whether a program is a script for an interpreter other than a shell, which the root would not have."""
    with path.open("rb") as file:
        first = file.readline(200)
    return first.startswith(b"#!") and re.match(rb"#!\s*/(usr/)?bin/(env )?(ba|da)?sh\b", first) is None


def _add_git(sources: Sources) -> None:
    git = find_program("git")
    assert git is not None  # checked by missing_programs
    folder = Path(subprocess.run([git, "--exec-path"], capture_output=True, text=True, check=True).stdout.strip())
    sources.links["usr/lib/git-core/git"] = "/usr/bin/git"
    for name in GIT_HELPERS:
        path = folder / name
        if path.is_file() and not path.samefile(git) and not _foreign_script(path):
            sources.files[f"usr/lib/git-core/{name}"] = path.resolve()
    for name in ("git-upload-pack", "git-receive-pack", "git-upload-archive"):
        sources.links[f"usr/bin/{name}"] = "git"


def _add_python(sources: Sources) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    sources.files[f"usr/local/bin/{version}"] = interpreter()
    for name in ("python", "python3"):
        sources.links[f"usr/local/bin/{name}"] = version
        sources.links[f"usr/bin/{name}"] = f"/usr/local/bin/{version}"
    base = {"base": sys.base_prefix, "platbase": sys.base_exec_prefix}
    installed = {"installed_base": sys.base_prefix, "installed_platbase": sys.base_exec_prefix}
    for key in ("stdlib", "platstdlib"):
        _add_library_folder(sources, Path(sysconfig.get_path(key, vars=base | installed)))


def _add_library_folder(sources: Sources, library: Path) -> None:
    for folder, names, files in os.walk(library):
        names[:] = [name for name in names if name not in _LEFT_OUT_OF_PYTHON and not name.startswith("config-")]
        for name in files:
            path = Path(folder, name)
            if name in _LEFT_OUT_OF_PYTHON or name.endswith((".pth", ".a", ".whl", ".exe")) or not path.is_file():
                continue
            if folder.endswith("__pycache__") and (".opt-" in name or name.startswith("sitecustomize.")):
                continue
            sources.files[f"{sources.library}/{path.relative_to(library)}"] = path


def _add_pytest(sources: Sources) -> None:
    """Add pytest from the running environment, when it is installed there with all it needs."""
    try:
        distributions = [importlib.metadata.distribution(name) for name in PYTEST]
    except importlib.metadata.PackageNotFoundError:
        return
    for distribution in distributions:
        for file in distribution.files or ():
            path = Path(str(distribution.locate_file(file)))
            inside = file.parts[0] != ".." and not file.is_absolute()
            if inside and file.name not in ("direct_url.json", "RECORD") and path.is_file():
                sources.files[f"{sources.library}/site-packages/{file}"] = path
    sources.links[f"{sources.library}/dist-packages"] = "site-packages"
    sources.texts["usr/local/bin/pytest"] = _PYTEST_COMMAND


def _add_locale(sources: Sources) -> None:
    folder = Path("/usr/lib/locale/C.utf8")
    for path in folder.rglob("*") if folder.is_dir() else ():
        if path.is_file():
            sources.files[str(path)[1:]] = path


def _add_libraries(sources: Sources, cache: Path) -> None:
    """Add the shared libraries of all programs and extension modules, under their plain names in one folder."""
    binaries = sorted({path for path in sources.files.values() if _is_elf(path)})
    for name, path in sorted(_closure(binaries, cache).items()):
        sources.files.setdefault(f"usr/lib/{name}", path)
        own = Path(sys.base_prefix) / "lib" / name
        if own.is_file() and sys.base_prefix not in ("/usr", "/"):
            # Found through the interpreter's own relative run path before any other, as it is on the host.
            sources.files[f"usr/local/lib/{name}"] = own.resolve()


def _is_elf(path: Path) -> bool:
    if path.suffix in (".py", ".pyc"):
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _closure(binaries: list[Path], cache: Path) -> dict[str, Path]:
    """Library name to file for everything `binaries` load. Asking the loader takes a while, so it is remembered."""
    state = [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in binaries]
    loader_cache = Path("/etc/ld.so.cache")
    if loader_cache.exists():
        state.append(("ld.so.cache", loader_cache.stat().st_mtime_ns, loader_cache.stat().st_size))
    memory = cache / f"libraries-{hashlib.sha256(json.dumps(state).encode()).hexdigest()[:24]}.json"
    if memory.is_file():
        known: dict[str, str] = json.loads(memory.read_text())
        if all(Path(path).is_file() for path in known.values()):
            return {name: Path(path) for name, path in known.items()}
    ldd = find_program("ldd")
    assert ldd is not None  # checked by missing_programs
    answer = subprocess.run([ldd, *binaries], capture_output=True, text=True, env={"LC_ALL": "C"}, check=False).stdout
    libraries: dict[str, Path] = {}
    for line in answer.splitlines():
        match = re.match(r"\s+(?:(\S+) => )?(/\S+) \(0x", line)
        if match:
            libraries.setdefault(Path(match[1] or match[2]).name, Path(match[2]).resolve())
    with contextlib.suppress(OSError):  # then the next process asks again
        cache.mkdir(parents=True, exist_ok=True)
        part = memory.with_name(f"{memory.name}.{os.getpid()}")
        part.write_text(json.dumps({name: str(path) for name, path in libraries.items()}))
        part.replace(memory)
    return libraries
