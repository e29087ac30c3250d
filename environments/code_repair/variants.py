"""Variants of a program: other constants, another shape, other names.

Invariants: shapes and names leave every answer as it was (a test proves it for all forms), constants change statement
and answers together. Everything is drawn from the generator given, so equal seeds give equal variants.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import random
import re
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache

import libcst as cst

_FLIPPED: dict[type[cst.BaseCompOp], type[cst.BaseCompOp]] = {
    cst.LessThan: cst.GreaterThan,
    cst.GreaterThan: cst.LessThan,
    cst.LessThanEqual: cst.GreaterThanEqual,
    cst.GreaterThanEqual: cst.LessThanEqual,
}
_OPPOSITE: dict[type[cst.BaseCompOp], type[cst.BaseCompOp]] = {
    cst.LessThan: cst.GreaterThanEqual,
    cst.GreaterThan: cst.LessThanEqual,
    cst.LessThanEqual: cst.GreaterThan,
    cst.GreaterThanEqual: cst.LessThan,
    cst.Equal: cst.NotEqual,
    cst.NotEqual: cst.Equal,
    cst.In: cst.NotIn,
    cst.NotIn: cst.In,
}
_PLAIN: dict[type[cst.BaseAugOp], type[cst.BaseBinaryOp]] = {
    cst.AddAssign: cst.Add,
    cst.SubtractAssign: cst.Subtract,
    cst.MultiplyAssign: cst.Multiply,
}
_VARIABLES = """
a b c d e f g h i j k m n p q r s t u v w x y z aa bb xs ys it val cur res acc tmp out num left right first last
low high size step best item part seen data rest flag head tail
"""
_FUNCTIONS = "solve run calc work check find make build apply scan measure convert handle answer compute"
_METHODS = {name for kind in (str, list, dict, set, int, tuple) for name in dir(kind)}
_RESERVED = _METHODS | set(keyword.kwlist) | set(dir(builtins))
_WORD_OR_STRING = re.compile(r'"[^"\n]*"|\'[^\'\n]*\'|[A-Za-z_]\w*')


def vary_constants(texts: Sequence[str], choices: Mapping[str, Sequence[str]], number: int) -> list[str]:
    """Replace whole words by their `number`-th alternative (around the end) in every text.

    >>> vary_constants(["cut at 10", "x[:10] + 100"], {"10": ["10", "12"]}, 1)
    ['cut at 12', 'x[:12] + 100']
    """
    if not choices:
        return list(texts)
    longest_first = sorted(choices, key=len, reverse=True)
    pattern = re.compile(r"(?<!\w)(?:" + "|".join(map(re.escape, longest_first)) + r")(?!\w)")
    return [pattern.sub(lambda hit: choices[hit[0]][number % len(choices[hit[0]])], text) for text in texts]


def reshape(text: str, rng: random.Random) -> str:
    """Rewrite a random part of the comparisons, assignments, branches and returns in an equivalent way."""
    return cst.parse_module(text).visit(_Reshaper(rng, bound_names(text))).code


class _Reshaper(cst.CSTTransformer):
    def __init__(self, rng: random.Random, names: Set[str]) -> None:
        super().__init__()
        self._rng = rng
        self._result = next(name for name in ("result", "answer", "value", "back") if name not in names)

    def leave_Comparison(  # noqa: N802
        self, original_node: cst.Comparison, updated_node: cst.Comparison
    ) -> cst.BaseExpression:
        """`a < b` as `b > a`, where both sides are free of effects."""
        flipped = self._turned(updated_node, _FLIPPED, swap=True)
        return flipped if flipped is not None and self._rng.random() < 0.4 else updated_node

    def _turned(
        self, node: cst.Comparison, table: Mapping[type[cst.BaseCompOp], type[cst.BaseCompOp]], swap: bool
    ) -> cst.Comparison | None:
        if len(node.comparisons) != 1 or type(node.comparisons[0].operator) not in table:
            return None
        target = node.comparisons[0]
        operator = table[type(target.operator)]()
        left, right = (target.comparator, node.left) if swap else (node.left, target.comparator)
        return node.with_changes(left=left, comparisons=[cst.ComparisonTarget(operator, right)])

    def leave_AugAssign(  # noqa: N802
        self, original_node: cst.AugAssign, updated_node: cst.AugAssign
    ) -> cst.BaseSmallStatement:
        """`x += y` as `x = x + y`, for plain names and simple values."""
        operator = _PLAIN.get(type(updated_node.operator))
        simple = isinstance(updated_node.target, cst.Name) and not isinstance(updated_node.value, cst.IfExp)
        # A list is extended in place by `+=`: only a value that is certainly no list may be rewritten.
        if operator is None or not simple or isinstance(updated_node.value, cst.List) or self._rng.random() < 0.6:
            return updated_node
        value = updated_node.value
        if isinstance(value, cst.BinaryOperation | cst.BooleanOperation | cst.Comparison) and not value.lpar:
            value = value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        plain = cst.BinaryOperation(cst.ensure_type(updated_node.target, cst.Name), operator(), value)
        return cst.Assign([cst.AssignTarget(updated_node.target)], plain)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If:  # noqa: N802
        """`if a < b: X else: Y` as `if a >= b: Y else: X`."""
        branch = updated_node.orelse
        if not isinstance(branch, cst.Else) or not isinstance(updated_node.test, cst.Comparison):
            return updated_node
        test = self._turned(updated_node.test, _OPPOSITE, swap=False)
        if test is None or self._rng.random() < 0.5:
            return updated_node
        return updated_node.with_changes(test=test, body=branch.body, orelse=cst.Else(updated_node.body))

    def leave_SimpleStatementLine(  # noqa: N802
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement | cst.FlattenSentinel[cst.BaseStatement]:
        """`return x + y` as `result = x + y` and `return result`."""
        last = updated_node.body[0]
        if not isinstance(last, cst.Return) or not isinstance(last.value, cst.BinaryOperation | cst.Comparison):
            return updated_node
        if self._rng.random() < 0.6:
            return updated_node
        name = cst.Name(self._result)
        assign = cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(name)], last.value)])
        return cst.FlattenSentinel([assign, cst.SimpleStatementLine([cst.Return(name)])])


@lru_cache(maxsize=1024)
def bound_names(text: str) -> frozenset[str]:
    """Names a program binds itself: functions, parameters, variables. Classes and methods, and what is named like one,
    stay out."""
    tree = ast.parse(text)
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    methods = {
        node.name
        for scope in tree.body
        if isinstance(scope, ast.ClassDef)
        for node in scope.body
        if isinstance(node, ast.FunctionDef)
    }
    return frozenset(names - methods) | function_names(text)


@lru_cache(maxsize=1024)
def function_names(text: str) -> frozenset[str]:
    """Names of a program's functions, without methods."""
    return frozenset(node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))


def draw_names(text: str, rng: random.Random) -> dict[str, str]:
    """Draw new names for most of the names a program binds; the result maps old to new and never joins two names."""
    functions = function_names(text)
    taken = _RESERVED | set(_WORD_OR_STRING.findall(text))
    names: dict[str, str] = {}
    for old in sorted(bound_names(text) - _METHODS - {"self", "_"}):
        free = [new for new in (_FUNCTIONS if old in functions else _VARIABLES).split() if new not in taken]
        if free and rng.random() < 0.8:
            names[old] = rng.choice(free)
            taken.add(names[old])
    return names


def rename(text: str, names: Mapping[str, str]) -> str:
    """Replace whole names outside of strings; `text` is a program without comments and f-strings.

    >>> rename("def f(a):\\n    return 'a' + a.strip()", {"a": "x", "f": "run"})
    "def run(x):\\n    return 'a' + x.strip()"
    """
    return _WORD_OR_STRING.sub(lambda hit: names.get(hit[0], hit[0]), text)
