"""Predictions as SWE-bench's tools exchange them: `preds.json` or `preds.jsonl`, one patch for each instance.

Invariants: what is written here is read by swebench, and the other way round; an instance has one prediction.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from agentgym_rtmc.durable import replace_text
from agentgym_rtmc.errors import TaskError


class Prediction(BaseModel):
    """A patch for an instance. None, or an empty one, is never run and counts as not resolved."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    instance_id: str = Field(min_length=1)
    model_name_or_path: str = Field("None", min_length=1)
    model_patch: str | None = None

    @field_validator("*")
    @classmethod
    def _is_text(cls, value: str | None) -> str | None:
        # JSON can spell halves of characters, which no file and no container takes.
        if value is not None and any("\ud800" <= sign <= "\udfff" for sign in value):
            raise ValueError("holds a lone surrogate, which is no text; write the patch as UTF-8")
        return value

    @property
    def empty(self) -> bool:
        """Whether there is nothing to run."""
        return not self.model_patch


def read_predictions(path: str | Path) -> dict[str, Prediction]:
    """Read a `.json` (list, or object by id) or `.jsonl` file. Raises TaskError naming the file and the prediction."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: cannot be read: {error}") from error
    found: dict[str, Prediction] = {}
    for number, values in enumerate(_values(path, text), 1):
        where = f"{path.name}: prediction {number}"
        try:
            prediction = Prediction.model_validate(values)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            raise TaskError(f"{where}: {'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}") from error
        if prediction.instance_id in found:
            raise TaskError(f"{where}: {prediction.instance_id} has one already; keep one for each instance")
        found[prediction.instance_id] = prediction
    return found


def _values(path: Path, text: str) -> Iterable[Any]:
    if path.suffix not in (".json", ".jsonl"):
        raise TaskError(f"{path}: predictions are read from .json and .jsonl files")
    try:
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.split("\n") if line.strip()]
        values = json.loads(text)
    except ValueError as error:
        raise TaskError(f"{path}: not JSON: {error}") from error
    if isinstance(values, dict):
        # By id, as agents write them; the id may then be left out of the value.
        return [{"instance_id": name, **one} if isinstance(one, dict) else one for name, one in values.items()]
    if not isinstance(values, list):
        raise TaskError(f"{path}: a list of predictions is expected, or an object by instance_id")
    return values


def write_predictions(path: str | Path, predictions: Mapping[str, Prediction]) -> None:
    """Write predictions in one step, as an object by id (`.json`) or one a line (`.jsonl`)."""
    path = Path(path)
    rows = {name: predictions[name].model_dump() for name in sorted(predictions)}
    if path.suffix == ".jsonl":
        replace_text(path, "".join(json.dumps(row) + "\n" for row in rows.values()))
    elif path.suffix == ".json":
        replace_text(path, json.dumps(rows, indent=2) + "\n")
    else:
        raise TaskError(f"{path}: predictions are written to .json and .jsonl files")
