"""Which of the tasks that are evaluated a policy was trained on, in whatever run that was.

A model in a run's folder was trained on what that run's stored configuration calls its training split; where the run
began with another run's model, on what that one was trained on, too. Task ids mean the same in environments of one
family: those with the same entry point, such as SWE-bench's, whose datasets share instances.

Invariant: what cannot be found out is an error, never taken for "not trained on". Of a model outside of any run's
folder nothing is known, and nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from agentgym_rtmc.errors import AgentGymError, ConfigError
from agentgym_rtmc.registration import find_env, load_task_set
from agentgym_rtmc.settings import load_settings
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.config import EnvConfig, TrainConfig


def trained_tasks(config: TrainConfig, tasks: Sequence[Task]) -> tuple[str, ...]:
    """Return the ids of `tasks` (of `config.env`) that the configured policy was trained on.

    Raises ConfigError, unless `evaluation.allow_trained`, where there are any and where a run cannot be read.
    """
    ids = {task.id for task in tasks}
    found: set[str] = set()
    try:
        for run, theirs in _runs_behind(config):
            shared = ids & _trained_in(run, theirs, config.env)
            if shared and not config.evaluation.allow_trained:
                raise ConfigError(
                    f"{run} trained on {len(shared)} of the {len(ids)} tasks that are evaluated, such as "
                    f"{min(shared)}. Evaluate another split (--split), or train with them left out (for SWE-bench: "
                    "task_options evaluate_on and drop_shared); --allow-trained (evaluation.allow_trained=true) goes "
                    "on and marks the result"
                )
            found |= shared
    except _UnknownError as error:
        if not config.evaluation.allow_trained:
            raise ConfigError(f"{error}. --allow-trained (evaluation.allow_trained=true) goes on without") from error
    return tuple(sorted(found))


def run_of(model: str) -> Path | None:
    """The folder of the run that a model was trained in, None for a model that lies in no run's checkpoints."""
    if not model:
        return None
    path = Path(model).expanduser().resolve()
    for folder in path.parents:
        if (folder / "config.toml").is_file() and path.is_relative_to(folder / "checkpoints"):
            return folder
    return None


class _UnknownError(AgentGymError):
    """What a run was trained on cannot be told."""


def _runs_behind(config: TrainConfig) -> Iterator[tuple[Path, EnvConfig]]:
    """The run that the policy comes from, then the one that this run began with, and so on."""
    seen: set[Path] = set()
    while config.policy.kind in ("tiny", "hf"):
        run = run_of(config.policy.model)
        if run is None or run in seen:
            return
        with _telling_whose(run):
            config = load_settings(TrainConfig, run / "config.toml")
        yield run, config.env
        seen.add(run)


def _trained_in(run: Path, theirs: EnvConfig, evaluated: EnvConfig) -> frozenset[str]:
    with _telling_whose(run):
        if find_env(theirs.id).entry_point != find_env(evaluated.id).entry_point:
            return frozenset()
        tasks = load_task_set(theirs.id, theirs.task_set, **theirs.task_options).split(theirs.train_split)
    return frozenset(task.id for task in tasks)


@contextmanager
def _telling_whose(run: Path) -> Iterator[None]:
    try:
        yield
    except AgentGymError as error:
        raise _UnknownError(f"what {run} was trained on cannot be told: {error}") from error
