"""The training loop, to be read from top to bottom.

    tasks -> groups of episodes -> rollout tree -> advantages -> rows -> update -> weights to the policy -> metrics

Invariants: the loop is blind to the algorithm, the environment and the model. Everything random is a function of
(seed, update, episode, turn, token), so a run killed at any moment continues from its last checkpoint, and under
`deterministic` with the same numbers. A metric line, an episode and a checkpoint are on disk before the next update.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from agentgym_rtmc.durable import refusals, replace_text
from agentgym_rtmc.episode_file import EpisodeWriter
from agentgym_rtmc.episodes import Episode
from agentgym_rtmc.errors import DependencyError
from agentgym_rtmc.settings import dump_toml
from agentgym_rtmc.trainer.config import TrainConfig
from agentgym_rtmc.trainer.credit_step import assign_credit
from agentgym_rtmc.trainer.edits import edit_figures
from agentgym_rtmc.trainer.evaluate import evaluate_with_progress, passed
from agentgym_rtmc.trainer.learner.checkpoint import Checkpoint, load_latest, save_checkpoint
from agentgym_rtmc.trainer.learner.learner import Learner
from agentgym_rtmc.trainer.metrics import MetricsWriter, read_metrics
from agentgym_rtmc.trainer.order import tasks_of_update, training_pool
from agentgym_rtmc.trainer.policy.factory import make_policy
from agentgym_rtmc.trainer.policy.tokens import TokenPolicy
from agentgym_rtmc.trainer.preparation import Preparation
from agentgym_rtmc.trainer.progress import Progress
from agentgym_rtmc.trainer.result import TrainResult, write_result
from agentgym_rtmc.trainer.rollout import Rollout, plan_groups
from agentgym_rtmc.trainer.run_folder import RunFolder


@dataclass(frozen=True)
class Position:
    """Where a run stands: updates done, episodes planned, and the estimator's memory."""

    update: int = 0
    episodes: int = 0
    memory: Any = None


def train(config: TrainConfig, prepared: Preparation, folder: RunFolder, progress: Progress) -> TrainResult:
    """Train in a fresh folder, or continue the run whose folder it is."""
    started = time.monotonic()
    checkpoint = load_latest(folder.path, config.digest())
    with ExitStack() as stack:
        policy = make_policy(
            config.policy,
            env_id=config.env.id,
            make_env=prepared.make_env,
            tasks=prepared.train_tasks,
            observation_role=config.rollout.observation_role,
            progress=progress,
            model_path=checkpoint.model_path if checkpoint else None,
            trainable=True,
        )
        assert isinstance(policy, TokenPolicy)  # what `trainable` promises
        stack.callback(policy.close)
        learner = Learner(policy.model, config.learner_settings())
        position = resume(folder, checkpoint, learner)
        if folder.resumable:
            where = f"after update {position.update}" if position.update else "from the start: it has no checkpoint yet"
            progress.say(f"continuing {folder.path} {where}")
        replace_text(folder.config, dump_toml(config))
        folder.begun = True
        metrics = stack.enter_context(
            MetricsWriter(
                folder.metrics,
                after_update=position.update,
                tensorboard=folder.tensorboard if config.run.tensorboard else None,
            )
        )
        episode_file = stack.enter_context(EpisodeWriter(folder.episodes)) if config.run.save_episodes else None
        pool = training_pool(prepared.train_tasks, config.loop.tasks, config.run.seed)
        shown: dict[str, float | int | str] = {}
        ended = 0

        def show_episode(_: Episode) -> None:
            nonlocal ended
            ended += 1
            progress.update(position.update, episodes=ended, **shown)

        rollout = stack.enter_context(
            Rollout(
                prepared.make_env,
                policy,
                config.rollout,
                config.policy.sampling(),
                seed=config.run.seed,
                deterministic=config.run.deterministic,
                on_episode=show_episode,
            )
        )

        while True:
            policy.set_version(position.update)
            if evaluation_due(config, position.update) and not evaluation_at(folder, position.update):
                name = f"held-out tasks after {position.update} updates"
                found = evaluate_with_progress(
                    config, prepared.make_env, policy, prepared.heldout_tasks, progress, name
                )
                folder.append_evaluation(position.update, {"split": config.env.heldout_split, **found.row()})
            if position.update >= config.loop.updates:
                break

            began = time.monotonic()
            update = position.update + 1
            ended = position.episodes
            progress.phase(f"training with {config.credit.estimator}", config.loop.updates, position.update)
            plans = plan_groups(
                tasks_of_update(pool, config.loop.groups, position.update, config.run.seed),
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
                groups,
                prepared.signature,
                config.credit,
                position.memory,
                mask_length=config.learner.mask_length,
            )
            figures = learner.update(batch.rows, batch.counts)
            figures |= batch.figures | episode_figures(episodes, config.evaluation.success_reward)

            position = Position(update, position.episodes + len(plans), batch.memory)
            seconds = {"learner_seconds": learner.seconds, "update_seconds": time.monotonic() - began}
            metrics.write(update, figures, machine=stats.figures() | seconds)
            if update % config.loop.checkpoint_every == 0 or update == config.loop.updates:
                save(folder, config, learner, policy, position)
            shown = {"turns_per_s": stats.turns_per_second, **{n: figures[n] for n in ("reward", "company_share")}}
            progress.update(update, episodes=position.episodes, **shown)

    result = TrainResult(
        updates=position.update,
        episodes=position.episodes,
        seconds=time.monotonic() - started,
        before=evaluation_at(folder, 0),
        after=evaluation_at(folder, position.update),
    )
    draw(folder, progress)
    write_result(folder, result)
    return result


