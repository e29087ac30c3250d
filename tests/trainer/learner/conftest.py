"""Small causal LMs and synthetic episodes for the learner's tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.learner.rows import LearningRow

VOCABULARY = 48


@pytest.fixture(autouse=True)
def _two_threads_are_not_ours() -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)


@pytest.fixture
def make_model() -> Callable[..., Any]:
    """Return a factory of random models of a few thousand parameters."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    def build(kind: str = "qwen3", seed: int = 0, **changes: Any) -> Any:
        sizes: dict[str, Any] = {
            "vocab_size": VOCABULARY,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
            "max_position_embeddings": 128,
            "tie_word_embeddings": True,
        }
        if kind == "gpt2":
            sizes = {
                "vocab_size": VOCABULARY,
                "n_embd": 16,
                "n_layer": 2,
                "n_head": 2,
                "n_positions": 128,
                "bos_token_id": 0,
                "eos_token_id": 0,
            }
        if kind == "llama":
            sizes["tie_word_embeddings"] = False
        config = {"qwen3": "Qwen3", "llama": "Llama", "gpt2": "GPT2", "gemma2": "Gemma2"}[kind]
        torch.manual_seed(seed)
        head = "LMHeadModel" if kind == "gpt2" else "ForCausalLM"
        model = getattr(transformers, config + head)(getattr(transformers, config + "Config")(**(sizes | changes)))
        with torch.no_grad():  # the usual initialisation is so small that all logits look alike
            for parameter in model.parameters():
                if parameter.ndim >= 2:
                    parameter.mul_(8)
        return model.eval()

    return build


@pytest.fixture
def make_episode() -> Callable[..., Episode]:
    """Return a factory of episodes whose turns are given by their token fields."""
    return build_episode


@pytest.fixture
def make_rows() -> Callable[..., list[LearningRow]]:
    """Return a factory of random rows."""
    return random_rows


def build_episode(turns: Sequence[dict[str, Any]], name: str = "e0", **fields: Any) -> Episode:
    """An episode whose turns are given by token fields; texts are fillers."""
    opening = Opening(task=Task(id="t"), observation="start")
    built = tuple(Turn(**({"text": "x", "observation": "y", "reward": 0.0} | turn)) for turn in turns)
    return Episode(id=name, group="g", opening=opening, turns=built, **fields)


def random_rows(rng: np.random.Generator, count: int = 7, low: int = 5, high: int = 30) -> list[LearningRow]:
    """Rows of random ids with two to four turns each; sampler log-probabilities are plausible, not exact."""
    rows = []
    for number in range(count):
        length = int(rng.integers(low, high))
        turn = np.full(length, -1, np.int64)
        cuts = np.sort(rng.choice(np.arange(1, length), size=min(4, length - 1), replace=False))
        for index, start in enumerate(cuts):
            stop = cuts[index + 1] if index + 1 < len(cuts) else length
            turn[start : start + max(1, (stop - start) * 2 // 3)] = index
        turn[-1] = max(turn.max(), 0)
        mask = turn >= 0
        turn[mask] += 10 * (number % 2)  # two segments of an episode share no turn
        credit = rng.normal(size=20)
        rows.append(
            LearningRow(
                ids=rng.integers(0, VOCABULARY, length),
                sampled_mask=mask,
                turn=turn,
                advantages=np.where(mask, credit[turn], 0).astype(np.float32),
                logprobs=np.where(mask, -rng.uniform(0.1, 5, length), 0).astype(np.float32),
                episode=number // 2,
                segment=number % 2,
            )
        )
    return rows
