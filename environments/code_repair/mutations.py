"""Mutation operators: every way to plant one small bug in a program.

Invariants: a mutant is one single `Edit` of the text, found on the libcst tree, so that comments and layout stay. All
edits of a program are distinct texts, each parses, and they come in a fixed order. Whether a mutant really misbehaves
is proven elsewhere (`build.py`), not here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

from agentgym_rtmc.errors import TaskError


@dataclass(frozen=True, order=True)
class Edit:
    """Replace `text[start:end]` by `new`; `operator` names the kind of bug. Offsets count characters."""

    start: int
    end: int
    new: str
    operator: str

    def apply(self, text: str) -> str:
        """Return the edited text."""
        return text[: self.start] + self.new + text[self.end :]

    def inverse(self, text: str) -> Edit:
        """Return the edit that undoes this one; `text` is the text before it."""
        return Edit(self.start, self.start + len(self.new), text[self.start : self.end], self.operator)


_COMPARE = {
    cst.LessThan: ("<=", ">"),
    cst.LessThanEqual: ("<", ">="),
    cst.GreaterThan: (">=", "<"),
    cst.GreaterThanEqual: (">", "<="),
    cst.Equal: ("!=",),
    cst.NotEqual: ("==",),
    cst.In: ("not in",),
    cst.NotIn: ("in",),
    cst.Is: ("is not",),
    cst.IsNot: ("is",),
}
_ARITHMETIC = {
    cst.Add: ("-",),
    cst.Subtract: ("+",),
    cst.Multiply: ("+", "//"),
    cst.FloorDivide: ("%", "*"),
    cst.Modulo: ("//",),
    cst.AddAssign: ("-=", "="),
    cst.SubtractAssign: ("+=",),
    cst.MultiplyAssign: ("+=",),
}
_CALLS = {
    "min": "max",
    "max": "min",
    "any": "all",
    "all": "any",
    "upper": "lower",
    "lower": "upper",
    "lstrip": "rstrip",
    "rstrip": "lstrip",
    "append": "extend",
    "sum": "len",
}
OPERATORS = (
    "compare",
    "arithmetic",
    "off_by_one",
    "boolean",
    "flipped_literal",
    "dropped_not",
    "added_not",
    "wrong_variable",
    "swapped_arguments",
    "wrong_return",
    "wrong_constant",
    "wrong_index",
    "wrong_bound",
    "wrong_call",
    "dropped_statement",
    "wrong_jump",
)
"""Names of all operators."""


def find_edits(text: str) -> tuple[Edit, ...]:
    """Return every edit of a program, sorted by place, with distinct and parsing results.

    Raises TaskError if the program does not parse or is not plain ASCII (offsets count bytes and characters alike).
    """
    if not text.isascii():
        raise TaskError("a program to mutate must be plain ASCII")
    try:
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    except cst.ParserSyntaxError as error:
        raise TaskError(f"a program to mutate does not parse: {error}") from error
    finder = _Finder(text)
    wrapper.visit(finder)
    seen = {text}
    kept: list[Edit] = []
    for edit in sorted(finder.edits):
        mutant = edit.apply(text)
        if mutant not in seen and _parses(mutant):
            seen.add(mutant)
            kept.append(edit)
    return tuple(kept)


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


class _Finder(cst.CSTVisitor):
    """Collects the edits of one module."""

    METADATA_DEPENDENCIES = (ByteSpanPositionProvider,)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.edits: list[Edit] = []
        self._text = text
        self._locals: list[list[str]] = []
        constants = (node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant))
        self._numbers = sorted({value for value in constants if type(value) is int})

    # -- helpers ------------------------------------------------------------------------------------------------

    def _span(self, node: cst.CSTNode) -> tuple[int, int]:
        span = self.get_metadata(ByteSpanPositionProvider, node)
        return span.start, span.start + span.length

    def _add(self, operator: str, node: cst.CSTNode, new: str) -> None:
        self.edits.append(Edit(*self._span(node), new, operator))

    def _code(self, node: cst.CSTNode) -> str:
        start, end = self._span(node)
        return self._text[start:end]

    # -- operators and constants --------------------------------------------------------------------------------

    def visit_ComparisonTarget(self, node: cst.ComparisonTarget) -> None:  # noqa: N802
        for new in _COMPARE.get(type(node.operator), ()):
            start, end = _trimmed(self._text, *self._span(node.operator))
            self.edits.append(Edit(start, end, new, "compare"))

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:  # noqa: N802
        self._arithmetic(node.operator)
        is_number = all(not isinstance(side, cst.SimpleString) for side in (node.left, node.right))
        if isinstance(node.operator, cst.Subtract) and is_number:
            swapped = f"{self._code(node.right)} - {self._code(node.left)}"
            self._add("swapped_arguments", node, swapped)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:  # noqa: N802
        self._arithmetic(node.operator)
        self._dropped(node)

    def _arithmetic(self, operator: cst.CSTNode) -> None:
        start, end = _trimmed(self._text, *self._span(operator))
        self.edits += [Edit(start, end, new, "arithmetic") for new in _ARITHMETIC.get(type(operator), ())]

    def visit_BooleanOperation(self, node: cst.BooleanOperation) -> None:  # noqa: N802
        start, end = _trimmed(self._text, *self._span(node.operator))
        self.edits.append(Edit(start, end, "or" if isinstance(node.operator, cst.And) else "and", "boolean"))

    def visit_UnaryOperation(self, node: cst.UnaryOperation) -> None:  # noqa: N802
        start, _ = self._span(node)
        inner = self._span(node.expression)[0]
        if isinstance(node.operator, cst.Not):
            self.edits.append(Edit(start, inner, "", "dropped_not"))
        elif isinstance(node.operator, cst.Minus):
            self.edits.append(Edit(start, inner, "", "wrong_constant"))

    def visit_Integer(self, node: cst.Integer) -> None:  # noqa: N802
        value = int(node.value)
        for near in (value + 1, value - 1):
            if near >= 0:
                self._add("off_by_one", node, str(near))
        for other in self._numbers:
            if abs(other - value) > 1:
                self._add("wrong_constant", node, str(other))

    # -- names --------------------------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802
        inside = ast.parse(_dedented(self._text, *self._span(node)))
        names = {n.id for n in ast.walk(inside) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        names |= {a.arg for a in ast.walk(inside) if isinstance(a, ast.arg)}
        self._locals.append(sorted(names - {"self", "_"}))

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:  # noqa: N802
        self._locals.pop()

    def _other_names(self, name: str) -> list[str]:
        here = self._locals[-1] if self._locals else []
        return [other for other in here if other != name] if name in here else []

    def _wrong_name(self, operator: str, node: cst.CSTNode | None) -> None:
        if isinstance(node, cst.Name):
            for other in self._other_names(node.value):
                self._add(operator, node, other)

    def visit_Comparison(self, node: cst.Comparison) -> None:  # noqa: N802
        self._wrong_name("wrong_variable", node.left)
        for target in node.comparisons:
            self._wrong_name("wrong_variable", target.comparator)

    def leave_BinaryOperation(self, original_node: cst.BinaryOperation) -> None:  # noqa: N802
        self._wrong_name("wrong_variable", original_node.left)
        self._wrong_name("wrong_variable", original_node.right)

    def leave_AugAssign(self, original_node: cst.AugAssign) -> None:  # noqa: N802
        self._wrong_name("wrong_variable", original_node.value)

    def visit_Assign(self, node: cst.Assign) -> None:  # noqa: N802
        self._wrong_name("wrong_variable", node.value)
        self._flipped(node.value)

    def visit_Return(self, node: cst.Return) -> None:  # noqa: N802
        if isinstance(node.value, cst.Name):
            self._wrong_name("wrong_return", node.value)
        self._flipped(node.value)

    def _flipped(self, node: cst.CSTNode | None) -> None:
        if isinstance(node, cst.Name) and node.value in ("True", "False"):
            self._add("flipped_literal", node, "False" if node.value == "True" else "True")

    # -- calls and places ---------------------------------------------------------------------------------------

    def visit_Call(self, node: cst.Call) -> None:  # noqa: N802
        name = node.func if isinstance(node.func, cst.Name) else getattr(node.func, "attr", None)
        if isinstance(name, cst.Name) and name.value in _CALLS:
            self._add("wrong_call", name, _CALLS[name.value])
        if len(node.args) >= 2:
            first, second = (argument.value for argument in node.args[:2])
            start, end = self._span(first)[0], self._span(second)[1]
            between = self._text[self._span(first)[1] : self._span(second)[0]]
            new = self._code(second) + between + self._code(first)
            self.edits.append(Edit(start, end, new, "swapped_arguments"))
        for argument in node.args:
            self._wrong_name("wrong_variable", argument.value)
        if isinstance(node.func, cst.Name) and node.func.value == "range":
            self._bounds(node.args)

    def _bounds(self, arguments: Sequence[cst.Arg]) -> None:
        stop = arguments[min(1, len(arguments) - 1)].value
        if not isinstance(stop, cst.Integer):
            for sign in "+-":
                start, end = self._span(stop)
                self.edits.append(Edit(start, end, f"{self._text[start:end]} {sign} 1", "wrong_bound"))
        if len(arguments) == 1:
            start, _ = self._span(stop)
            self.edits.append(Edit(start, start, "1, ", "wrong_bound"))

    def visit_Subscript(self, node: cst.Subscript) -> None:  # noqa: N802
        for element in node.slice:
            if isinstance(element.slice, cst.Index):
                self._index(element.slice.value)
            elif isinstance(element.slice, cst.Slice):
                self._slice(element.slice)

    def _index(self, index: cst.BaseExpression) -> None:
        self._wrong_name("wrong_index", index)
        start, end = self._span(index)
        if isinstance(index, cst.Integer):
            self.edits.append(Edit(start, end, "-1" if index.value == "0" else f"-{index.value}", "wrong_index"))
        elif isinstance(index, cst.Name) and self._other_names(index.value):
            self.edits += [Edit(start, end, f"{index.value} {sign} 1", "wrong_index") for sign in "+-"]

    def _slice(self, part: cst.Slice) -> None:
        start, end = self._span(part)
        if part.lower is None and part.upper is not None:
            self.edits.append(Edit(start, end, f"{self._code(part.upper)}:", "wrong_index"))
        elif part.upper is None and part.lower is not None:
            self.edits.append(Edit(start, end, f":{self._code(part.lower)}", "wrong_index"))

    # -- statements ---------------------------------------------------------------------------------------------

    def visit_If(self, node: cst.If) -> None:  # noqa: N802
        self._negated(node.test)

    def visit_While(self, node: cst.While) -> None:  # noqa: N802
        self._negated(node.test)
        start, _ = self._span(node)
        self.edits.append(Edit(start, start + len("while"), "if", "wrong_jump"))

    def _negated(self, test: cst.BaseExpression) -> None:
        start, _ = self._span(test)
        if isinstance(test, cst.Name | cst.Call | cst.Attribute):
            self.edits.append(Edit(start, start, "not ", "added_not"))

    def visit_Break(self, node: cst.Break) -> None:  # noqa: N802
        self._add("wrong_jump", node, "continue")

    def visit_Continue(self, node: cst.Continue) -> None:  # noqa: N802
        self._add("wrong_jump", node, "break")

    def visit_Expr(self, node: cst.Expr) -> None:  # noqa: N802
        if isinstance(node.value, cst.Call):
            self._dropped(node)

    def _dropped(self, node: cst.CSTNode) -> None:
        self._add("dropped_statement", node, "pass")


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Take the blanks around an operator out of its span."""
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), end - (len(piece) - len(piece.rstrip()))


def _dedented(text: str, start: int, end: int) -> str:
    """Return a function's text moved to the left margin."""
    margin = start - (text.rfind("\n", 0, start) + 1)
    return "\n".join(line[margin:] if index else line for index, line in enumerate(text[start:end].split("\n")))


def edits_by_operator(edits: Sequence[Edit]) -> Iterator[tuple[str, list[Edit]]]:
    """Group edits by operator, in the order of `OPERATORS`."""
    for operator in OPERATORS:
        group = [edit for edit in edits if edit.operator == operator]
        if group:
            yield operator, group
