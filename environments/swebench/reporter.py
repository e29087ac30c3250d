"""The official reports of an evaluation: predictions and a report of the run for each sample of the tasks.

Invariants: the patch that is reported is the one that the episode's reward was computed from. Its grading is taken
from the environment's option `gradings` where that names a folder; without it the patch is graded again. An invalid
episode has no prediction, so it is missing from the report and never a failure of the agent's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgym_rtmc.environments.swebench.evaluation import grade_predictions
from agentgym_rtmc.environments.swebench.grading_store import GradingStore
from agentgym_rtmc.environments.swebench.limits import GRADING_SECONDS, ContainerLimits
from agentgym_rtmc.environments.swebench.predictions import Prediction
from agentgym_rtmc.environments.swebench.report import EvaluationRun
from agentgym_rtmc.environments.swebench.tasks import has_hints, row_of
from agentgym_rtmc.episodes import Episode, EpisodeGroup
from agentgym_rtmc.tasks import Task


def write_reports(
    groups: Sequence[EpisodeGroup], tasks: Sequence[Task], folder: Path, agent: str, options: Mapping[str, Any]
) -> list[Path]:
    """Write `folder/sample-1`, `folder/sample-2`, …, each as swebench leaves a run; returns the reports.

    `tasks` are those that were evaluated, private parts included. Raises what grading raises.
    """
    rows = [row_of(task) for task in tasks]
    gradings = options.get("gradings")
    store = GradingStore(Path(gradings) if gradings else None)
    model = agent.replace("/", "__").replace(":", "-").lstrip(".") or "agent"
    written = []
    for sample in range(max((len(group.episodes) for group in groups), default=0)):
        episodes = [group.episodes[sample] for group in groups if sample < len(group.episodes)]
        predictions = {
            episode.opening.task.id: Prediction(
                instance_id=episode.opening.task.id, model_name_or_path=model, model_patch=patch_of(episode)
            )
            for episode in episodes
            if episode.valid and episode.turns
        }
        if not predictions:
            continue
        run = EvaluationRun(folder / f"sample-{sample + 1}", "eval", model)
        grade_predictions(
            run,
            rows,
            predictions,
            store=store,
            workers=min(4, os.cpu_count() or 1),
            limits=ContainerLimits.model_validate(dict(options.get("grading_container") or {})),
            seconds=float(options.get("grading_seconds", GRADING_SECONDS)),
        )
        written.append(run.write_report(rows, hints=any(has_hints(task) for task in tasks)))
    return written


def patch_of(episode: Episode) -> str:
    """The patch that an episode ended with, "" for none."""
    patch = episode.turns[-1].info.get("patch")
    return patch if isinstance(patch, str) else ""
