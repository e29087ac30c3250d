"""A scripted agent that knows the reference patch: what `validate` plays to find instances that cannot be solved.

Invariant: actions are in the environment's own protocol of the shell interface. git takes the patch from standard
input, so that no file of the agent's remains.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Generator, Iterator

import numpy as np

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.calls.shell import ShellProtocol
from agentgym_rtmc.environments.swebench.env import SUBMIT
from agentgym_rtmc.environments.swebench.tasks import row_of
from agentgym_rtmc.tasks import Task

_PROTOCOL = ShellProtocol()
_APPLY = "git apply --whitespace=nowarn"
_PIECE = 24_000
"""Characters of a patch that one command carries."""


def write_action(command: str) -> str:
    """Return a command as the text of an action."""
    return _PROTOCOL.render(Call(name="shell", arguments={"command": command}))


def reference(task: Task, observation: str, rng: np.random.Generator) -> Generator[str, str, None]:
    """Apply the reference patch, then submit."""
    for command in apply_commands(row_of(task).patch):
        yield write_action(command)
    yield write_action(SUBMIT)


def apply_commands(patch: str) -> Iterator[str]:
    """Commands that apply a patch, which is gathered in the home folder."""
    patch = patch if patch.endswith("\n") else f"{patch}\n"
    # What a shell block may not carry as it is (carriage returns, say) is spelt in letters.
    plain = all(sign in "\n\t" or sign.isprintable() for sign in patch)
    text = patch if plain else base64.encodebytes(patch.encode("utf-8", "surrogateescape")).decode()
    pieces = list(_pieces(text))
    if plain and len(pieces) == 1:
        yield f"{_APPLY} -{_document(text)}"
        return
    for piece in pieces:
        yield f"cat >>~/reference{_document(piece)}"
    yield f"{'cat' if plain else 'base64 -d'} ~/reference | {_APPLY} - && rm ~/reference"


def _pieces(text: str) -> Iterator[str]:
    piece = ""
    for line in re.findall(r"[^\n]*\n", text):
        if piece and len(piece) + len(line) > _PIECE:
            yield piece
            piece = ""
        piece += line
    yield piece


def _document(text: str) -> str:
    """A here-document of a text that ends with a newline."""
    mark = "END_OF_PATCH"
    while mark in text:
        mark += "_"
    return f" <<'{mark}'\n{text}{mark}"
