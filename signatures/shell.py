"""Reads shell scripts into a small syntax tree, with tree-sitter's bash grammar.

Invariants:
- `parse` never raises on text: what is not shell (or uses a construct the tree does not hold) gives None.
- Linear in the script's length; scripts over `MAX_SCRIPT` characters or `MAX_DEPTH` levels are not parsed.
- `shell_text.render` writes a tree back; parsing that gives the same tree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache

import tree_sitter
import tree_sitter_bash

from agentgym_rtmc.signatures.shell_heredocs import PLACEHOLDER, Heredoc, extract
from agentgym_rtmc.signatures.shell_tree import (
    AndOr,
    For,
    Function,
    Group,
    If,
    Node,
    Not,
    Part,
    Pipeline,
    Redirect,
    Sequence,
    Simple,
    Verbatim,
    While,
    Word,
    text_word,
)

MAX_SCRIPT = 200_000
MAX_DEPTH = 60


# The grammar's scanner looks characters up in a table that large code points run out of (a crash). To the shell all of
# them are ordinary characters of a word, so the parser sees `%` for each byte and texts are taken from the source.
_MASK = bytes(range(128)) + b"%" * 128


class _NotHeld(Exception):  # noqa: N818 - control flow inside this file, never seen outside
    """The script uses something the tree does not hold."""


@cache
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(script: str) -> Sequence | None:
    """Parse a script; None if it is not readable as shell. Comments are dropped."""
    if len(script) > MAX_SCRIPT or "\0" in script or PLACEHOLDER.search(script):
        return None
    text, heredocs = extract(script.replace("\r\n", "\n"))
    try:
        source = text.encode()
    except UnicodeEncodeError:  # lone surrogates: not text a shell could have been given
        return None
    root = _parser().parse(source.translate(_MASK)).root_node
    if root.has_error:
        return None
    try:
        return _Reader(source, heredocs).sequence(root, 0)
    except (_NotHeld, UnicodeDecodeError):
        return None


_WORDS = {
    "word", "number", "string", "raw_string", "ansi_c_string", "concatenation", "simple_expansion", "expansion",
    "command_substitution", "arithmetic_expansion", "extglob_pattern", "regex",
}  # fmt: skip
_VERBATIM = {"case_statement", "c_style_for_statement", "select_statement"}


@dataclass
class _Reader:
    source: bytes
    heredocs: tuple[Heredoc, ...]

    def text(self, node: tree_sitter.Node) -> str:
        return self.source[node.start_byte : node.end_byte].decode()

    def sequence(self, node: tree_sitter.Node, depth: int) -> Sequence:
        return self._statements(node.children, depth)

    def _statements(self, nodes: list[tree_sitter.Node], depth: int) -> Sequence:
        items: list[Node] = []
        background: list[bool] = []
        for child in nodes:
            if child.type == "&" and items:
                background[-1] = True
            elif child.type == "comment" or (not child.is_named):
                continue
            else:
                items.append(self.node(child, depth + 1))
                background.append(False)
        return Sequence(tuple(items), tuple(background))

    def node(self, node: tree_sitter.Node, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise _NotHeld
        kind = node.type
        if kind == "command":
            return self._command(node, depth)
        if kind == "redirected_statement":
            return self._redirected(node, depth)
        if kind == "list":
            return self._list(node, depth)
        if kind == "pipeline":
            return self._pipeline(node, depth)
        if kind == "subshell":
            return Group(self.sequence(node, depth), subshell=True)
        if kind == "compound_statement":
            if node.children and node.children[0].type == "((":
                return self._verbatim(node)
            return Group(self.sequence(node, depth), subshell=False)
        if kind in ("variable_assignment", "variable_assignments"):
            parts = [node] if kind == "variable_assignment" else node.named_children
            return Simple(assignments=tuple(self._assignment(part, depth) for part in parts))
        if kind in ("declaration_command", "unset_command"):
            return Simple(words=tuple(self._declared(child, depth) for child in node.children))
        if kind == "test_command":
            return self._test(node, depth)
        if kind == "negated_command":
            return Not(self.node(node.named_children[-1], depth + 1))
        if kind == "for_statement":
            return self._for(node, depth)
        if kind == "while_statement":
            body = node.child_by_field_name("body")
            condition = [c for c in node.children if body is None or c.end_byte <= body.start_byte]
            if body is None:
                raise _NotHeld
            until = node.children[0].type == "until"
            return While(self._statements(condition[1:], depth), self.sequence(body, depth), until)
        if kind == "if_statement":
            return self._if(node, depth)
        if kind == "function_definition":
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if name is None or body is None or node.child_by_field_name("redirect") is not None:
                raise _NotHeld
            return Function(self.text(name), self.node(body, depth + 1))
        if kind in _VERBATIM:
            return self._verbatim(node)
        raise _NotHeld

    def _verbatim(self, node: tree_sitter.Node) -> Verbatim:
        text = self.text(node).strip()
        if PLACEHOLDER.search(text):
            raise _NotHeld
        return Verbatim(text)

    def _list(self, node: tree_sitter.Node, depth: int) -> Node:
        left, operator, right = [c for c in node.children if c.type != "comment"]
        return _regrouped([self.node(left, depth + 1), operator.type, self.node(right, depth + 1)])

    def _pipeline(self, node: tree_sitter.Node, depth: int) -> Node:
        tokens: list[Node | str] = []
        for child in node.children:
            if child.is_named and child.type != "comment":
                tokens.append(self.node(child, depth + 1))
            elif child.type in ("|", "|&"):
                tokens.append(child.type)
        return _regrouped(tokens)

    def _redirected(self, node: tree_sitter.Node, depth: int) -> Node:
        body_node = node.child_by_field_name("body")
        body: Node = self.node(body_node, depth + 1) if body_node is not None else Simple()
        for child in node.children_by_field_name("redirect"):
            redirect, stray = self._redirect(child, depth)
            body = self._attach(body, redirect, stray)
        return body

    def _attach(self, body: Node, redirect: Redirect, stray: tuple[Word, ...]) -> Node:
        # The grammar hangs a redirection on the whole list or pipeline; the shell means its last command.
        if isinstance(body, AndOr):
            operator, last = body.rest[-1]
            return AndOr(body.first, (*body.rest[:-1], (operator, self._attach(last, redirect, stray))))
        if isinstance(body, Pipeline):
            return Pipeline((*body.stages[:-1], self._attach(body.stages[-1], redirect, stray)), body.both)
        if isinstance(body, Not):
            return Not(self._attach(body.node, redirect, stray))
        if isinstance(body, Simple):
            # Words after a redirection: the grammar reads them as further targets of it.
            return Simple((*body.words, *stray), body.assignments, (*body.redirects, redirect))
        if stray or isinstance(body, Sequence | Function):
            raise _NotHeld
        return replace(body, redirects=(*body.redirects, redirect))

    def _redirect(self, node: tree_sitter.Node, depth: int) -> tuple[Redirect, tuple[Word, ...]]:
        if node.type == "herestring_redirect":
            return Redirect("<<<", target=self.word(node.named_children[-1], depth)), ()
        if node.type != "file_redirect":
            raise _NotHeld
        descriptor = node.child_by_field_name("descriptor")
        fd = None
        if descriptor is not None:
            if not self.text(descriptor).isdigit():
                raise _NotHeld
            fd = int(self.text(descriptor))
        operator = next(c.type for c in node.children if not c.is_named)
        targets = [self.word(t, depth) for t in node.children_by_field_name("destination")]
        if operator in (">&-", "<&-"):
            return Redirect(operator[:2], fd, text_word("-")), tuple(targets)
        if not targets:
            raise _NotHeld
        placeholder = PLACEHOLDER.fullmatch(targets[0].literal or "")
        if operator == "<" and placeholder:
            return Redirect("<<", fd, heredoc=self.heredocs[int(placeholder.group(1))]), tuple(targets[1:])
        return Redirect(operator, fd, targets[0]), tuple(targets[1:])

    def _command(self, node: tree_sitter.Node, depth: int) -> Simple:
        words: list[Word] = []
        assignments: list[tuple[str, Word]] = []
        redirects: list[Redirect] = []
        for child in node.children:
            if child.type == "variable_assignment":
                assignments.append(self._assignment(child, depth))
            elif child.type in ("file_redirect", "herestring_redirect", "heredoc_redirect"):
                redirect, stray = self._redirect(child, depth)
                redirects.append(redirect)
                words.extend(stray)
            elif child.type == "command_name":
                words.append(self.word(child.children[0], depth))
            elif child.type != "comment":
                words.append(self.word(child, depth))
        return Simple(tuple(words), tuple(assignments), tuple(redirects))

    def _assignment(self, node: tree_sitter.Node, depth: int) -> tuple[str, Word]:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None or name.type != "variable_name" or any(c.type == "+=" for c in node.children):
            raise _NotHeld
        if value is not None and value.type == "array":
            raise _NotHeld
        return self.text(name), Word() if value is None else self.word(value, depth)

    def _declared(self, node: tree_sitter.Node, depth: int) -> Word:
        if node.type != "variable_assignment":
            return self.word(node, depth) if node.is_named else text_word(self.text(node))
        name, value = self._assignment(node, depth)
        return Word((Part("text", name + "="), *value.parts))

    def _test(self, node: tree_sitter.Node, depth: int) -> Node:
        if node.children[0].type != "[":
            return self._verbatim(node)
        words = [text_word("test")]

        def collect(part: tree_sitter.Node) -> None:
            if part.type in _WORDS:
                words.append(self.word(part, depth))
            elif part.child_count == 0:
                words.append(text_word(self.text(part)))
            else:
                for child in part.children:
                    collect(child)

        for child in node.children[1:-1]:
            collect(child)
        return Simple(tuple(words))

    def _for(self, node: tree_sitter.Node, depth: int) -> Node:
        variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if variable is None or body is None or node.children[0].type != "for":
            raise _NotHeld
        values = node.children_by_field_name("value")
        return For(self.text(variable), tuple(self.word(v, depth) for v in values), self.sequence(body, depth))

    def _if(self, node: tree_sitter.Node, depth: int) -> Node:
        branches: list[tuple[Node, Node]] = []
        otherwise: Node | None = None
        clauses = [c for c in node.children if c.type in ("elif_clause", "else_clause")]
        own = [c for c in node.children if c.type not in ("elif_clause", "else_clause")]
        branches.append(self._branch(own, depth))
        for clause in clauses:
            if clause.type == "elif_clause":
                branches.append(self._branch(clause.children, depth))
            else:
                otherwise = self._statements(clause.children, depth)
        return If(tuple(branches), otherwise)

    def _branch(self, nodes: list[tree_sitter.Node], depth: int) -> tuple[Node, Node]:
        then = next((i for i, c in enumerate(nodes) if c.type == "then"), None)
        if then is None:
            raise _NotHeld
        return self._statements(nodes[:then], depth), self._statements(nodes[then:], depth)

    def word(self, node: tree_sitter.Node, depth: int) -> Word:
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
                raise _NotHeld
        return Word(tuple(merged))

    def _parts(self, node: tree_sitter.Node, depth: int, out: list[Part], quoted: bool = False) -> None:
        kind = node.type
        if depth > MAX_DEPTH:
            raise _NotHeld
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
                raise _NotHeld
            opening = "$(" if node.children[0].type in ("`", "$(") else self.text(node)[:2]
            if self.text(node).startswith("`") and "\\" in self.text(node):
                raise _NotHeld  # backslashes mean something else inside backquotes
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
                raise _NotHeld
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


def _regrouped(tokens: list[Node | str]) -> Node:
    """Group nodes and the operators between them as the shell does: `|` binds before `&&` and `||`.

    Where redirections stand between, the grammar nests lists in pipelines (`a && b 2>&1 | c`) and pipelines in each
    other.
    """
    flat: list[Node | str] = []
    for token in tokens:
        if isinstance(token, AndOr):
            flat.append(token.first)
            for operator, part in token.rest:
                flat += [operator, part]
        else:
            flat.append(token)
    chain: list[Node] = []
    operators: list[str] = []
    stages: list[Node] = []
    both: list[bool] = []

    def close() -> None:
        chain.append(_negated(stages, both) if len(stages) > 1 else stages[0])
        stages.clear()
        both.clear()

    for token in flat:
        if isinstance(token, str):
            if token in ("|", "|&"):
                both[-1] = token == "|&"
            else:
                close()
                operators.append(token)
        elif isinstance(token, Pipeline):
            stages.extend(token.stages)
            both.extend(token.both)
        else:
            stages.append(token)
            both.append(False)
    close()
    return AndOr(chain[0], tuple(zip(operators, chain[1:], strict=True))) if operators else chain[0]


def _negated(stages: list[Node], both: list[bool]) -> Node:
    if isinstance(stages[0], Not):
        return Not(Pipeline((stages[0].node, *stages[1:]), tuple(both)))
    return Pipeline(tuple(stages), tuple(both))


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
                raise _NotHeld
            return chr(code)
        return _ANSI.get(char, char if char in "\\'\"?" else "\\" + char)

    return re.sub(r"\\(?:([0-7]{1,3})|x([0-9a-fA-F]{1,2})|[uU]([0-9a-fA-F]{1,8})|(.))", decode, text, flags=re.DOTALL)
