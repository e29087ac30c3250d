"""Signatures made of signatures: composed side by side, restricted to some turns and files, chained fine to coarse.

All three can be written in a configuration, where a part is a name (`"edits"`, `"edits + test_outcomes"`) or a table
with a name and its parameters (`{ name = "operations", level = "file" }`):

    [signature]
    name = "chain"
    parameters = { levels = ["edits + test_outcomes", { name = "restrict", of = "operations", reads = false }] }

Invariants: made of pure and linear signatures, these are pure and linear.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from typing import Any

from agentgym_rtmc.episodes import Opening, Turn
from agentgym_rtmc.errors import RegistrationError
from agentgym_rtmc.signatures.base import Signature, make_signature
from agentgym_rtmc.signatures.edits import is_scratch
from agentgym_rtmc.signatures.shell_commands import DEFAULT_ROOT
from agentgym_rtmc.signatures.tools import read_call

Part = str | Mapping[str, Any] | Signature[Any]
"""A signature as a configuration names it: a name, a table with `name` and parameters, or a signature itself."""


def signature_of(part: Part) -> Signature[Any]:
    """Build a part. Raises RegistrationError for a table without a name or an unknown one."""
    if isinstance(part, str):
        return make_signature(part)
    if isinstance(part, Mapping):
        parameters = dict(part)
        name = parameters.pop("name", None)
        if not isinstance(name, str):
            raise RegistrationError(f"{dict(part)!r} names no signature; write {{ name = 'edits', … }}")
        return make_signature(name, **parameters)
    return part


class Composed:
    """All parts at once: two states are the same where every part says so. Actions are named by the first part.

    `actions` picks another part (by position) to name actions.
    """

    def __init__(self, parts: Sequence[Part], actions: int = 0) -> None:
        if not parts:
            raise RegistrationError("compose needs at least one part")
        self.parts = tuple(signature_of(part) for part in parts)
        if not -len(self.parts) <= actions < len(self.parts):
            raise RegistrationError(f"actions = {actions}, but there are {len(self.parts)} parts")
        self._naming = self.parts[actions]

    def start(self, opening: Opening) -> tuple[Any, ...]:
        """Start every part."""
        return tuple(part.start(opening) for part in self.parts)

    def action_key(self, turn: Turn) -> str:
        """Ask the part that names actions."""
        return self._naming.action_key(turn)

    def advance(self, state: tuple[Any, ...], turn: Turn) -> tuple[Any, ...]:
        """Advance every part."""
        return tuple(part.advance(inner, turn) for part, inner in zip(self.parts, state, strict=True))

    def state_key(self, state: tuple[Any, ...]) -> str:
        """Join the parts' keys."""
        return " & ".join(part.state_key(inner) for part, inner in zip(self.parts, state, strict=True))


class Restricted:
    """A signature that does not see some turns or files.

    `reads=False`: turns that only look (and run nothing) leave the state as it was. `scratch=False`: calls that touch
    nothing but scratch and generated files are not seen, and such files are taken out of `info["files"]`. `drop`: name
    patterns of further files, treated the same way. Actions are named as before.
    """

    def __init__(
        self,
        of: Part,
        reads: bool = True,
        scratch: bool = True,
        drop: Sequence[str] = (),
        root: str = DEFAULT_ROOT,
    ) -> None:
        self.inner = signature_of(of)
        self._reads = reads
        self._scratch = scratch
        self._drop = tuple(drop)
        self._root = root

    def start(self, opening: Opening) -> Any:
        """Start the signature."""
        return self.inner.start(opening)

    def action_key(self, turn: Turn) -> str:
        """Name the turn as the signature does."""
        return self.inner.action_key(turn)

    def advance(self, state: Any, turn: Turn) -> Any:
        """Advance by what is left of the turn."""
        operations = [operation for call in turn.calls for operation in read_call(call, self._root)]
        if not self._reads and all(operation.reads for operation in operations):
            return state
        return self.inner.advance(state, self._without(turn))

    def state_key(self, state: Any) -> str:
        """Name the state as the signature does."""
        return self.inner.state_key(state)

    def _dropped(self, path: str) -> bool:
        if not self._scratch and is_scratch(path):
            return True
        return any(fnmatch(path, pattern) for pattern in self._drop)

    def _without(self, turn: Turn) -> Turn:
        if self._scratch and not self._drop:
            return turn
        calls = []
        for call in turn.calls:
            touched = [path for operation in read_call(call, self._root) for path in operation.paths]
            if not touched or not all(map(self._dropped, touched)):
                calls.append(call)
        info = dict(turn.info)
        files = info.get("files")
        if isinstance(files, dict):
            info["files"] = {path: digest for path, digest in files.items() if not self._dropped(path)}
        return turn.model_copy(update={"calls": tuple(calls), "info": info})


class Chain:
    """Levels from fine to coarse, for estimators that back off. As a signature it is its finest level.

    `levels` are what `RolloutTree.from_groups(groups, chain.levels[0], coarser=chain.levels[1:])` takes.
    """

    def __init__(self, levels: Sequence[Part]) -> None:
        if not levels:
            raise RegistrationError("a chain needs at least one level")
        self.levels = tuple(signature_of(level) for level in levels)

    def start(self, opening: Opening) -> Any:
        """Start the finest level."""
        return self.levels[0].start(opening)

    def action_key(self, turn: Turn) -> str:
        """Name the turn as the finest level does."""
        return self.levels[0].action_key(turn)

    def advance(self, state: Any, turn: Turn) -> Any:
        """Advance the finest level."""
        return self.levels[0].advance(state, turn)

    def state_key(self, state: Any) -> str:
        """Name the finest level's state."""
        return self.levels[0].state_key(state)


def levels_of(signature: Signature[Any]) -> tuple[Signature[Any], ...]:
    """The levels of a chain, from fine to coarse; any other signature is one level."""
    return signature.levels if isinstance(signature, Chain) else (signature,)
