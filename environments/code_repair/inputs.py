"""Random arguments from one-line descriptions, such as `list(int(0, 9), 0, 6)`.

Invariant: the same description and generator give the same values; values are plain JSON.

    int(low, high)   text(letters, least, most)   bool()   one(value, …)   list(item, least, most)   sorted(list(…))
and any literal, which stands for itself.
"""

from __future__ import annotations

import ast
import random
from typing import Any

from agentgym_rtmc.errors import TaskError


def draw(description: str, rng: random.Random) -> Any:
    """Draw one value. Raises TaskError for a description that cannot be read.

    >>> rng = random.Random(1)
    >>> draw("sorted(list(int(0, 9), 3, 3))", rng), draw("one('a', 'b')", rng), draw("[1, 2]", rng)
    ([1, 4, 9], 'a', [1, 2])
    """
    return _draw(ast.parse(description, mode="eval").body, rng)


def _draw(node: ast.expr, rng: random.Random) -> Any:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return ast.literal_eval(node)
    arguments = node.args
    match node.func.id:
        case "int":
            low, high = map(ast.literal_eval, arguments)
            return rng.randint(low, high)
        case "bool":
            return rng.random() < 0.5
        case "text":
            letters, least, most = map(ast.literal_eval, arguments)
            return "".join(rng.choice(letters) for _ in range(rng.randint(least, most)))
        case "one":
            return ast.literal_eval(rng.choice(arguments))
        case "list":
            least, most = map(ast.literal_eval, arguments[1:])
            return [_draw(arguments[0], rng) for _ in range(rng.randint(least, most))]
        case "sorted":
            return sorted(_draw(arguments[0], rng))
    raise TaskError(f"unknown kind of input {node.func.id!r}; known: int, bool, text, one, list, sorted")
