"""Commands of the trainer: `train`, `eval`, `rollout`.

Each reads one TOML file and dotted overrides (`credit.estimator=grpo`); where neither is given, the defaults train the
embedded policy on code repair.
"""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from agentgym_rtmc.episode_file import EpisodeWriter
from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.settings import load_settings
from agentgym_rtmc.tables import show_json, show_table
from agentgym_rtmc.trainer.config import TrainConfig
from agentgym_rtmc.trainer.progress import Progress

Arguments = Annotated[
    list[str] | None, typer.Argument(metavar="[CONFIG.toml] [KEY=VALUE]...", help="a configuration, then overrides")
]
AsJson = Annotated[bool, typer.Option("--json", help="print the result as JSON")]
Quiet = Annotated[bool, typer.Option("--quiet", help="no progress")]


def train(
    arguments: Arguments = None,
    estimator: Annotated[
        str | None, typer.Option("--estimator", help="how credit is assigned, e.g. rtmc or grpo")
    ] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="run folder of a run to continue")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Train an agent; ends with a table of held-out pass@1 before and after, and the run folder."""
    from agentgym_rtmc.trainer.run_folder import RunFolder

    config_file, overrides = split_arguments(arguments)
    if estimator is not None:
        overrides.append(f"credit.estimator={estimator}")
    if resume is not None:
        if config_file is not None:
            raise ConfigError("--resume takes the configuration of the run folder; leave the file out")
        refuse_changes(overrides)
        config = load_settings(TrainConfig, resume / "config.toml", overrides)
        opened = RunFolder.reopen(resume)
    else:
        config = load_settings(TrainConfig, config_file, overrides)
        opened = RunFolder.create(Path(config.run.folder), config.run.name)
    with opened as folder:
        from agentgym_rtmc.trainer.loop import train as run_training

        # A polite kill ends like Ctrl-C: environments are closed, and the last checkpoint is where to go on.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with Progress(quiet=quiet) as progress:
                result = run_training(config, folder, progress)
        except KeyboardInterrupt:
            Console(stderr=True).print(
                f"stopped; continue with: agentgym-rtmc train --resume {folder.path}", highlight=False, soft_wrap=True
            )
            raise
    if as_json:
        show_json(dataclasses.asdict(result) | {"folder": str(result.folder), "curve": str(result.curve)})
        return
    title = f"{config.env.id}, {config.credit.estimator}: {result.updates} updates, {result.episodes} episodes"
    show_table([_row("before", result.before), _row("after", result.after)], title=title)
    print(f"run folder:     {result.folder}")
    if result.curve is not None:
        print(f"learning curve: {result.curve}")
    print("next: compare with another estimator:  agentgym-rtmc train --estimator grpo")
    print(f"      see it at work:                  agentgym-rtmc eval {result.folder} --tasks 3 --show")


def _row(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    return {
        "held-out tasks": name,
        "pass@1": f"{figures['pass_at_1']:.3f}",
        "95 % interval": f"{figures['low']:.3f} – {figures['high']:.3f}",
        "tasks": figures["tasks"],
        "episodes": figures["episodes"],
        "turns/episode": f"{figures['turns_per_episode']:.1f}",
    }


def evaluate(
    agent: Annotated[
        str, typer.Argument(help="run folder, model folder or id, or scripted:reference, scripted:demonstrator")
    ],
    arguments: Arguments = None,
    tasks: Annotated[int | None, typer.Option("--tasks", help="number of tasks")] = None,
    samples: Annotated[int | None, typer.Option("--samples", help="episodes a task")] = None,
    split: Annotated[str | None, typer.Option("--split", help="split of the task set")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", help="0 is greedy")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="write the episodes to this file")] = None,
    show: Annotated[bool, typer.Option("--show", help="print the episodes")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure pass@1 of an agent on held-out tasks, with an interval clustered by task."""
    from agentgym_rtmc.trainer.collect import agent_config, collect
    from agentgym_rtmc.trainer.show import show_episode

    config = agent_config(
        agent,
        *split_arguments(arguments),
        heldout_split=split,
        tasks=tasks,
        samples=samples,
        temperature=temperature,
    )
    with Progress(quiet=quiet) as progress:
        result = collect(config, agent, progress)
    if output is not None:
        with EpisodeWriter(output) as writer:
            writer.append(episode for group in result.groups for episode in group.episodes)
    if show:
        for group in result.groups:
            for episode in group.episodes:
                show_episode(episode)
    row = {"agent": agent, "split": config.env.heldout_split, **result.row()}
    show_table([row], as_json=as_json, title=f"{config.env.id} at temperature {config.evaluation.temperature:g}")


def rollout(
    agent: Annotated[
        str, typer.Argument(help="run folder, model folder or id, or scripted:reference, scripted:demonstrator")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="episodes are appended to this file")],
    arguments: Arguments = None,
    tasks: Annotated[int, typer.Option("--tasks", help="number of tasks (groups)")] = 16,
    group_size: Annotated[int, typer.Option("--group-size", help="episodes a task")] = 8,
    split: Annotated[str, typer.Option("--split", help="split of the task set")] = "train",
    temperature: Annotated[float | None, typer.Option("--temperature", help="0 is greedy")] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Collect groups of episodes into an episode file, without learning."""
    from agentgym_rtmc.trainer.collect import agent_config, collect

    config = agent_config(
        agent,
        *split_arguments(arguments),
        heldout_split=split,
        tasks=tasks,
        samples=group_size,
        temperature=temperature,
    )
    with EpisodeWriter(output) as writer, Progress(quiet=quiet) as progress:
        result = collect(config, agent, progress, on_episode=lambda episode: writer.append([episode]))
    row = {"agent": agent, "split": split, **result.row(), "file": str(output)}
    show_table([row], as_json=as_json, title=config.env.id)


def split_arguments(arguments: list[str] | None) -> tuple[Path | None, list[str]]:
    """Tell the configuration file from the overrides that follow it."""
    given = list(arguments or [])
    config = Path(given.pop(0)) if given and "=" not in given[0] else None
    for argument in given:
        if "=" not in argument:
            raise ConfigError(f"{argument!r} is not of the form key=value; the configuration file comes first")
    return config, given


def refuse_changes(overrides: list[str]) -> None:
    """A resumed run may go on for longer or be evaluated otherwise, but it stays the run that it was."""
    for override in overrides:
        if not override.startswith(("loop.", "evaluation.every", "run.threads")):
            raise ConfigError(
                f"override {override!r}: a resumed run keeps its configuration; only loop.*, evaluation.every and "
                "run.threads may change. Start a new run for anything else"
            )

