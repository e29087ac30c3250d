"""The training loop, to be read from top to bottom.

    tasks -> groups of episodes -> rollout tree -> advantages -> rows -> update -> weights to the policy -> metrics

Invariants: the loop is blind to the algorithm, the environment and the model. Everything random is a function of
(seed, update, episode, turn, token), so a run killed at any moment continues from its last checkpoint, and under
`deterministic` with the same numbers. A metric line, an episode and a checkpoint are on disk before the next update.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

from agentgym_rtmc.episode_file import EpisodeWriter
from agentgym_rtmc.episodes import Episode
from agentgym_rtmc.registration import find_env, load_task_set
from agentgym_rtmc.settings import dump_toml
from agentgym_rtmc.signatures import make_signature
from agentgym_rtmc.trainer.config import EnvConfig, TrainConfig
from agentgym_rtmc.trainer.credit_step import assign_credit
from agentgym_rtmc.trainer.evaluate import evaluate_with_progress, passed
from agentgym_rtmc.trainer.learner.checkpoint import Checkpoint, load_latest, save_checkpoint
from agentgym_rtmc.trainer.learner.learner import Learner
from agentgym_rtmc.trainer.metrics import MetricsWriter, read_metrics
from agentgym_rtmc.trainer.order import shuffled, tasks_of_update
from agentgym_rtmc.trainer.policy.factory import make_policy
from agentgym_rtmc.trainer.policy.tokens import TokenPolicy
from agentgym_rtmc.trainer.progress import Progress
from agentgym_rtmc.trainer.rollout import EnvFactory, Rollout, plan_groups
from agentgym_rtmc.trainer.run_folder import RunFolder, replace_text


@dataclass(frozen=True)
class TrainResult:
    """What a run ends with. `before` and `after` are rows of `Evaluation.row`."""

    folder: Path
    updates: int
    episodes: int
    seconds: float
    before: dict[str, Any]
    after: dict[str, Any]
    curve: Path | None


def train(config: TrainConfig, folder: RunFolder, progress: Progress) -> TrainResult:
    """Train in a fresh folder, or continue the run whose folder it is."""
    started = time.monotonic()
    checkpoint = load_latest(folder.path)
    set_threads(config.run.threads)

    tasks = load_task_set(config.env.id, config.env.task_set, **config.env.task_options)
    train_tasks = tasks.split(config.env.train_split)
    heldout = shuffled(tasks.split(config.env.heldout_split), config.evaluation.tasks, config.evaluation.seed)
    signature_name = config.signature.name or find_env(config.env.id).default_signature
    signature = make_signature(signature_name, **config.signature.parameters)
    make_env = env_factory(config.env)

    with ExitStack() as stack:
        policy = make_policy(
            config.policy,
            env_id=config.env.id,
            make_env=make_env,
            tasks=train_tasks,
            observation_role=config.rollout.observation_role,
            progress=progress,
            model_path=checkpoint.model_path if checkpoint else None,
            trainable=True,
        )
        assert isinstance(policy, TokenPolicy)  # what `trainable` promises
        stack.callback(policy.close)
        learner = Learner(policy.model, config.learner)
        position = resume(folder, checkpoint, learner) if checkpoint else Position()
        if checkpoint is None:
            replace_text(folder.config, dump_toml(config))
        else:
            progress.say(f"continuing {folder.path} after update {position.update}")
        metrics = stack.enter_context(MetricsWriter(folder.metrics, after_update=position.update))
        episode_file = stack.enter_context(EpisodeWriter(folder.episodes)) if config.run.save_episodes else None
        rollout = stack.enter_context(
            Rollout(
                make_env,
                policy,
                config.rollout,
                config.policy.sampling(),
                seed=config.run.seed,
                deterministic=config.run.deterministic,
            )
        )

        def test(update: int) -> dict[str, Any]:
            """Evaluate on the held-out tasks, unless that is on record already."""
            known = [row for row in folder.read_evaluations() if row["update"] == update]
            if known:
                return known[0]
            result = evaluate_with_progress(config, make_env, policy, heldout, progress, f"held-out tasks ({update})")
            folder.append_evaluation(update, result.row())
            return {"update": update, **result.row()}

        before = test(0)
        policy.sampler.weights_changed(position.update)
        progress.phase(f"training with {config.credit.estimator}", config.loop.updates)
        progress.update(position.update)
        while position.update < config.loop.updates:
            update = position.update + 1
            chosen = tasks_of_update(train_tasks, config.loop.groups, update - 1, config.run.seed)
            plans = plan_groups(
                chosen,
                config.rollout.group_size,
                first_number=position.episodes,
                seed=config.run.seed + update * config.loop.groups,
                label=f"u{update}",
            )
            groups, stats = rollout.collect(plans)
            episodes = [episode for group in groups for episode in group.episodes]
            if episode_file is not None:
                episode_file.append(episodes)

            batch = assign_credit(
                groups, signature, config.credit, position.memory, mask_length=config.learner.mask_length
            )
            figures = learner.update(batch.rows, batch.counts)
            policy.sampler.weights_changed(update)

            position = Position(update, position.episodes + len(plans), batch.memory)
            figures |= batch.figures | episode_figures(episodes, config.evaluation.success_reward)
            metrics.write(update, figures, machine=stats.figures())
            if update % config.loop.checkpoint_every == 0 or update == config.loop.updates:
                save(folder, config, learner, policy, position)
            progress.update(
                update,
                episodes=position.episodes,
                turns_per_s=stats.turns_per_second,
                reward=figures["reward"],
                company=figures["company_share"],
            )
            if config.evaluation.every and update % config.evaluation.every == 0 and update < config.loop.updates:
                test(update)
                progress.phase(f"training with {config.credit.estimator}", config.loop.updates)
                progress.update(update)
        after = test(position.update)

    seconds = time.monotonic() - started
    replace_text(folder.result, json.dumps({"before": before, "after": after, "seconds": seconds}, indent=2))
    return TrainResult(folder.path, position.update, position.episodes, seconds, before, after, draw(folder))


@dataclass(frozen=True)
class Position:
    """Where a run stands: updates done, episodes planned, and the estimator's memory."""

    update: int = 0
    episodes: int = 0
    memory: Any = None