def resume(folder: RunFolder, checkpoint: Checkpoint | None, learner: Learner) -> Position:
    """Bring optimiser and files back to the checkpoint (to the start without one); what came after is done again."""
    if checkpoint is None:
        folder.rewind(0, 0)
        return Position()
    checkpoint.restore(learner)
    position = Position(**checkpoint.state["position"])
    folder.rewind(position.update, checkpoint.state["episodes_bytes"])
    return position


def save(folder: RunFolder, config: TrainConfig, learner: Learner, policy: TokenPolicy, position: Position) -> None:
    """Write a checkpoint that `resume` can continue from."""
    state = {"position": vars(position), "episodes_bytes": folder.episodes_bytes()}
    save_checkpoint(
        folder.path,
        position.update,
        learner,
        policy.tokenizer,
        state,
        keep=config.loop.keep_checkpoints,
        config_digest=config.digest(),
    )


def evaluation_due(config: TrainConfig, update: int) -> bool:
    """Whether the held-out tasks are tried after an update: before, at the end, and as often as configured."""
    every = config.evaluation.every
    return update == 0 or update >= config.loop.updates or (every > 0 and update % every == 0)


def evaluation_at(folder: RunFolder, update: int) -> dict[str, Any] | None:
    """The evaluation on record for an update."""
    return next((row for row in folder.read_evaluations() if row["update"] == update), None)


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
        "context_full_share": sum(episode.truncation == "tokens" for episode in valid) / count,
        "unparsed_share": sum(not turn.calls for turn in turns) / max(1, len(turns)),
        "length_cut_share": sum(turn.finish_reason == "length" for turn in turns) / max(1, len(turns)),
        "forks": float(sum(turn.forked for episode in valid for turn in episode.turns[1:])),
        **edit_figures(valid),
    }


def draw(folder: RunFolder, progress: Progress) -> None:
    """Draw the learning curve of a run, where there is anything to draw and something to draw it with."""
    from agentgym_rtmc.trainer.figures import learning_curve

    rows = read_metrics(folder.metrics)
    try:
        if rows:
            with refusals(folder.curve):
                learning_curve(rows, folder.read_evaluations(), folder.curve)
    except DependencyError as error:
        progress.say(f"no learning curve: {error}")
