"""The sandbox's root: what is in it, what is not, and how it comes into being."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentgym_rtmc.environments.sandbox import root, root_sources
from agentgym_rtmc.errors import SandboxUnavailableError

BUILD = "from agentgym_rtmc.environments.sandbox.root import ensure_root; print(ensure_root())"


def entries(folder: Path) -> list[Path]:
    """Everything below a folder, links not followed."""
    return [Path(above, name) for above, folders, files in os.walk(folder) for name in (*folders, *files)]


def start_build(cache: Path) -> subprocess.Popen[str]:
    """A process that makes the root in an empty cache."""
    environment = os.environ | {"XDG_CACHE_HOME": str(cache)}
    return subprocess.Popen([sys.executable, "-c", BUILD], env=environment, stdout=subprocess.PIPE, text=True)


def test_holds_nothing_of_this_project(root_folder: Path) -> None:
    for path in entries(root_folder):
        assert "agentgym" not in path.name.lower(), path
        if path.is_file() and os.access(path, os.R_OK) and not path.is_symlink():
            assert b"agentgym" not in path.read_bytes().lower(), path


def test_holds_no_packages_but_pytest_s_own(root_folder: Path) -> None:
    packages = next((root_folder / root.JAIL / "usr/local/lib").glob("python3*")) / "site-packages"
    if not packages.exists():
        pytest.skip("pytest is not installed beside this program")
    names = {path.name.split("-")[0].removesuffix(".py").lower() for path in packages.iterdir()}
    assert names <= {*root_sources.PYTEST, "_pytest", "py", "__pycache__"}


def test_is_readable_by_all_and_writable_by_its_owner_only(root_folder: Path) -> None:
    for path in entries(root_folder):
        mode = path.lstat().st_mode
        if path == root_folder / root.JAIL / root_sources.FIRST_SHELL:
            assert mode & 0o7777 == 0o111
        elif not path.is_symlink():
            assert mode & 0o044 == 0o044, path
            assert mode & 0o7022 == 0, path


def test_links_lead_nowhere_outside(root_folder: Path) -> None:
    jail = root_folder / root.JAIL
    for path in entries(jail):
        if path.is_symlink():
            target = path.readlink()
            inside = jail / str(target).lstrip("/") if target.is_absolute() else path.parent / target
            assert Path(os.path.normpath(inside)).is_relative_to(jail), path


def test_racing_builders_and_a_killed_one_leave_one_whole_root(tmp_path: Path) -> None:
    victim = start_build(tmp_path)
    building = tmp_path / "agentgym-rtmc" / "roots"
    give_up = time.monotonic() + 30
    while not list(building.glob("building-*/r/usr/bin/*")):
        assert time.monotonic() < give_up
        time.sleep(0.005)
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    assert list(building.glob("building-*"))
    racers = [start_build(tmp_path) for _ in range(2)]
    answers = {racer.communicate()[0] for racer in racers}
    assert all(racer.returncode == 0 for racer in racers)
    assert len(answers) == 1
    left = [path.name for path in building.iterdir() if path.is_dir()]
    assert left == [Path(answers.pop().strip()).name]


def test_a_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.setattr(root_sources, "SYSTEM_PATH", (str(tmp_path / "empty"),))
    with pytest.raises(SandboxUnavailableError, match=r"git from package git") as caught:
        root_sources.collect(tmp_path)
    assert "setpriv, prlimit, unshare, mount, umount, pivot_root from package util-linux" in str(caught.value)
    assert "awk from package mawk" in str(caught.value)


def test_an_unusable_cache_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SandboxUnavailableError, match="XDG_CACHE_HOME"):
        root.ensure_root(tmp_path / "file")
