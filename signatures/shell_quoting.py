"""Reads the words of shell syntax: quotes and backslashes are taken away, expansions and globs kept apart.

Invariants: words the shell reads alike come out equal, whatever quotes they were written with. What a tree cannot hold
raises `NotHeld`, which never leaves `shell.parse`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass

import tree_sitter

from agentgym_rtmc.signatures.shell_heredocs import PLACEHOLDER
from agentgym_rtmc.signatures.shell_tree import Part, Sequence, Word

MAX_DEPTH = 60


class NotHeld(Exception):  # noqa: N818 - control flow between this file and `shell`, never seen outside
    """The script uses something the tree does not hold."""


@dataclass
class WordReader(ABC):
    """Reads word nodes of the grammar. Scripts inside of words are left to the subclass."""

    source: bytes

    @abstractmethod
    def sequence(self, node: tree_sitter.Node, depth: int) -> Sequence:
        """Read the statements below a node."""

    def text(self, node: tree_sitter.Node) -> str:
        """The node's text in the script."""
        return self.source[node.start_byte : node.end_byte].decode()

    def word(self, node: tree_sitter.Node, depth: int) -> Word:
        """Read one word."""
        parts: list[Part] = []
        self._parts(node, depth, parts)
        if len(parts) == 1 and parts[0].text and "__HEREDOC_" not in parts[0].text:
            return Word(tuple(parts))
        merged: list[Part] = []
        for part in parts:
            if merged and part.kind == "text" and merged[-1].kind == "text":
                merged[-1] = Part("text", merged[-1].text + part.text)
            elif part.kind != "text" or part.text:
                merged.append(part)
        for part in merged:
            if PLACEHOLDER.search(part.text) and not PLACEHOLDER.fullmatch(part.text):
                raise NotHeld
        return Word(tuple(merged))

    def _parts(self, node: tree_sitter.Node, depth: int, out: list[Part], quoted: bool = False) -> None:
        kind = node.type
        if depth > MAX_DEPTH:
            raise NotHeld
        if kind in ("word", "number", "variable_name", "special_variable_name", "extglob_pattern", "regex"):
            out.extend(_bare(self.text(node)))
        elif kind == "raw_string":
            out.append(Part("text", self.text(node)[1:-1]))
        elif kind == "ansi_c_string":
            out.append(Part("text", _ansi(self.text(node)[2:-1])))
        elif kind in ("string", "translated_string"):
            inner = node if kind == "string" else node.children[-1]
            self._string(inner, depth, out)
        elif kind == "concatenation":
            for child in node.children:
                self._parts(child, depth + 1, out)
        elif kind in ("command_substitution", "process_substitution"):
            if node.children and node.children[0].type == "$(" and self.text(node).startswith("$(<"):
                raise NotHeld
            opening = "$(" if node.children[0].type in ("`", "$(") else self.text(node)[:2]
            if self.text(node).startswith("`") and "\\" in self.text(node):
                raise NotHeld  # backslashes mean something else inside backquotes
            out.append(Part("expand", opening, quoted, self.sequence(node, depth + 1)))
        elif kind in ("simple_expansion", "expansion", "arithmetic_expansion"):
            text = re.sub(r"^\$\{(\w+|[?$#!])\}$", r"$\1", self.text(node))
            # $? and its like are one word anyway, so quotes around them say nothing.
            out.append(Part("expand", text, quoted or text in ("$?", "$$", "$#", "$!")))
        elif kind == "brace_expression":
            out.append(Part("glob", self.text(node)))
        else:
            text = self.text(node)
            if node.is_named or not _PLAIN.fullmatch(text):
                raise NotHeld
            out.append(Part("text", text))

    def _string(self, node: tree_sitter.Node, depth: int, out: list[Part]) -> None:
        # White space between expansions belongs to no child node: go by byte offsets, not by children.
        position, end = node.start_byte + 1, node.end_byte - 1
        out.append(Part("text", ""))
        for child in node.children:
            if child.type in ("string_content", '"'):
                continue
            if child.type == "$" or not child.is_named:
                continue
            out.append(Part("text", _double_quoted(self.source[position : child.start_byte].decode())))
            self._parts(child, depth + 1, out, quoted=True)
            position = child.end_byte
        out.append(Part("text", _double_quoted(self.source[position:end].decode())))


_PLAIN = re.compile(r"[\w./:=,@%^!$\[\]{}+-]+")
_SPECIAL = re.compile(r"[\\*?\[\]{}~]")
_GLOB = re.compile(r"\\(.)|([*?]|\[[^\]]*\]|[{}~\[\]])", re.DOTALL)


def _bare(text: str) -> list[Part]:
    """Split an unquoted word into plain text and glob characters, taking backslashes away."""
    if not _SPECIAL.search(text):
        return [Part("text", text)]
    parts: list[Part] = []
    position = 0
    for match in _GLOB.finditer(text):
        parts.append(Part("text", text[position : match.start()]))
        position = match.end()
        if match.group(2) is not None:
            parts.append(Part("glob", match.group(2)))
        elif match.group(1) != "\n":
            parts.append(Part("text", match.group(1)))
    parts.append(Part("text", text[position:]))
    return parts


def _double_quoted(text: str) -> str:
    return re.sub(r'\\([$`"\\]|\n)', lambda m: "" if m.group(1) == "\n" else m.group(1), text)


_ANSI = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v", "e": "\x1b", "E": "\x1b"}


def _ansi(text: str) -> str:
    def decode(match: re.Match[str]) -> str:
        octal, hexadecimal, wide, char = match.groups()
        if octal:
            return chr(int(octal, 8) & 255)
        if hexadecimal or wide:
            code = int(hexadecimal or wide, 16)
            if code == 0 or code > 0x10FFFF or 0xD800 <= code < 0xE000:
                raise NotHeld
            return chr(code)
        return _ANSI.get(char, char if char in "\\'\"?" else "\\" + char)

    return re.sub(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|[uU]([0-9a-fA-F]{1,8})|(.))", decode, text, flags=re.DOTALL)
