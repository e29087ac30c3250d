"""A random player for any environment with typed tools: the floor that scores are measured from.

Invariant: it knows the tools' schemas and what it was shown, nothing of the task. Half of its numbers and words are
ones that it has seen, so that its calls are not all hopeless.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import numpy as np

from agentgym_rtmc.calls.base import Call, TextProtocol
from agentgym_rtmc.calls.tools import Toolbox

_WORDS = re.compile(r"[^\W\d]{2,20}")
_NUMBERS = re.compile(r"\d{1,6}")


def play_randomly(
    tools: Toolbox, protocol: TextProtocol, observation: str, rng: np.random.Generator
) -> Generator[str, str, None]:
    """Call a random tool with random arguments that fit its schema, again and again."""
    words, numbers = ["a"], ["1"]
    schemas = list(tools.tools.values())
    seen = observation
    while True:
        words += _WORDS.findall(seen)
        numbers += _NUMBERS.findall(seen)
        tool = schemas[int(rng.integers(len(schemas)))]
        properties: Any = tool.parameters["properties"]
        arguments = {name: _value(schema, words, numbers, rng) for name, schema in properties.items()}
        seen = yield protocol.render(Call(name=tool.name, arguments=arguments))


def _value(schema: dict[str, Any], words: list[str], numbers: list[str], rng: np.random.Generator) -> Any:
    if "enum" in schema:
        return schema["enum"][int(rng.integers(len(schema["enum"])))]
    if "anyOf" in schema:
        return _value(schema["anyOf"][int(rng.integers(len(schema["anyOf"])))], words, numbers, rng)
    kind = schema.get("type")
    if kind == "boolean":
        return bool(rng.integers(2))
    if kind in ("integer", "number"):
        if rng.random() < 0.5:
            return int(numbers[int(rng.integers(len(numbers)))])
        low, high = schema.get("minimum", 0), schema.get("maximum", 100)
        return int(rng.integers(low, min(high, low + 100) + 1))
    if kind == "array":
        count = int(rng.integers(1, 4))
        return [_value(schema.get("items", {}), words, numbers, rng) for _ in range(count)]
    if kind == "null":
        return None
    return words[int(rng.integers(len(words)))]
