"""One shell command a turn, in a fenced block.

Invariants: stateless and pure; nothing but a `ProtocolError` is ever raised; a command reaches the environment exactly
as it stands between the fences. A command is never guessed: where two readings are possible, the agent is asked.
Fences follow CommonMark: a block is closed by at least as many backticks as opened it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.calls.thinking import after_thinking
from agentgym_rtmc.errors import ProtocolError

LANGUAGES = frozenset({"sh", "bash", "shell", "zsh", "console", "terminal"})
_FENCE = re.compile(r" {0,3}(`{3,})([^`]*)$")


class _Block(NamedTuple):
    """A fenced block: its language (lower case, "" if none), its text and the line it opens on (1-based)."""

    language: str
    text: str
    line: int


@dataclass(frozen=True)
class ShellProtocol:
    """Reads one ```` ```sh ```` block as `Call("shell", {"command": …})`.

    Read as well: `bash`, `shell`, other shells' names or no language, prose and other languages' blocks around, CRLF
    line ends, leading `<think>…</think>`, and a closing fence that is missing at the end of the text (sampling may have
    stopped on it) or stands at the end of the last line. `max_chars` limits the command's length.

    >>> ShellProtocol().parse("I look first.\\n```bash\\nls -la\\n```")[0].arguments
    {'command': 'ls -la'}
    """

    max_chars: int = 32_000
    name: str = "shell"
    # A fence with a language opens, a bare one closes: prose before "```sh" must not stop the sampling.
    stop: tuple[str, ...] = ("\n```\n",)

    def parse(self, text: str) -> tuple[Call, ...]:
        """Read the one command of a turn. Raises ProtocolError."""
        command = self._check(self._choose(_blocks(after_thinking(text, "```"))))
        return (Call(name="shell", arguments={"command": command}),)

    def render(self, call: Call) -> str:
        """Write a command as a block, with a fence longer than any run of backticks in it.

        Raises ProtocolError for a call that is no shell command or that no block can carry.
        """
        command = call.arguments.get("command")
        if call.name != "shell" or set(call.arguments) != {"command"} or not isinstance(command, str):
            raise ProtocolError(f"only shell(command=...) can be written as a shell block, not {call.name!r}")
        self._check(command)
        longest = max((len(run) for run in re.findall("`+", command)), default=0)
        fence = "`" * max(3, longest + 1)
        return f"{fence}sh\n{command}\n{fence}"

    def instructions(self) -> str:
        """Explain the form to a model."""
        return (
            "Answer with exactly one shell command in a fenced block:\n\n"
            "```sh\nls\n```\n\n"
            "A block may hold several lines. To write ``` inside a command, fence the block with ````."
        )

    def _choose(self, blocks: list[_Block]) -> str:
        # A block marked as shell goes before bare ones, in which models quote output or code.
        named = [block for block in blocks if block.language in LANGUAGES]
        candidates = named or [block for block in blocks if not block.language]
        if len(candidates) == 1:
            return candidates[0].text
        if candidates:
            lines = ", ".join(str(block.line) for block in candidates)
            raise ProtocolError(f"{len(candidates)} shell blocks (at lines {lines}); send one block per turn")
        if blocks:
            block = blocks[0]
            raise ProtocolError(
                f"the block at line {block.line} is marked {block.language!r}; only a ```sh block is run"
            )
        raise ProtocolError("no shell block; write one command between a line ```sh and a line ```")

    def _check(self, command: str) -> str:
        if not command.strip():
            raise ProtocolError("the shell block is empty; write a command between ```sh and ```")
        if "\0" in command:
            raise ProtocolError(f"the command has a NUL byte at character {command.index(chr(0))}; leave it out")
        if len(command) > self.max_chars:
            raise ProtocolError(
                f"the command has {len(command)} characters, the limit is {self.max_chars}; split it over several turns"
            )
        try:
            command.encode()
        except UnicodeEncodeError as error:
            raise ProtocolError(f"the command has a lone surrogate at character {error.start}; leave it out") from error
        return command


def _blocks(text: str) -> list[_Block]:
    """Read all fenced blocks of a text; a last one may be unclosed. Raises ProtocolError for a fence within a fence."""
    lines = text.split("\n")
    blocks: list[_Block] = []
    index = 0
    while index < len(lines):
        opened = index
        fence = _FENCE.match(lines[index].rstrip("\r"))
        index += 1
        if fence is None:
            continue
        width = len(fence[1])
        language, _, rest = fence[2].strip().partition(" ")
        if rest and language.lower() in LANGUAGES:
            raise ProtocolError(f"text follows ```{language} on line {opened + 1}; start the command on the next line")
        body: list[str] = []
        closed = False
        while index < len(lines) and not closed:
            inner = _FENCE.match(lines[index].rstrip("\r"))
            if inner is not None and len(inner[1]) >= width:
                if inner[2].strip() and language.lower() in LANGUAGES:
                    raise ProtocolError(
                        f"a fence opens at line {index + 1} inside the block of line {opened + 1}; close that block "
                        "first, or, to write ``` inside a command, fence the block with ````"
                    )
                closed = not inner[2].strip()
            if not closed:
                body.append(lines[index])
            index += 1
        content = "\n".join(body)
        # CRLF is undone only where the fence line has it too: elsewhere a carriage return is the command's own.
        if lines[opened].endswith("\r"):
            content = content.replace("\r\n", "\n").removesuffix("\r")
        if not closed:
            content = content.rstrip()
            if content.endswith(fence[1]):
                content = content.removesuffix(fence[1]).rstrip()
        blocks.append(_Block(language.lower(), content, opened + 1))
    return blocks
