"""The examples in the docstrings of all rooms are run."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = {
    "agentgym_rtmc": ROOT / "agentgym_rtmc",
    "agentgym_rtmc.environments": ROOT / "environments",
    "agentgym_rtmc.signatures": ROOT / "signatures",
    "agentgym_rtmc.trainer": ROOT / "trainer",
}
WITH_EXAMPLES = [
    ".".join((room, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__")
    for room, folder in ROOMS.items()
    for path in sorted(folder.rglob("*.py"))
    if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
]


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_examples(module: str) -> None:
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted
    assert not result.failed
