"""What scripted players score on the tool-use environments, and what their episodes cost in tokens.

Players: `random` (any tool, any arguments), `demonstrator` (warm starts learn from it) and `perfect` (the reference).
Success is a total reward of 1; intervals are 95 %, clustered by task. Tokens are those of the embedded model's
tokenizer, trained on the demonstrator's episodes as a warm start does it; an episode's include the prompt.
`python benchmarks/tool_use.py [--env ServiceDesk-v0] [--split test] [--tasks 400] [--option style=compact] [--json]`
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from typing import Any

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table

from agentgym_rtmc.registration import Player, find_env, load, load_task_set
from agentgym_rtmc.settings import parse_override
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.policy.config import TinyConfig
from agentgym_rtmc.trainer.policy.tiny import train_tokenizer
from agentgym_rtmc.trainer.statistics import clustered_interval

ENVIRONMENTS = ("ServiceDesk-v0", "DataQuestions-v0", "Terminal-v0")
_RANDOM = "random_player"
_END = 3
"""Tokens that a turn costs beside its texts."""


def play(env: gymnasium.Env[str, str], player: Player, task: Task, seed: int) -> tuple[float, list[str]]:
    """Play an episode; returns its reward and all texts, the prompt first."""
    observation, _ = env.reset(seed=seed, options={"task": task})
    bare: Any = env.unwrapped
    texts = [bare.system_prompt, observation]
    acting = player(task, observation, np.random.default_rng(seed))
    total, over = 0.0, False
    action = next(acting)
    while not over:
        answer, reward, terminated, truncated, _ = env.step(action)
        texts += [action, answer]
        total += float(reward)
        over = terminated or truncated
        try:
            action = acting.send(answer)
        except StopIteration:
            if not over:
                total += float(bare.finish("the player stopped")[1])
            over = True
    return total, texts


def players_of(env_id: str) -> dict[str, Player]:
    """The three players of an environment, by name."""
    entry = find_env(env_id)
    assert entry.demonstrator is not None and entry.reference is not None
    home = entry.demonstrator.partition(":")[0]
    names = {"random": f"{home}:{_RANDOM}", "demonstrator": entry.demonstrator, "perfect": entry.reference}
    return {name: load(reference) for name, reference in names.items()}


def measure(env_id: str, split: str, count: int, options: dict[str, Any], phrases: int) -> list[dict[str, object]]:
    """One row for each player."""
    tasks = load_task_set(env_id).split(split)
    tasks = tasks[:: max(1, len(tasks) // count)][:count]
    env: gymnasium.Env[str, str] = gymnasium.make(find_env(env_id).id, disable_env_checker=True, **options)
    played = {
        name: [play(env, player, task, seed) for seed, task in enumerate(tasks)]
        for name, player in players_of(env_id).items()
    }
    env.close()
    texts = [text for _, said in played["demonstrator"] for text in said]
    tokenizer = train_tokenizer(texts, TinyConfig(phrases=phrases))
    rows: list[dict[str, object]] = []
    for name, episodes in played.items():
        success = [[float(total >= 1 - 1e-9)] for total, _ in episodes]
        interval = clustered_interval(success)
        tokens = [
            sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in said) + _END * len(said) // 2
            for _, said in episodes
        ]
        levels: dict[object, list[float]] = defaultdict(list)
        for task, [passed] in zip(tasks, success, strict=True):
            levels[task.public.get("level")].append(passed)
        rows.append(
            {
                "environment": env_id,
                "player": name,
                "success": f"{interval.mean:.3f} [{interval.low:.3f}, {interval.high:.3f}]",
                "by level": " ".join(f"{np.mean(levels[level]):.2f}" for level in sorted(levels, key=str)),
                "return": round(float(np.mean([total for total, _ in episodes])), 3),
                "turns": round(float(np.mean([len(said) / 2 - 1 for _, said in episodes])), 1),
                "most turns": max(len(said) // 2 - 1 for _, said in episodes),
                "tokens": round(float(np.mean(tokens))),
                "95 % of episodes": round(float(np.quantile(tokens, 0.95))),
                "characters": round(float(np.mean([sum(map(len, said)) for _, said in episodes]))),
            }
        )
    return rows


def main() -> None:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", action="append", help="environment; may be given again; default: all")
    parser.add_argument("--split", default="test")
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--phrases", type=int, default=64, help="phrases of the tokenizer")
    parser.add_argument("--option", action="append", default=[], help="key=value for the environment")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    options = {keys[0]: value for keys, value in map(parse_override, arguments.option)}
    rows = [
        row
        for env_id in arguments.env or ENVIRONMENTS
        for row in measure(env_id, arguments.split, arguments.tasks, options, arguments.phrases)
    ]
    if arguments.json:
        print(json.dumps(rows))
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
