"""Lists of tasks whose reference solution is known to fail: TOML of `"task id" = "reason"`.

`validate --known-bad` writes them, task sets read them (`known_bad_file`) and leave such tasks out of training.

Invariant: what is written is read back equal; every task has a reason.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

from agentgym_rtmc.durable import replace_text
from agentgym_rtmc.errors import TaskError

_HEAD = "# Tasks whose reference solution is not paid, as `agentgym-rtmc validate --known-bad` found.\n"


def parse_known_bad(text: str, where: str) -> dict[str, str]:
    """Read the text of a list. Raises TaskError, which names `where`."""
    try:
        listed = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TaskError(f"{where}: not TOML: {error}") from error
    for name, reason in listed.items():
        if not isinstance(reason, str) or not reason.strip():
            raise TaskError(f'{where}: {name} needs a reason: "{name}" = "why"')
    return listed


def read_known_bad(path: Path) -> dict[str, str]:
    """Read a list. Raises TaskError for a file that cannot be read or is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: cannot be read: {error}") from error
    return parse_known_bad(text, str(path))


def write_known_bad(path: Path, reasons: Mapping[str, str]) -> None:
    """Write a list in one step, in the order of the names."""
    lines = [f"{_quoted(name)} = {_quoted(reason)}\n" for name, reason in sorted(reasons.items())]
    replace_text(path, _HEAD + "".join(lines))


def _quoted(text: str) -> str:
    """A TOML string of one line; what has no printable form there becomes a question mark."""
    plain = "".join(ch if ch.isprintable() else " " if ch.isspace() else "?" for ch in text)
    return json.dumps(plain, ensure_ascii=False)
