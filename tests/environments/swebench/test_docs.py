"""The examples of docs/swebench.md run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentgym_rtmc.environments.swebench.rows import V5_COLUMNS

DOCS = Path(__file__).parents[3] / "docs" / "swebench.md"


def test_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recorded, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("swebench")
    rows = [row for row, _ in recorded[::2]]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    old = [{key: value for key, value in row.items() if key not in V5_COLUMNS} for row in rows]
    (tmp_path / "old_rows.jsonl").write_text("\n".join(map(json.dumps, old)), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    row, log = recorded[1]
    names = {"row": row, "patch": row["patch"], "log": log["log"]}
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(DOCS), "exec"), names)
    assert capsys.readouterr().out == (
        "{'train': 17, 'heldout': 3} {'train': 'repository not pallets/flask (17 instances)', "
        "'heldout': 'repository pallets/flask (3 instances)'}\n"
        "True False (1, 0) (76, 0) ()\n"
    )
    assert len(names["rows"]) == 20 and names["rows"][0].image.startswith("xingyaoww/sweb.eval.x86_64.")