def resume(folder: RunFolder, checkpoint: Checkpoint, learner: Learner) -> Position:
    """Bring optimiser and files back to the checkpoint; what came after it is done again."""
    checkpoint.restore(learner)
    position = Position(**checkpoint.state["position"])
    folder.set_aside_episodes(checkpoint.state["episodes_bytes"])
    folder.forget_evaluations_after(position.update)
    return position


def save(folder: RunFolder, config: TrainConfig, learner: Learner, policy: TokenPolicy, position: Position) -> None:
    """Write a checkpoint that `resume` can continue from."""
    state = {
        "position": {"update": position.update, "episodes": position.episodes, "memory": position.memory},
        "episodes_bytes": folder.episodes.stat().st_size if folder.episodes.exists() else 0,
    }
    save_checkpoint(folder.path, position.update, learner, policy.tokenizer, state, keep=config.loop.keep_checkpoints)


def env_factory(config: EnvConfig) -> EnvFactory:
    """Return a function that makes one environment."""
    entry_id = config.id if ":" in config.id else find_env(config.id).id
    return partial(gymnasium.make, entry_id, **config.options)


def set_threads(threads: int) -> None:
    """Give torch a number of threads (0: leave it alone)."""
    if threads:
        import torch

        torch.set_num_threads(threads)


def episode_figures(episodes: Sequence[Episode], success_reward: float) -> dict[str, float]:
    """Summarise the valid episodes of an update: reward, pass rate, length, how they ended."""
    valid = [episode for episode in episodes if episode.valid]
    count = max(1, len(valid))
    turns = [turn for episode in valid for turn in episode.turns]
    return {
        "reward": sum(episode.total_reward for episode in valid) / count,
        "pass_rate": sum(passed(episode, success_reward) for episode in valid) / count,
        "episodes": float(len(episodes)),
        "turns_per_episode": len(turns) / count,
        "truncated_share": sum(episode.truncated for episode in valid) / count,
        "unparsed_share": sum(not turn.calls for turn in turns) / max(1, len(turns)),
        "length_cut_share": sum(turn.finish_reason == "length" for turn in turns) / max(1, len(turns)),
    }


def draw(folder: RunFolder) -> Path | None:
    """Draw the learning curve of a run, where there is anything to draw."""
    from agentgym_rtmc.trainer.figures import learning_curve

    rows = read_metrics(folder.metrics)
    if not rows:
        return None
    learning_curve(rows, folder.read_evaluations(), folder.curve)
    return folder.curve
