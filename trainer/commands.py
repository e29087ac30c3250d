"""Commands of the trainer: `train`, `eval`, `rollout`.

Each reads one TOML file and dotted overrides (`credit.estimator=grpo`); where neither is given, the defaults train the
embedded policy on code repair.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from agentgym_rtmc.episode_file import EpisodeWriter
from agentgym_rtmc.errors import AgentGymError, ConfigError
from agentgym_rtmc.settings import load_settings
from agentgym_rtmc.tables import show_table
from agentgym_rtmc.trainer.config import TrainConfig, refuse_changes
from agentgym_rtmc.trainer.preparation import prepare
from agentgym_rtmc.trainer.progress import Progress
from agentgym_rtmc.trainer.result import read_result, show_result
from agentgym_rtmc.trainer.run_folder import RunFolder
from agentgym_rtmc.trainer.stopping import polite_kills
from agentgym_rtmc.trainer.threads import set_threads

if TYPE_CHECKING:
    from agentgym_rtmc.trainer.evaluation_output import EvaluationOutput

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
    config_file, overrides = split_arguments(arguments)
    if estimator is not None:
        overrides.append(f"credit.estimator={estimator}")
    if resume is not None and config_file is not None:
        raise ConfigError("--resume takes the configuration of the run folder; leave the file out")
    with polite_kills():
        if resume is None:
            config = load_settings(TrainConfig, config_file, overrides)
            prepared = prepare(config)  # what is wrong is refused before there is a folder
            opened = RunFolder.create(Path(config.run.folder), config.run.name)
        else:
            refuse_changes(overrides)
            opened = RunFolder.reopen(resume)
        with opened as folder, _telling_how_to_continue(folder):
            if resume is not None:
                config = load_settings(TrainConfig, folder.config, overrides)
                prepared = prepare(config)
            result = read_result(folder)
            if result is not None and result.updates >= config.loop.updates:
                print(f"{folder.path} is finished; to go on: loop.updates={2 * result.updates}", file=sys.stderr)
            else:
                set_threads(config.run.threads)
                from agentgym_rtmc.trainer.loop import train as run_training

                with Progress(quiet=quiet) as progress:
                    result = run_training(config, prepared, folder, progress)
            show_result(config, folder, result, as_json=as_json)


@contextmanager
def _telling_how_to_continue(folder: RunFolder) -> Iterator[None]:
    """Say, whatever stops a run, how to go on where there is something to go on from."""
    try:
        yield
    except (KeyboardInterrupt, AgentGymError) as error:
        if folder.begun or (folder.resumable and isinstance(error, KeyboardInterrupt)):
            where = shlex.quote(str(folder.path))
            print(f"stopped; continue with: agentgym-rtmc train --resume {where}", file=sys.stderr)
        raise


def evaluate(
    agent: Annotated[
        str | None,
        typer.Argument(
            help="run folder, model folder or id, endpoint:MODEL, scripted:reference or scripted:demonstrator"
        ),
    ] = None,
    arguments: Arguments = None,
    env: Annotated[str | None, typer.Option("--env", help="environment id, for env.id=...")] = None,
    policy: Annotated[
        str | None, typer.Option("--policy", help="kind of the policy that the configuration describes, for AGENT")
    ] = None,
    tasks: Annotated[int | None, typer.Option("--tasks", help="number of tasks")] = None,
    samples: Annotated[int | None, typer.Option("--samples", help="episodes a task")] = None,
    split: Annotated[str | None, typer.Option("--split", help="split of the task set")] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", help="0 is greedy")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="file of the episodes; default: a new folder below run.folder (runs)"),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="with --output and the same arguments: run what the file lacks or has as invalid"
        ),
    ] = False,
    allow_trained: Annotated[
        bool,
        typer.Option("--allow-trained", help="go on where the agent was trained on evaluated tasks; marks results"),
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--report", help="write the environment's official report into this folder")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            min=1,
            help="environments that step at once, with endpoint: and scripted: agents also episodes that are open at "
            "once; default: rollout.env_workers where configured, else one a core, up to 4",
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="print the episodes")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Measure pass@1 of an agent on held-out tasks, with an interval clustered by task.

    A model behind an OpenAI-compatible server: eval endpoint:MODEL policy.endpoint.base_url=URL. Its key is taken from
    the environment variable OPENAI_API_KEY (policy.endpoint.key_variable).
    """
    from agentgym_rtmc.trainer.collect import agent_config, collect, reporter_of, share_workers, write_report
    from agentgym_rtmc.trainer.evaluation_output import EvaluationOutput
    from agentgym_rtmc.trainer.preparation import heldout_tasks, load_tasks
    from agentgym_rtmc.trainer.show import show_episode
    from agentgym_rtmc.trainer.trained_on import trained_tasks

    agent, arguments = _which_agent(agent, arguments, policy)
    config_file, overrides = split_arguments(arguments)
    config = agent_config(
        agent,
        config_file,
        [
            *overrides,
            *([f"env.id={env}"] if env is not None else []),
            *([f"policy.kind={policy}"] if policy else []),
            *(["evaluation.allow_trained=true"] if allow_trained else []),
        ],
        heldout_split=split,
        tasks=tasks,
        samples=samples,
        temperature=temperature,
    )
    config = share_workers(config, workers)
    agent = agent or f"{config.policy.kind}:{config.policy.model or config.policy.player}"
    if resume and output is None:
        raise ConfigError("--resume goes with --output FILE, the file that has the episodes so far")
    if report is not None:
        reporter_of(config)  # refused now rather than at the end
    chosen = heldout_tasks(config, load_tasks(config.env))
    trained = trained_tasks(config, chosen)
    with polite_kills(), ExitStack() as stack:
        episodes = stack.enter_context(EvaluationOutput(output, config, resume=resume))
        stack.enter_context(_telling_how_to_resume(episodes))
        progress = stack.enter_context(Progress(quiet=quiet))
        result = collect(
            config,
            agent,
            progress,
            chosen,
            on_start=lambda: progress.say(f"episodes: {episodes.path}"),
            on_episode=episodes.append,
            kept=episodes.kept,
        )
    for path in write_report(config, agent, result, report, chosen, trained) if report is not None else []:
        print(f"report: {path}", file=sys.stderr)
    if show:
        # With --json, standard output belongs to the JSON alone.
        console = Console(stderr=as_json)
        for group in result.groups:
            for episode in group.episodes:
                show_episode(episode, console)
    row = {"agent": agent, "split": config.env.heldout_split, **result.row()}
    if trained:
        row["trained_on"] = len(trained)
    show_table([row], as_json=as_json, title=f"{config.env.id} at temperature {config.evaluation.temperature:g}")


