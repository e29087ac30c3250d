"""Episodes of a registered demonstrator, played in the real environment and put into the ids a policy would see.

Invariants: demonstrations are ordinary episodes, collected by the same rollout as a policy's; their ids come from the
same `Chat` as at sampling time, so a model is taught on exactly what it will be shown.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from agentgym_rtmc.episodes import Episode, Turn
from agentgym_rtmc.registration import find_env
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.policy.base import SamplingParams
from agentgym_rtmc.trainer.policy.chat import Chat
from agentgym_rtmc.trainer.policy.scripted import ScriptedPolicy
from agentgym_rtmc.trainer.rollout import EnvFactory, EpisodePlan, Rollout, RolloutConfig
from agentgym_rtmc.trainer.transcript import Conversation


def collect_demonstrations(
    env_id: str,
    make_env: EnvFactory,
    tasks: Sequence[Task],
    count: int,
    *,
    seed: int = 0,
    workers: int = 4,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Let the environment's demonstrator play `count` episodes on tasks drawn evenly; invalid ones are left out."""
    rng = np.random.default_rng(seed)
    order = np.concatenate([rng.permutation(len(tasks)) for _ in range(-(-count // len(tasks)))])[:count]
    plans = [
        EpisodePlan(number, f"demonstration/{number}", tasks[int(index)], seed + number)
        for number, index in enumerate(order)
    ]
    config = RolloutConfig(group_size=1, concurrency=4 * workers, env_workers=workers)
    policy = ScriptedPolicy.of(env_id, "demonstrator", seed)
    with Rollout(make_env, policy, config, SamplingParams(), seed=seed, on_episode=on_episode) as rollout:
        groups, _ = rollout.collect(plans)
    return [episode for group in groups for episode in group.episodes if episode.valid]


def with_ids(
    episode: Episode, chat: Chat, *, observation_role: Literal["user", "tool"] = "user", max_tokens: int = 1 << 30
) -> Episode:
    """Return the episode with the ids a policy would have seen and sampled; turns past `max_tokens` are cut off."""
    opening = episode.opening
    conversation = Conversation.opened(episode.id, opening.system_prompt, opening.observation)
    turns: list[Turn] = []
    for turn in episode.turns:
        prompt = chat.prompt(conversation)
        said = chat.turn(turn.text)
        held = 0 if prompt.forked else len(conversation.ids)
        if held + len(prompt.context_ids) + len(said) > max_tokens:
            break
        ids = {"context_ids": prompt.context_ids, "token_ids": tuple(said), "forked": prompt.forked}
        turns.append(turn.model_copy(update=ids))
        conversation.record(turn.text, prompt.context_ids, said, prompt.forked)
        conversation.observe(turn.observation, observation_role)
    chat.forget(episode.id)
    return episode.model_copy(update={"turns": tuple(turns)})


def texts_of(episode: Episode) -> list[str]:
    """All texts of an episode: what a tokenizer is trained on."""
    turns = [text for turn in episode.turns for text in (turn.text, turn.observation)]
    return [episode.opening.system_prompt, episode.opening.observation, *turns]


def sources_digest(env_id: str) -> str:
    """Hash the code and data beside an environment and its demonstrator: when they change, so do demonstrations."""
    entry = find_env(env_id)
    digest = hashlib.sha256()
    folders: set[Path] = set()
    for reference in (entry.entry_point, entry.demonstrator or ""):
        spec = importlib.util.find_spec(reference.partition(":")[0]) if reference else None
        if spec is None or spec.origin is None:
            continue
        file = Path(spec.origin)
        digest.update(file.read_bytes())
        # A module in a package changes with its siblings; a lone module stands for itself.
        if (file.parent / "__init__.py").exists():
            folders.add(file.parent)
    for folder in sorted(folders):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                digest.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()
