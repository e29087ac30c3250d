"""What Python code given to the interpreter runs and prints, as far as its own literals tell."""

from __future__ import annotations

import ast
import shlex
from functools import lru_cache

_RUNNING = frozenset({"git", "pip", "pip3", "curl", "wget", "conda", "uv", "gh", "apt-get", "apt"})


@lru_cache(maxsize=1024)
def _tree(code: str) -> ast.AST | None:
    try:
        return ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def commands_in(code: str) -> list[str]:
    """Commands that the code runs: lists of words, or strings, that begin with a program of interest.

    >>> commands_in("import subprocess\\nsubprocess.run(['git', 'log', '--all'])")
    ['git log --all']
    """
    found: list[str] = []
    tree = _tree(code)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.List | ast.Tuple):
            words = [part.value for part in node.elts if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            if words and len(words) == len(node.elts) and words[0] in _RUNNING:
                found.append(shlex.join(words))
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            text = node.args[0].value
            if isinstance(text, str) and text.partition(" ")[0] in _RUNNING:
                found.append(text)
    return found


def printed_in(code: str) -> list[str]:
    """Fixed texts that the code prints, those of neighbouring calls together.

    >>> printed_in("print('Ran 3 tests in 0.1s')\\nprint('OK')")
    ['Ran 3 tests in 0.1s\\nOK']
    """
    texts: list[str] = []
    tree = _tree(code)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            texts += [
                part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, str)
            ]
    return ["\n".join(texts)] if texts else []
