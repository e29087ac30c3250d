"""A tiny tokenizer and model, made once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

transformers = pytest.importorskip("transformers")

from agentgym_rtmc.registration import register_env  # noqa: E402
from agentgym_rtmc.trainer.policy.config import TinyConfig  # noqa: E402
from agentgym_rtmc.trainer.policy.tiny import build_model, train_tokenizer  # noqa: E402

torch.set_num_threads(1)

SMALL = TinyConfig(hidden_size=32, layers=2, heads=2, key_value_heads=1, intermediate_size=64, context=256, phrases=4)


@pytest.fixture(scope="session")
def tokenizer() -> transformers.PreTrainedTokenizerFast:
    programs = ["def f(a, b):\n    if a <= b:\n        return a - 1\n    return b // 2\n", "3/6 FAIL f(1) got 2 want 1"]
    actions = [f"sed -i 's| {a}| {b}|{n}' m.py && python t.py" for a in "<+-" for b in ("<=", "//") for n in (1, 2)]
    return train_tokenizer([*programs * 9, *actions], SMALL)


@pytest.fixture
def model(tokenizer: transformers.PreTrainedTokenizerFast) -> transformers.PreTrainedModel:
    return build_model(SMALL, tokenizer, seed=0)


@pytest.fixture(scope="session")
def shouting() -> str:
    """The id of the test environment (registered by module name, as other people's packages do)."""
    here = str(Path(__file__).parent)
    if here not in sys.path:
        sys.path.append(here)
    register_env(
        "tests/Shouting-v0",
        "shouting:Shouting",
        task_sets={"words": "shouting:load_tasks"},
        reference="shouting:reference",
        demonstrator="shouting:demonstrator",
    )
    return "tests/Shouting-v0"
