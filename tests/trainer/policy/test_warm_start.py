"""Demonstrations in the real environment, and supervised learning on them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

pytest.importorskip("transformers")

from agentgym_rtmc.errors import ConfigError, RegistrationError
from agentgym_rtmc.registration import load_task_set, register_env
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.learner.rows import build_rows
from agentgym_rtmc.trainer.policy.base import SampleKey, SamplingParams
from agentgym_rtmc.trainer.policy.chat import Chat
from agentgym_rtmc.trainer.policy.config import PolicyConfig, TinyConfig, WarmStartConfig
from agentgym_rtmc.trainer.policy.demonstrations import collect_demonstrations, sources_digest, with_ids
from agentgym_rtmc.trainer.policy.factory import make_policy
from agentgym_rtmc.trainer.policy.scripted import ScriptedPolicy
from agentgym_rtmc.trainer.policy.tokens import TokenPolicy
from agentgym_rtmc.trainer.policy.warm_start import _with_context as learning_row
from agentgym_rtmc.trainer.policy.warm_start import action_weights, teach, warm_start
from agentgym_rtmc.trainer.rollout import Rollout, RolloutConfig, plan_groups
from agentgym_rtmc.trainer.transcript import Conversation, segments

TINY = TinyConfig(
    hidden_size=64, layers=2, heads=2, key_value_heads=1, intermediate_size=128, context=96, vocabulary=320
)
FEW = WarmStartConfig(episodes=160, epochs=12, batch_tokens=256, learning_rate=3e-3, workers=2, heldout_share=0.1)


@pytest.fixture(scope="module")
def tasks(shouting: str) -> tuple[Task, ...]:
    return load_task_set(shouting).split("train")


def test_demonstrations_are_real_and_repeatable(shouting: str, tasks: tuple[Task, ...]) -> None:
    make = partial(gymnasium.make, shouting)
    seen: list[str] = []
    episodes = collect_demonstrations(
        shouting, make, tasks, 80, seed=3, workers=3, on_episode=lambda e: seen.append(e.id)
    )
    assert len(episodes) == 80 and sorted(seen) == sorted(e.id for e in episodes)
    assert episodes == collect_demonstrations(shouting, make, tasks, 80, seed=3, workers=1)
    # All tasks take part evenly; some episodes stumble first; the private part stays out.
    counts = np.unique([e.opening.task.id for e in episodes], return_counts=True)[1]
    assert len(counts) == 64 and counts.max() - counts.min() <= 1
    assert {len(e.turns) for e in episodes} > {1} and all(not e.opening.task.private for e in episodes)
    assert episodes[0].opening.system_prompt.startswith("Say the letters")


def test_ids_are_those_of_sampling(shouting: str, tasks: tuple[Task, ...], tokenizer: Any) -> None:
    """A policy that samples the very actions of a demonstration ends up with the very ids."""
    episodes = collect_demonstrations(shouting, partial(gymnasium.make, shouting), tasks, 20)
    chat = Chat(tokenizer)
    for episode in episodes:
        shown = with_ids(episode, chat)
        policy = TokenPolicy(Parrot([turn.text for turn in episode.turns], chat), tokenizer)
        conversation = Conversation.opened("x", episode.opening.system_prompt, episode.opening.observation)
        for number, (turn, expected) in enumerate(zip(episode.turns, shown.turns, strict=True)):
            (said,) = policy.complete([conversation], [SampleKey(0, 0, number)], SamplingParams())
            assert said.text == turn.text
            assert (said.context_ids, said.token_ids, said.forked) == (
                expected.context_ids,
                expected.token_ids,
                expected.forked,
            )
            conversation.record(said.text, said.context_ids, said.token_ids, said.forked)
            conversation.observe(turn.observation)
        (segment,) = segments(shown.turns)
        assert segment.ids.tolist() == conversation.ids
    # Turns that would not fit are cut off whole, as a full context does it.
    long = max(episodes, key=lambda e: len(e.turns))
    (whole,) = segments(with_ids(long, chat).turns)
    assert len(with_ids(long, chat, max_tokens=len(whole.ids) - 1).turns) == len(long.turns) - 1


class Parrot:
    """Samples the tokens of given texts."""

    weights_version = 0
    max_context = 1000

    def __init__(self, texts: list[str], chat: Chat) -> None:
        self.lines = [chat.turn(text) for text in texts]

    def sample(self, requests: Any, params: Any, stop_ids: Any) -> Any:
        from agentgym_rtmc.trainer.policy.base import SampledTokens

        lines = [np.asarray(self.lines[request.key.turn], np.int64) for request in requests]
        return [SampledTokens(line, np.zeros(len(line), np.float32), "stop") for line in lines]

    def release(self, sessions: Any) -> None:
        pass


def test_weights_follow_the_settings(shouting: str, tasks: tuple[Task, ...]) -> None:
    episodes = collect_demonstrations(shouting, partial(gymnasium.make, shouting), tasks, 60)
    config = FEW.model_copy(update={"failed_weight": 0.25, "repeat_weight": 0.5})
    for episode in episodes:
        weights = action_weights(episode, config)
        texts = [turn.text for turn in episode.turns]
        base = 1.0 if episode.total_reward > 0 else 0.25
        assert weights.tolist() == [base * (0.5 if text in texts[:i] else 1.0) for i, text in enumerate(texts)]
    assert any(episode.total_reward == 0 for episode in episodes)


def test_the_embedded_policy_learns_from_demonstrations_and_is_cached(
    shouting: str, tasks: tuple[Task, ...], tmp_path: Path
) -> None:
    make = partial(gymnasium.make, shouting)
    heard: list[tuple[str, int, int, dict[str, float]]] = []

    def report(phase: str, done: int, total: int, /, **figures: float) -> None:
        heard.append((phase, done, total, figures))

    folder, result = warm_start(shouting, make, tasks, TINY, FEW, report=report, root=tmp_path)
    assert [phase for phase, done, total, _ in heard if done == total] == ["demonstrations", "supervised start"]
    assert "heldout_loss" in heard[-1][3]
    assert result.episodes == 160 and 0 < result.solved < 1 and result.rows_cut == 0
    assert result.train_loss < 1 and 0 < result.heldout_loss < 0.6 < np.log(300)

    # The second time nothing is played or trained; other settings train anew on the same demonstrations.
    heard.clear()
    assert warm_start(shouting, make, tasks, TINY, FEW, report=report, root=tmp_path) == (folder, result)
    assert heard == []
    brief = FEW.model_copy(update={"epochs": 0.2})
    other, _ = warm_start(shouting, make, tasks, TINY, brief, report=report, root=tmp_path)
    assert other != folder and {phase for phase, *_ in heard} == {"supervised start"}
    heard.clear()
    fewer, _ = warm_start(shouting, make, tasks[:6], TINY, brief, report=report, root=tmp_path)
    assert fewer not in (folder, other) and "demonstrations" in {phase for phase, *_ in heard}
    # A torn entry is made again, and comes out the same.
    torn = other / "model.safetensors"
    good = torn.read_bytes()
    torn.write_bytes(good[:100])
    heard.clear()
    assert warm_start(shouting, make, tasks, TINY, brief, report=report, root=tmp_path)[0] == other
    assert heard and torn.read_bytes() == good

    # It plays what it was taught, in the real environment, and is ready for a learner.
    config = PolicyConfig(kind="tiny", model=str(folder), max_tokens=16)
    policy = make_policy(config, env_id=shouting, make_env=make, trainable=True)
    assert isinstance(policy, TokenPolicy) and policy.model.dtype.is_floating_point
    with Rollout(make, policy, RolloutConfig(env_workers=2), config.sampling(temperature=0)) as rollout:
        groups, _ = rollout.collect(plan_groups(tasks, 1, first_number=0, seed=0, label="t"))
    episodes = [episode for group in groups for episode in group.episodes]
    assert sum(episode.total_reward for episode in episodes) / len(episodes) >= 0.8
    policy.close()


def test_muon_teaches_as_well(shouting: str, tasks: tuple[Task, ...]) -> None:
    """Orthogonal steps for the hidden matrices: in an eighth of the epochs it is further than AdamW there."""
    episodes = collect_demonstrations(shouting, partial(gymnasium.make, shouting), tasks, FEW.episodes)
    brief = FEW.model_copy(update={"epochs": 1.5})
    muon = brief.model_copy(update={"optimizer": "muon", "learning_rate": 6e-3})
    _, _, slow = teach(episodes, TINY, brief)
    _, _, fast = teach(episodes, TINY, muon)
    assert fast.steps == slow.steps and fast.heldout_loss < slow.heldout_loss


def test_the_user_cache_is_used(
    shouting: str, tasks: tuple[Task, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = PolicyConfig(tiny=TINY, warm_start=FEW.model_copy(update={"episodes": 66, "epochs": 0.2}))
    policy = make_policy(config, env_id=shouting, make_env=partial(gymnasium.make, shouting), tasks=tasks)
    assert isinstance(policy, TokenPolicy) and policy.max_context == 96
    assert {p.name for p in (tmp_path / "agentgym-rtmc" / "warm-start").iterdir()} == {"demonstrations", "models"}


def test_sources_are_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "changing_pkg"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "env.py").write_text("Env = object\nplayer = None\n", encoding="utf-8")
    (package / "prompt.txt").write_text("one", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    register_env("tests/Changing-v0", "changing_pkg.env:Env", demonstrator="changing_pkg.env:player")
    before = sources_digest("tests/Changing-v0")
    assert before == sources_digest("tests/Changing-v0")
    (package / "prompt.txt").write_text("two", encoding="utf-8")
    assert sources_digest("tests/Changing-v0") != before


def test_what_cannot_be_taught_is_refused(shouting: str, tasks: tuple[Task, ...], tmp_path: Path) -> None:
    make = partial(gymnasium.make, shouting)
    with pytest.raises(ConfigError, match="at least two tasks"):
        warm_start(shouting, make, tasks[:1], TINY, FEW, root=tmp_path)
    episodes = collect_demonstrations(shouting, make, tasks, 12)
    with pytest.raises(ConfigError, match="fits into"):
        teach(episodes, TINY.model_copy(update={"context": 3}), FEW)
    register_env("tests/Undemonstrated-v0", "shouting:Shouting")
    with pytest.raises(RegistrationError, match="demonstrator"):
        warm_start("tests/Undemonstrated-v0", make, tasks, TINY, FEW, root=tmp_path)
    with pytest.raises(ConfigError, match="no weights to train"):
        make_policy(PolicyConfig(kind="scripted"), env_id=shouting, make_env=make, trainable=True)
    with pytest.raises(ConfigError, match=r"policy\.model"):
        make_policy(PolicyConfig(), env_id=shouting, make_env=make)
    assert isinstance(make_policy(PolicyConfig(kind="scripted"), env_id=shouting, make_env=make), ScriptedPolicy)
    with pytest.raises(ValueError, match=r"policy\.model"):
        PolicyConfig(kind="hf")


def test_context_counts_as_much_as_the_settings_say(shouting: str, tasks: tuple[Task, ...], tokenizer: Any) -> None:
    episode = max(
        collect_demonstrations(shouting, partial(gymnasium.make, shouting), tasks, 9), key=lambda e: len(e.turns)
    )
    for weight in (0.0, 0.25):
        config = FEW.model_copy(update={"context_weight": weight})
        shown = with_ids(episode, Chat(tokenizer))
        (row,), _ = build_rows([shown], [action_weights(shown, config)])
        learnt = learning_row(row, config.context_weight)
        said = row.turn >= 0
        assert learnt.advantages[said].tolist() == [1.0] * int(said.sum())
        assert learnt.advantages[~said].tolist() == [0.0, *[weight] * (int((~said).sum()) - 1)]
        assert learnt.sampled_mask.tolist() == (said if weight == 0 else np.arange(len(row)) > 0).tolist()
