"""The programs that ship with the project, read from `programs/*.toml`.

Invariants: a program is plain ASCII text without comments and f-strings (so that names can be replaced in it), defines
what its calls name, and every call answers with a plain value. `use` names the split of its mutants.
"""

from __future__ import annotations

import hashlib
import random
import tomllib
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from agentgym_rtmc.environments.code_repair.cases import CallData, parse_call
from agentgym_rtmc.environments.code_repair.inputs import draw
from agentgym_rtmc.errors import TaskError

Use = Literal["train", "heldout", "families", "handwritten"]
_TRIES = 400


class Program(BaseModel):
    """One program. `inputs` describe random arguments (`inputs.py`) of the first function; `vary` lists alternatives of
    constants, by word; `calls` are further calls, as text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    topic: str
    use: Use
    about: str
    source: str
    inputs: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    vary: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    @field_validator("source")
    @classmethod
    def _plain(cls, text: str) -> str:
        if not text.isascii() or "#" in text.replace('"#"', "") or 'f"' in text or '"""' in text:
            raise ValueError("a program is plain ASCII without comments, docstrings and f-strings")
        return text.strip("\n") + "\n"

    def draw_calls(self, count: int) -> list[CallData]:
        """Return the listed calls, filled up to `count` distinct ones with random arguments if there are `inputs`."""
        calls = [parse_call(text) for text in self.calls]
        seen = {repr(call) for call in calls}
        rng = random.Random(self.name)
        for _ in range(_TRIES if self.inputs else 0):
            if len(calls) >= count:
                break
            call: CallData = [self.name, [draw(one, rng) for one in self.inputs]]
            if repr(call) not in seen:
                seen.add(repr(call))
                calls.append(call)
        return calls


def load_programs() -> list[Program]:
    """Read all programs, sorted by topic and place. Raises TaskError naming the file and program."""
    programs: list[Program] = []
    for file, content in _program_files():
        for number, row in enumerate(tomllib.loads(content.decode())["program"], 1):
            try:
                programs.append(Program.model_validate({"topic": file.removesuffix(".toml"), **row}))
            except ValidationError as error:
                first = error.errors()[0]
                where = f"{file}, program {number} ({row.get('name', 'without a name')})"
                raise TaskError(f"{where}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    names = [program.name for program in programs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise TaskError(f"two programs are named {twice!r}; rename one")
    return programs


def corpus_digest() -> str:
    """Digest of all program files: tells whether the proven manifest belongs to them."""
    digest = hashlib.sha256()
    for _, content in _program_files():
        digest.update(content)
    return digest.hexdigest()


def _program_files() -> list[tuple[str, bytes]]:
    """Name and content of each program file, sorted by name."""
    folder = files("agentgym_rtmc.environments.code_repair").joinpath("programs")
    return sorted((path.name, path.read_bytes()) for path in folder.iterdir() if path.name.endswith(".toml"))
