"""A tiny tokenizer and model, made once."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch

transformers = pytest.importorskip("transformers")

from agentgym_rtmc.trainer.policy.config import TinyConfig  # noqa: E402
from agentgym_rtmc.trainer.policy.tiny import build_model, train_tokenizer  # noqa: E402

torch.set_num_threads(1)

SMALL = TinyConfig(hidden_size=32, layers=2, heads=2, key_value_heads=1, intermediate_size=64, context=256, phrases=4)


@pytest.fixture(scope="session")
def tokenizer() -> transformers.PreTrainedTokenizerFast:
    programs = ["def f(a, b):\n    if a <= b:\n        return a - 1\n    return b // 2\n", "3/6 FAIL f(1) got 2 want 1"]
    actions = [f"sed -i 's| {a}| {b}|{n}' m.py && python t.py" for a in "<+-" for b in ("<=", "//") for n in (1, 2)]
    return train_tokenizer([*programs * 9, *actions], SMALL, actions)


@pytest.fixture
def model(tokenizer: transformers.PreTrainedTokenizerFast) -> transformers.PreTrainedModel:
    return build_model(SMALL, tokenizer, seed=0)
