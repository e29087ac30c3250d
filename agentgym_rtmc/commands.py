"""The ground floor's commands: `doctor`.

Invariant: a command prints what its room knows and decides nothing itself.
"""

from __future__ import annotations

from typing import Annotated

import typer

from agentgym_rtmc.doctor import run_checks
from agentgym_rtmc.tables import Row, show_json, show_table

_STYLES = {"ok": "green", "note": "yellow", "missing": "bold red"}


def doctor(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """Check what works on this machine; exit code 1 if something needed is missing.

    `note` means that it works with a limitation, `missing` that something will not work until it is mended.
    """
    findings = run_checks()
    rows: list[Row] = [
        {"room": room, "check": one.name, "status": one.status, "detail": one.detail, "fix": one.fix}
        for room, found in findings.items()
        for one in found
    ]
    missing = sum(row["status"] == "missing" for row in rows)
    if as_json:
        show_json({"checks": rows, "missing": missing})
    else:
        show_table(rows, style=lambda row: _STYLES[row["status"]])
        print(f"{missing} missing" if missing else "everything needed is here")
    raise typer.Exit(1 if missing else 0)
