"""The folder cache: whole or not at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agentgym_rtmc.folders import cache_folder
from agentgym_rtmc.trainer.policy.folder_cache import cached_folder, content_key


def fill(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "a.bin").write_bytes(b"a" * 1000)
    (folder / "b.txt").write_text("b", encoding="utf-8")


def test_built_once_and_then_found(tmp_path: Path) -> None:
    built: list[Path] = []

    def build(folder: Path) -> None:
        built.append(folder)
        fill(folder)

    where = tmp_path / "kind" / "key"
    assert cached_folder(where, build) == (where, False)
    assert cached_folder(where, build) == (where, True)
    assert len(built) == 1 and (where / "sub" / "a.bin").read_bytes() == b"a" * 1000
    assert [p.name for p in where.parent.iterdir()] == ["key"]


def _cut(where: Path) -> None:
    (where / "sub" / "a.bin").write_bytes(b"a" * 10)


def _remove(where: Path) -> None:
    (where / "b.txt").unlink()


def _add(where: Path) -> None:
    (where / "extra").write_text("x", encoding="utf-8")


def _unlist(where: Path) -> None:
    (where / "digests.json").write_text("{", encoding="utf-8")


@pytest.mark.parametrize("damage", [_cut, _remove, _add, _unlist])
def test_a_damaged_folder_is_built_again(tmp_path: Path, damage: object) -> None:
    where = tmp_path / "key"
    cached_folder(where, fill)
    damage(where)  # type: ignore[operator]
    assert cached_folder(where, fill) == (where, False)
    assert (where / "sub" / "a.bin").read_bytes() == b"a" * 1000 and not (where / "extra").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["key"]


def test_a_failed_build_leaves_nothing(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        fill(folder)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cached_folder(tmp_path / "key", fail)
    assert list(tmp_path.iterdir()) == []


def test_builders_at_the_same_time_agree(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: cached_folder(tmp_path / "key", fill), range(4)))
    assert {path for path, _ in results} == {tmp_path / "key"}
    assert [p.name for p in tmp_path.iterdir()] == ["key"]
    assert cached_folder(tmp_path / "key", fill)[1]


def test_keys_and_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert content_key({"a": 1, "b": 2}) == content_key({"b": 2, "a": 1})
    assert len({content_key("ab", "c"), content_key("a", "bc"), content_key(b"ab", "c"), content_key("ab")}) == 4
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "agentgym-rtmc"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # the specification says to ignore it
    assert cache_folder() == Path.home() / ".cache" / "agentgym-rtmc"
