"""The code of docs/signatures.md runs, and the signatures it defines are sound."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from agentgym_rtmc.signatures import base, make_signature
from agentgym_rtmc.signatures.checks import check_signature

TEXT = (Path(__file__).parents[2] / "docs" / "signatures.md").read_text(encoding="utf-8")


def test_code_runs_and_its_signatures_are_sound(monkeypatch):
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    for code in re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL):
        exec(compile(code, "docs/signatures.md", "exec"), {})
    for name in ("ledger", "broken_files"):
        # A function of the history goes through it at every turn: that is the price of five lines.
        assert all("times as much" in fault for fault in check_signature(make_signature(name), pause=0))


def test_configurations_are_read():
    tables = [
        tomllib.loads(text)["signature"] for text in re.findall(r"^```toml\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    ]
    assert len(tables) == 2
    chain = make_signature(tables[1]["name"], **tables[1]["parameters"])
    assert len(chain.levels) == 3
