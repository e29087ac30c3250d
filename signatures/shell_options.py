"""Reads options and operands of commands as GNU getopt does, and writes them in one order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from agentgym_rtmc.signatures.shell_text import quote
from agentgym_rtmc.signatures.shell_tree import Word
from agentgym_rtmc.signatures.shell_words import shape


@dataclass(frozen=True)
class Options:
    """Options in order as (name, value or None), and operands. Names are one letter, or long with their `--`."""

    options: tuple[tuple[str, str | None], ...]
    operands: tuple[Word, ...]

    def has(self, *names: str) -> bool:
        """Whether any of the options is given."""
        return any(name in names for name, _ in self.options)

    def value(self, *names: str) -> str | None:
        """The last value given to any of the options."""
        return next((value for name, value in reversed(self.options) if name in names), None)

    def only(self, *names: str) -> bool:
        """Whether no other option than these is given."""
        return all(name in names for name, _ in self.options)


def read_options(
    words: Iterable[Word],
    short_values: str = "",
    long_values: Iterable[str] = (),
    aliases: Mapping[str, str] = MappingProxyType({}),
    permute: bool = True,
) -> Options | None:
    """Read words as GNU getopt does.

    `short_values`: letters that take a value; `long_values`: long names that take one; `aliases`: long name -> letter.
    `permute` false stops at the first operand. None where an option cannot be read (an expansion in its place).
    """
    words = list(words)
    long_values = set(long_values)

    def value_of(word: Word) -> str | None:
        return None if any(part.kind == "expand" for part in word.parts) else shape(word)

    options: list[tuple[str, str | None]] = []
    operands: list[Word] = []
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        text = shape(word)
        if not text.startswith("-") or text == "-" or (word.parts and word.parts[0].kind != "text"):
            operands.append(word)
            if not permute:
                operands.extend(words[index:])
                break
            continue
        if text == "--":
            operands.extend(words[index:])
            break
        if any(part.kind == "expand" for part in word.parts):
            return None
        if text.startswith("--"):
            name, equals, value = text.partition("=")
            given: str | None = value if equals else None
            if not equals and name in long_values:
                if index >= len(words):
                    return None
                given = value_of(words[index])
                if given is None:
                    return None
                index += 1
            options.append((aliases.get(name, name), given))
            continue
        letters = text[1:]
        for position, letter in enumerate(letters):
            if letter in short_values:
                rest = letters[position + 1 :]
                if not rest:
                    if index >= len(words):
                        return None
                    following = value_of(words[index])
                    if following is None:
                        return None
                    rest = following
                    index += 1
                options.append((letter, rest))
                break
            if not (letter.isascii() and letter.isalnum()):
                return None
            options.append((letter, None))
    return Options(tuple(options), tuple(operands))


def option_text(options: Iterable[tuple[str, str | None]]) -> list[str]:
    """Write options in one order, letters without value joined."""
    letters = sorted({name for name, value in options if len(name) == 1 and value is None})
    out = ["-" + "".join(letters)] if letters else []
    valued = {(name, value) for name, value in options if len(name) > 1 or value is not None}
    for name, value in sorted(valued, key=lambda option: (option[0], option[1] or "")):
        dashed = name if name.startswith("--") else f"-{name}"
        if value is None:
            out.append(dashed)
        elif len(name) == 1:
            out += [dashed, quote(value)]
        else:
            out.append(quote(f"{dashed}={value}"))
    return out