@contextmanager
def _telling_how_to_resume(episodes: EvaluationOutput) -> Iterator[None]:
    """Say, whatever stops an evaluation, how to go on where there are episodes."""
    try:
        yield
    except (KeyboardInterrupt, AgentGymError):
        if episodes.any:
            option = f"-o {shlex.quote(str(episodes.path))} --resume"
            print(f"stopped; go on with the same arguments and {option}", file=sys.stderr)
        raise


def _which_agent(agent: str | None, arguments: list[str] | None, policy: str | None) -> tuple[str, list[str]]:
    """Tell the agent ("" with --policy) from the other arguments."""
    given = [*([agent] if agent is not None else []), *(arguments or [])]
    if policy is not None:
        return "", given
    if agent is None or "=" in agent:
        raise ConfigError(
            "which agent? Give a run folder, a model, endpoint:MODEL or scripted:reference, or --policy KIND"
        )
    return agent, given[1:]


def rollout(
    agent: Annotated[
        str,
        typer.Argument(
            help="run folder, model folder or id, endpoint:MODEL, scripted:reference or scripted:demonstrator"
        ),
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
    from agentgym_rtmc.trainer.preparation import heldout_tasks, load_tasks

    config = agent_config(
        agent,
        *split_arguments(arguments),
        heldout_split=split,
        tasks=tasks,
        samples=group_size,
        temperature=temperature,
    )
    with polite_kills(), EpisodeWriter(output) as writer, Progress(quiet=quiet) as progress:
        chosen = heldout_tasks(config, load_tasks(config.env))
        result = collect(config, agent, progress, chosen, on_episode=lambda episode: writer.append([episode]))
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
