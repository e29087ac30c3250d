"""Reads shell scripts into a small syntax tree, with tree-sitter's bash grammar.

Invariants:
- `parse` never raises on text: what is not shell (or uses a construct the tree does not hold) gives None.
- Linear in the script's length; scripts over `MAX_SCRIPT` characters or `MAX_DEPTH` levels are not parsed.
- `shell_text.render` writes a tree back; parsing that gives the same tree.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import tree_sitter
import tree_sitter_bash

from agentgym_rtmc.signatures import shell_tree as tree
from agentgym_rtmc.signatures.shell_heredocs import PLACEHOLDER, Heredoc, extract
from agentgym_rtmc.signatures.shell_quoting import MAX_DEPTH, NotHeld, WordReader

MAX_SCRIPT = 200_000


# The grammar's scanner looks characters up in a table that large code points run out of (a crash). To the shell all of
# them are ordinary characters of a word, so the parser sees `%` for each byte and texts are taken from the source.
_MASK = bytes(range(128)) + b"%" * 128


@cache
def _parser() -> tree_sitter.Parser:
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(script: str) -> tree.Sequence | None:
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
    except (NotHeld, UnicodeDecodeError):
        return None


_WORDS = {
    "word", "number", "string", "raw_string", "ansi_c_string", "concatenation", "simple_expansion", "expansion",
    "command_substitution", "arithmetic_expansion", "extglob_pattern", "regex",
}  # fmt: skip
_VERBATIM = {"case_statement", "c_style_for_statement", "select_statement"}


@dataclass
class _Reader(WordReader):
    heredocs: tuple[Heredoc, ...]

    def sequence(self, node: tree_sitter.Node, depth: int) -> tree.Sequence:
        """Read the statements below a node."""
        return self._statements(node.children, depth)

    def _statements(self, nodes: list[tree_sitter.Node], depth: int) -> tree.Sequence:
        items: list[tree.Node] = []
        background: list[bool] = []
        for child in nodes:
            if child.type == "&" and items:
                background[-1] = True
            elif child.type == "comment" or (not child.is_named):
                continue
            else:
                items.append(self.node(child, depth + 1))
                background.append(False)
        return tree.Sequence(tuple(items), tuple(background))

    def node(self, node: tree_sitter.Node, depth: int) -> tree.Node:
        if depth > MAX_DEPTH:
            raise NotHeld
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
            return tree.Group(self.sequence(node, depth), subshell=True)
        if kind == "compound_statement":
            if node.children and node.children[0].type == "((":
                return self._verbatim(node)
            return tree.Group(self.sequence(node, depth), subshell=False)
        if kind in ("variable_assignment", "variable_assignments"):
            parts = [node] if kind == "variable_assignment" else node.named_children
            return tree.Simple(assignments=tuple(self._assignment(part, depth) for part in parts))
        if kind in ("declaration_command", "unset_command"):
            return tree.Simple(words=tuple(self._declared(child, depth) for child in node.children))
        if kind == "test_command":
            return self._test(node, depth)
        if kind == "negated_command":
            return tree.Not(self.node(node.named_children[-1], depth + 1))
        if kind == "for_statement":
            return self._for(node, depth)
        if kind == "while_statement":
            body = node.child_by_field_name("body")
            condition = [c for c in node.children if body is None or c.end_byte <= body.start_byte]
            if body is None:
                raise NotHeld
            until = node.children[0].type == "until"
            return tree.While(self._statements(condition[1:], depth), self.sequence(body, depth), until)
        if kind == "if_statement":
            return self._if(node, depth)
        if kind == "function_definition":
            name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
            if name is None or body is None or node.child_by_field_name("redirect") is not None:
                raise NotHeld
            return tree.Function(self.text(name), self.node(body, depth + 1))
        if kind in _VERBATIM:
            return self._verbatim(node)
        raise NotHeld

    def _verbatim(self, node: tree_sitter.Node) -> tree.Verbatim:
        text = self.text(node).strip()
        if PLACEHOLDER.search(text):
            raise NotHeld
        return tree.Verbatim(text)

    def _list(self, node: tree_sitter.Node, depth: int) -> tree.Node:
        left, operator, right = [c for c in node.children if c.type != "comment"]
        return _regrouped([self.node(left, depth + 1), operator.type, self.node(right, depth + 1)])

    def _pipeline(self, node: tree_sitter.Node, depth: int) -> tree.Node:
        tokens: list[tree.Node | str] = []
        for child in node.children:
            if child.is_named and child.type != "comment":
                tokens.append(self.node(child, depth + 1))
            elif child.type in ("|", "|&"):
                tokens.append(child.type)
        return _regrouped(tokens)

    def _redirected(self, node: tree_sitter.Node, depth: int) -> tree.Node:
        body_node = node.child_by_field_name("body")
        body: tree.Node = self.node(body_node, depth + 1) if body_node is not None else tree.Simple()
        end = body_node.end_byte if body_node is not None else node.start_byte
        for child in node.children_by_field_name("redirect"):
            lost = self._between(end, child.start_byte)
            if lost not in (b"", b"-"):
                raise NotHeld
            redirect, stray = self._redirect(child, depth)
            # A lone `-` before a descriptor gets lost in the grammar.
            body = self._attach(body, redirect, (tree.text_word("-"), *stray) if lost else stray)
            end = child.end_byte
        return body

    def _between(self, start: int, end: int) -> bytes:
        """What stands between two nodes, but for white space; a line's end is not white space."""
        return self.source[start:end].replace(b"\\\n", b"").strip(b" \t")

    def _attach(self, body: tree.Node, redirect: tree.Redirect, stray: tuple[tree.Word, ...]) -> tree.Node:
        # The grammar hangs a redirection on the whole list or pipeline; the shell means its last command.
        if isinstance(body, tree.AndOr):
            operator, last = body.rest[-1]
            return tree.AndOr(body.first, (*body.rest[:-1], (operator, self._attach(last, redirect, stray))))
        if isinstance(body, tree.Pipeline):
            return tree.Pipeline((*body.stages[:-1], self._attach(body.stages[-1], redirect, stray)), body.both)
        if isinstance(body, tree.Not):
            return tree.Not(self._attach(body.node, redirect, stray))
        if isinstance(body, tree.Simple):
            # Words after a redirection: the grammar reads them as further targets of it.
            return tree.Simple((*body.words, *stray), body.assignments, (*body.redirects, redirect))
        if stray or isinstance(body, tree.Sequence | tree.Function):
            raise NotHeld
        return replace(body, redirects=(*body.redirects, redirect))

    def _redirect(self, node: tree_sitter.Node, depth: int) -> tuple[tree.Redirect, tuple[tree.Word, ...]]:
        if node.type == "herestring_redirect":
            return tree.Redirect("<<<", target=self.word(node.named_children[-1], depth)), ()
        if node.type != "file_redirect":
            raise NotHeld
        descriptor = node.child_by_field_name("descriptor")
        fd = None
        if descriptor is not None:
            if not self.text(descriptor).isdigit():
                raise NotHeld
            fd = int(self.text(descriptor))
        operator = next(c.type for c in node.children if not c.is_named)
        targets = [self.word(t, depth) for t in node.children_by_field_name("destination")]
        self._check_gaps(node.children_by_field_name("destination"))
        if operator in (">&-", "<&-"):
            return tree.Redirect(operator[:2], fd, tree.text_word("-")), tuple(targets)
        if not targets:
            raise NotHeld
        placeholder = PLACEHOLDER.fullmatch(targets[0].literal or "")
        if operator == "<" and placeholder:
            return tree.Redirect("<<", fd, heredoc=self.heredocs[int(placeholder.group(1))]), tuple(targets[1:])
        return tree.Redirect(operator, fd, targets[0]), tuple(targets[1:])

    def _check_gaps(self, nodes: list[tree_sitter.Node]) -> None:
        """Refuse what the grammar takes for one command behind a redirection, though a line ends within."""
        if any(self._between(before.end_byte, after.start_byte) for before, after in pairwise(nodes)):
            raise NotHeld

    def _command(self, node: tree_sitter.Node, depth: int) -> tree.Simple:
        self._check_gaps(node.children)
        words: list[tree.Word] = []
        assignments: list[tuple[str, tree.Word]] = []
        redirects: list[tree.Redirect] = []
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
        return tree.Simple(tuple(words), tuple(assignments), tuple(redirects))

    def _assignment(self, node: tree_sitter.Node, depth: int) -> tuple[str, tree.Word]:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None or name.type != "variable_name" or any(c.type == "+=" for c in node.children):
            raise NotHeld
        if value is not None and value.type == "array":
            raise NotHeld
        return self.text(name), tree.Word() if value is None else self.word(value, depth)

    def _declared(self, node: tree_sitter.Node, depth: int) -> tree.Word:
        if node.type != "variable_assignment":
            return self.word(node, depth) if node.is_named else tree.text_word(self.text(node))
        name, value = self._assignment(node, depth)
        return tree.Word((tree.Part("text", name + "="), *value.parts))

    def _test(self, node: tree_sitter.Node, depth: int) -> tree.Node:
        if node.children[0].type != "[":
            return self._verbatim(node)
        words = [tree.text_word("test")]

        def collect(part: tree_sitter.Node) -> None:
            if part.type in _WORDS:
                words.append(self.word(part, depth))
            elif part.child_count == 0:
                words.append(tree.text_word(self.text(part)))
            else:
                for child in part.children:
                    collect(child)

        for child in node.children[1:-1]:
            collect(child)
        return tree.Simple(tuple(words))

    def _for(self, node: tree_sitter.Node, depth: int) -> tree.Node:
        variable, body = node.child_by_field_name("variable"), node.child_by_field_name("body")
        if variable is None or body is None or node.children[0].type != "for":
            raise NotHeld
        values = node.children_by_field_name("value")
        return tree.For(self.text(variable), tuple(self.word(v, depth) for v in values), self.sequence(body, depth))

    def _if(self, node: tree_sitter.Node, depth: int) -> tree.Node:
        branches: list[tuple[tree.Node, tree.Node]] = []
        otherwise: tree.Node | None = None
        clauses = [c for c in node.children if c.type in ("elif_clause", "else_clause")]
        own = [c for c in node.children if c.type not in ("elif_clause", "else_clause")]
        branches.append(self._branch(own, depth))
        for clause in clauses:
            if clause.type == "elif_clause":
                branches.append(self._branch(clause.children, depth))
            else:
                otherwise = self._statements(clause.children, depth)
        return tree.If(tuple(branches), otherwise)

    def _branch(self, nodes: list[tree_sitter.Node], depth: int) -> tuple[tree.Node, tree.Node]:
        then = next((i for i, c in enumerate(nodes) if c.type == "then"), None)
        if then is None:
            raise NotHeld
        return self._statements(nodes[:then], depth), self._statements(nodes[then:], depth)


def _regrouped(tokens: list[tree.Node | str]) -> tree.Node:
    """Group nodes and the operators between them as the shell does: `|` binds before `&&` and `||`.

    Where redirections stand between, the grammar nests lists in pipelines (`a && b 2>&1 | c`) and pipelines in each
    other.
    """
    flat: list[tree.Node | str] = []
    for token in tokens:
        if isinstance(token, tree.AndOr):
            flat.append(token.first)
            for operator, part in token.rest:
                flat += [operator, part]
        else:
            flat.append(token)
    chain: list[tree.Node] = []
    operators: list[str] = []
    stages: list[tree.Node] = []
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
        elif isinstance(token, tree.Pipeline):
            stages.extend(token.stages)
            both.extend(token.both)
        else:
            stages.append(token)
            both.append(False)
    close()
    return tree.AndOr(chain[0], tuple(zip(operators, chain[1:], strict=True))) if operators else chain[0]


def _negated(stages: list[tree.Node], both: list[bool]) -> tree.Node:
    if isinstance(stages[0], tree.Not):
        return tree.Not(tree.Pipeline((stages[0].node, *stages[1:]), tuple(both)))
    return tree.Pipeline(tuple(stages), tuple(both))
