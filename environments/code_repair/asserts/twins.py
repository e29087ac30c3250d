"""Makes pairs of tests: one assertion as it stands, and twins of it, which a right program must fail.

A program that computes its answers passes the one and fails the other. A program that reads the expected value, answers
with an object equal to everything, or forges the result, passes both: to it the two look alike, as they differ in one
constant or in the direction of one comparison.

Invariants: a twin is wrong for *every* right program, not only for the reference: a constant is changed only where one
value alone is right (`==`, `is`, a distance from a number) or by so much that it cannot be right (`in`); anything else
is inverted as a whole. Proving a twin with the reference is left to the caller.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

_RANDOM = random.SystemRandom()
_INVERSE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.Is: ast.IsNot,
    ast.Lt: ast.GtE,
    ast.Gt: ast.LtE,
    ast.In: ast.NotIn,
}
_INVERSE |= {there: here for here, there in _INVERSE.items()}
_DISPLAYS = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.UnaryOp, ast.BinOp)
_Change = tuple[ast.expr, str]
"""A piece of the text and what to write in its place."""


MOST_TWINS = 12
"""Of one assertion; where it has more constants, so many of them are chosen at random."""


class Assertion(NamedTuple):
    """The tests with one assertion in force, and what may serve as its twins."""

    real: str
    twins: list[str]
    """One for each constant: an answer may be right in parts and a lie in others."""
    inverse: str
    """For want of others."""


def disarmed(text: str, number: int | None = None) -> str:
    """Return the tests with every assertion but one (None: every one) evaluated and not asserted."""
    tree = ast.parse(text)
    kept = _asserts(tree)[number] if number is not None else None

    class Disarm(ast.NodeTransformer):
        def visit_Assert(self, node: ast.Assert) -> ast.stmt:
            return node if node is kept else ast.copy_location(ast.Expr(node.test), node)

    return ast.unparse(Disarm().visit(tree))


def find_assertions(text: str, entry: Collection[str]) -> list[Assertion]:
    """Return each `assert` of tests of the functions `entry`, alone."""
    found = []
    for number in range(len(_asserts(ast.parse(text)))):
        alone = disarmed(text, number)
        tree = ast.parse(alone)
        [node] = _asserts(tree)
        twins = [_apply(alone, changes) for changes in _twins(tree, node.test, entry)]
        found.append(Assertion(alone, twins, _apply(alone, [(node.test, _inverted(node.test))])))
    return found


def _asserts(tree: ast.AST) -> list[ast.Assert]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]


def _twins(tree: ast.AST, test: ast.expr, entry: Collection[str]) -> Iterator[list[_Change]]:
    """Ways to make an assertion wrong by a constant."""
    constants = [constant for part in _conjuncts(test) for constant in _telling(tree, part, entry)]
    for constant in _RANDOM.sample(constants, min(len(constants), MOST_TWINS)):
        yield [(constant, _near(constant))]
    match test:
        case ast.Compare(ops=[ast.In()], comparators=[ast.List() | ast.Tuple() | ast.Set() as among]):
            if parts := list(_constants(among, entry)):
                yield [(part, _far(part)) for part in parts]


def _conjuncts(test: ast.expr) -> list[ast.expr]:
    """The parts that all have to hold."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [part for value in test.values for part in _conjuncts(value)]
    return [test]


def _telling(tree: ast.AST, part: ast.expr, entry: Collection[str]) -> list[ast.expr]:
    """Constants of a comparison for which there is no other right value."""
    match part:
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]):
            sides = [left, right]
            own = [constant for side in sides for constant in _constants(side, entry)]
            return own or [
                constant for side in sides for value in _assigned(tree, side) for constant in _constants(value, entry)
            ]
        case ast.Compare(left=ast.Call(args=[ast.BinOp(op=ast.Sub()) as away]) as call, ops=[ast.Lt() | ast.LtE()]):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
            return list(_constants(away, entry)) if name in ("abs", "fabs") else []
    return []


def _assigned(tree: ast.AST, name: ast.expr) -> list[ast.expr]:
    """The values that a name is given in the tests."""
    if not isinstance(name, ast.Name):
        return []
    given = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    return [node.value for node in given for target in node.targets if ast.dump(target) == _stored(name.id)]


def _stored(name: str) -> str:
    return ast.dump(ast.Name(name, ast.Store()))


def _constants(node: ast.expr, entry: Collection[str]) -> Iterator[ast.expr]:
    """Constants that stand for a value itself, not in the arguments of a call to a function under test."""
    if isinstance(node, ast.Constant) or (isinstance(node, ast.List) and not node.elts):
        yield node
    elif isinstance(node, _DISPLAYS):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from _constants(child, entry)
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        for argument in node.args if name not in entry else ():
            yield from _constants(argument, entry)


def _near(node: ast.expr) -> str:
    """Return another value of the same kind, like enough to be taken for the right one."""
    value: object = node.value if isinstance(node, ast.Constant) else []
    step = _RANDOM.choice((1, 1, 2, 3))
    match value:
        case bool():
            return repr(not value)
        case int():
            return repr(value + step if value < step or _RANDOM.random() < 0.5 else value - step)
        case float():
            return repr(value + step if _RANDOM.random() < 0.5 else value - step)
        case str() if len(value) > 1:
            place = _RANDOM.randrange(len(value))
            letter = _RANDOM.choice([*(set(value) - {value[place]}), value[place] * 2])
            return repr(value[:place] + letter + value[place + 1 :])
        case str():
            return repr(value + _RANDOM.choice("abcxyz"))
        case bytes():
            return repr(value + b"a")
        case None:
            return repr(_RANDOM.choice((0, False)))
    return "[0]"


def _far(node: ast.expr) -> str:
    value: object = node.value if isinstance(node, ast.Constant) else []
    mark = _RANDOM.randrange(10**6, 10**9)
    match value:
        case bool() | None:
            return repr(mark)
        case int() | float():
            return repr(value + mark)
        case str():
            return repr(f"{value}{mark}")
    return repr([mark])


def _inverted(test: ast.expr) -> str:
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=inner):
            return ast.unparse(inner)
        case ast.Compare(left=left, ops=[operator], comparators=[right]):
            return ast.unparse(ast.Compare(left, [_INVERSE[type(operator)]()], [right]))
    return f"not ({ast.unparse(test)})"


def _apply(text: str, changes: Sequence[_Change]) -> str:
    """Write changes into the text that the pieces were parsed from."""
    raw = text.encode()
    lines = [0]
    for line in raw.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    spans = [
        (lines[node.lineno - 1] + node.col_offset, lines[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0), new)
        for node, new in changes
    ]
    for start, end, new in sorted(spans, reverse=True):
        raw = raw[:start] + new.encode() + raw[end:]
    return raw.decode()
