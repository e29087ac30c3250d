#!/usr/bin/env python3
"""A container image made of this Debian machine's own packages, for tests where no registry can be reached.

`base_image.py` builds the image in the engine of DOCKER_HOST, unless it is there, and prints its name. It holds a
shell, coreutils, Python with pytest, git and their like, with all they need, and nothing else of the machine.

Invariants: the name is a digest of the versions of all packages and of this file; the archive is kept in the user's
cache, so that a new engine gets it in seconds.
"""

import argparse
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import docker

REPOSITORY = "localhost/debian-of-this-machine"
# fmt: off
PACKAGES = (
    "dash", "bash", "coreutils", "python3", "git", "grep", "sed", "findutils", "procps", "tar", "gzip", "diffutils",
    "base-files", "libc-bin", "passwd", "ca-certificates", "patch", "mawk", "hostname", "util-linux",
)
# fmt: on
LEFT_OUT = re.compile(r"^/usr/share/(doc|man|locale|info|lintian|zoneinfo|bash-completion|perl)/")
TEXTS = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nagent:x:65534:65534:agent:/tmp:/bin/sh\n",
    "etc/group": "root:x:0:\nagent:x:65534:\n",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
    "etc/gitconfig": "[user]\n\tname = agent\n\temail = agent@localhost\n[init]\n\tdefaultBranch = main\n"
    "[safe]\n\tdirectory = *\n[advice]\n\tdetachedHead = false\n[gc]\n\tauto = 0\n[maintenance]\n\tauto = false\n",
    "usr/local/bin/pytest": "#!/usr/bin/python3\nimport sys\nfrom pytest import main\nsys.exit(main())\n",
}
LINKS = {
    "usr/local/bin/python": "/usr/bin/python3",
    "usr/bin/awk": "mawk",
}
FOLDERS = ("proc", "sys", "dev", "tmp", "run", "root", "home", "mnt", "var/tmp", "workspace")


def main() -> None:
    """Build or find the image and print its name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--archive", action="store_true", help="only make the archive, and print its path")
    options = parser.parse_args()
    archive = make_archive()
    try:
        print(archive if options.archive else make_image(archive))
    except docker.errors.DockerException as error:
        sys.exit(f"base image: {error}")


def make_image(archive: Path) -> str:
    """Import the archive unless an image of its name is there; return the name."""
    client = docker.APIClient(**docker.utils.kwargs_from_env(), version="auto", timeout=300)
    name = f"{REPOSITORY}:{archive.stem}"
    try:
        client.inspect_image(name)
    except docker.errors.ImageNotFound:
        changes = ["ENV PATH=/usr/local/bin:/usr/bin:/bin", "ENV LANG=C.UTF-8"]
        client.import_image_from_file(str(archive), repository=name, changes=changes)  # podman ignores the tag
        client.inspect_image(name)
    return name


def make_archive() -> Path:
    """The image's files as a tar archive in the user's cache; built when it is not there (about 10 s, 200 MB)."""
    versions = _closure(_installed())
    digest = hashlib.sha256(Path(__file__).read_bytes() + repr(sorted(versions.items())).encode()).hexdigest()[:16]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentgym-rtmc" / "base-image"
    archive = cache / f"{digest}.tar"
    if archive.exists():
        return archive
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        pytest = Path(scratch) / "pytest"
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--no-compile", "--target", str(pytest), "pytest"]
        subprocess.run(pip, check=True)
        _write(Path(scratch) / "tar", sorted(versions), pytest)
        for old in cache.glob("*.tar"):
            old.unlink()
        (Path(scratch) / "tar").rename(archive)
    return archive


def _installed() -> dict[str, tuple[str, list[str]]]:
    """Name of every installed package, and of what it provides -> (version, names of what it depends on)."""
    form = "${Package}\t${Version}\t${Pre-Depends}, ${Depends}\t${Provides}\n"
    rows = subprocess.run(["dpkg-query", "-W", "-f", form], check=True, capture_output=True, text=True).stdout
    found: dict[str, tuple[str, list[str]]] = {}
    provided: dict[str, tuple[str, list[str]]] = {}
    for row in rows.splitlines():
        name, version, depends, provides = row.split("\t")
        wanted = [re.sub(r"[:\s(|].*", "", part.strip()) for part in depends.split(",")]
        found.setdefault(name, (version, [word for word in wanted if word]))
        for alias in provides.split(","):
            if alias.strip():
                provided.setdefault(alias.split()[0], ("", [name]))
    return provided | found


def _closure(installed: dict[str, tuple[str, list[str]]]) -> dict[str, str]:
    """Package name -> version of all that `PACKAGES` need."""
    versions: dict[str, str] = {}
    queue = list(PACKAGES)
    while queue:
        name = queue.pop()
        if name in versions:
            continue
        if name not in installed:
            if name in PACKAGES:
                sys.exit(f"base image: the package {name} is not installed here; apt install {name}")
            continue  # the first of several alternatives, of which another is installed
        versions[name], depends = installed[name]
        queue += depends
    return {name: version for name, version in versions.items() if version}


def _write(archive: Path, packages: list[str], pytest: Path) -> None:
    listing = subprocess.run(["dpkg-query", "-L", *packages], check=True, capture_output=True, text=True).stdout
    paths = {_real(Path(line)) for line in listing.splitlines() if line.startswith("/") and line != "/."}
    paths |= {cached for path in paths if path.suffix == ".py" for cached in path.parent.glob("__pycache__/*.pyc")}
    with tarfile.open(archive, "w") as tar:
        added = set()

        def add(name: str, path: Path) -> None:
            parent = name.rpartition("/")[0]
            if parent and parent not in added:
                add_folder(parent)
            if name not in added:
                added.add(name)
                tar.add(path, name, recursive=False, filter=_as_root)

        def add_folder(name: str) -> None:
            parent = name.rpartition("/")[0]
            if parent and parent not in added:
                add_folder(parent)
            if name not in added:
                added.add(name)
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755
                tar.addfile(entry)

        for link in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
            if Path("/", link).is_symlink():
                add(link, Path("/", link))
        for folder in FOLDERS:
            add_folder(folder)
        for name, text in TEXTS.items():
            add_folder(name.rpartition("/")[0])
            added.add(name)
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(text), 0o755 if "/bin/" in name else 0o644
            tar.addfile(entry, io.BytesIO(text.encode()))
        for name, target in LINKS.items():
            add_folder(name.rpartition("/")[0])
            added.add(name)
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        for path in sorted(paths):
            if not LEFT_OUT.match(str(path)) and (path.is_symlink() or path.exists()):
                (add_folder(str(path)[1:]) if path.is_dir() and not path.is_symlink() else add(str(path)[1:], path))
        modules = next(str(path)[1:] for path in sorted(paths) if path.name == "dist-packages")
        for path in sorted(pytest.rglob("*")):
            if path.is_file() and path.relative_to(pytest).parts[0] != "bin":
                add(f"{modules}/{path.relative_to(pytest)}", path)


def _real(path: Path) -> Path:
    """The path with links in its folders resolved: one file has many names on a machine with a merged /usr."""
    return Path(os.path.realpath(path.parent)) / path.name


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode &= 0o1777  # no set-id programs
    return entry


if __name__ == "__main__":
    main()
