"""Fixed text that a command prints: `echo`, `printf`, `cat` of a here-document."""

from __future__ import annotations

import re

from agentgym_rtmc.signatures.shell_redirects import fixed_input
from agentgym_rtmc.signatures.shell_tree import Redirect, Word
from agentgym_rtmc.signatures.shell_words import Place


def fixed_output(head: str, words: tuple[Word, ...], stdin: Redirect | None, place: Place) -> str | None:
    """The fixed text a command prints, where it prints fixed text and does nothing else."""
    if head == "cat" and (not words or (len(words) == 1 and words[0].literal == "-")):
        return fixed_input(stdin, place)
    if head == "cat" and len(words) == 1 and words[0].literal == "/dev/null":
        return ""
    literals = [word.literal for word in words]
    if any(literal is None for literal in literals):
        return None
    texts = [literal or "" for literal in literals]
    if head in ("true", ":") and not texts:
        return ""
    if head == "echo":
        return _echo(texts)
    if head == "printf" and texts:
        return _printf(texts)
    return None


def _echo(texts: list[str]) -> str | None:
    newline, escapes = "\n", False
    while texts and re.fullmatch(r"-[neE]+", texts[0]):
        newline = "" if "n" in texts[0] else newline
        escapes = "e" in texts[0] if re.search("[eE]", texts[0]) else escapes
        texts = texts[1:]
    text = " ".join(texts)
    if escapes:
        decoded = _backslashes(text)
        return None if decoded is None else decoded + newline
    return text + newline


def _printf(texts: list[str]) -> str | None:
    pattern, *values = texts
    if pattern in ("%s", "%b") and len(values) == 1:
        return values[0] if pattern == "%s" else _backslashes(values[0])
    if pattern == "%s\\n" and values:
        return "".join(value + "\n" for value in values)
    if values or "%" in pattern.replace("%%", ""):
        return None
    return _backslashes(pattern.replace("%%", "%"))


_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "a": "\a", "b": "\b", "f": "\f", "v": "\v", '"': '"', "'": "'"}


def _backslashes(text: str) -> str | None:
    out, position = "", 0
    while position < len(text):
        if text[position] == "\\" and position + 1 < len(text):
            if text[position + 1] not in _ESCAPES:
                return None
            out += _ESCAPES[text[position + 1]]
            position += 2
        else:
            out += text[position]
            position += 1
    return out
