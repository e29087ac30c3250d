"""Commands of the environments: `envs` lists them, `play` lets a person play one, `validate` checks task sets.

Invariants: `envs` imports no environment and loads no tasks unless asked; `play` and `validate` end the environment's
processes however they are left.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import gymnasium
import numpy as np
import typer

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.environments.bar import counting_bar
from agentgym_rtmc.errors import AgentGymError, ConfigError
from agentgym_rtmc.registration import EnvRegistration, find_env, load, load_task_set, make_env, registered_envs
from agentgym_rtmc.settings import parse_override
from agentgym_rtmc.tables import Row, show_table
from agentgym_rtmc.tasks import Task, TaskSet

if TYPE_CHECKING:
    from agentgym_rtmc.environments.validation import Outcome

JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]
ImportOption = Annotated[list[str] | None, typer.Option("--import", help="module that registers more environments")]


def envs(
    tasks: Annotated[bool, typer.Option("--tasks", help="load the task sets and count their tasks")] = False,
    imports: ImportOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the registered environments, their task sets and default signatures."""
    _import(imports)
    rows: list[Row] = []
    for entry in registered_envs().values():
        sets: list[str] | dict[str, Any] = list(entry.task_sets)
        if tasks:
            sets = {name: _count(entry, name) for name in entry.task_sets}
        rows.append(
            {
                "id": entry.id,
                "summary": entry.summary,
                "task_sets": sets,
                "default_signature": entry.default_signature,
            }
        )
    show_table(rows, as_json=as_json)


def _count(entry: EnvRegistration, name: str) -> dict[str, int] | str:
    try:
        loaded = load_task_set(entry.id, name)
    except AgentGymError as error:
        # One set that needs a download or a package must not hide the others.
        return f"cannot be loaded: {error}"
    return loaded.splits | loaded.selections


def play(
    env: Annotated[str, typer.Argument(help="environment id; 'module:id' imports the module first")],
    task: Annotated[str | None, typer.Option(help="id of the task to play")] = None,
    split: Annotated[str | None, typer.Option(help="draw the task from this split; default: the first one")] = None,
    task_set: Annotated[str | None, typer.Option(help="registered task set or 'module:function'")] = None,
    seed: Annotated[int, typer.Option(min=0, help="draws the task and seeds the environment")] = 0,
    option: Annotated[list[str] | None, typer.Option(help="key=value for the environment, e.g. max_turns=5")] = None,
    imports: ImportOption = None,
) -> None:
    """Play a task yourself: you type what an agent would answer.

    Where the environment takes shell commands, a plain line is enough. A text of several lines starts with ``` (or
    <tool_call>) and ends with its closing line. Leave with Ctrl-D or Ctrl-C.
    """
    _import(imports)
    entry = find_env(env)
    chosen = _choose_task(load_task_set(entry.id, task_set), task, split, seed)
    game = make_env(entry, _options(option))
    try:
        _play(game, chosen, seed)
    finally:
        game.close()


def _play(game: gymnasium.Env[Any, Any], task: Task, seed: int) -> None:
    observation, info = game.reset(seed=seed, options={"task": task})
    player_env: Any = game.unwrapped
    _section("system prompt", getattr(player_env, "system_prompt", ""))
    _section(f"task {info.get('task', task.id)}", observation)
    total, turns = 0.0, 0
    for action in _actions(getattr(player_env, "protocol", None)):
        observation, reward, terminated, truncated, info = game.step(action)
        total, turns = total + float(reward), turns + 1
        left = f", {info['turns_left']} left" if "turns_left" in info else ""
        _section(f"turn {turns}{left}", observation)
        if terminated or truncated:
            end = "the task is over" if terminated else f"cut off by the limit of {info.get('truncation', 'turns')}"
            parts = "".join(f", {name} {value:g}" for name, value in dict(info.get("reward", {})).items())
            print(f"\n{end} after {turns} turns. reward {total:g}{parts}")
            return
    print(f"\nyou left after {turns} turns; the work was not graded")


def _actions(protocol: Any) -> Iterator[str]:
    """Yield what the player types, as the agent's text, until the input ends."""
    if sys.stdin.isatty():
        # Importing it gives `input` a history and the arrow keys; some builds of Python lack it.
        with contextlib.suppress(ImportError):
            importlib.import_module("readline")
    while True:
        try:
            lines = [input("> ")]
            closing = _closing(lines[0])
            # What opens and closes on its first line is complete; the opening itself is skipped.
            while closing and closing not in lines[-1][len(closing) if len(lines) == 1 else 0 :]:
                lines.append(input("… "))
            while not closing and lines[-1].endswith("\\"):
                lines.append(input("… "))
        except EOFError:
            return
        text = "\n".join(lines)
        if not text.strip():
            continue
        if not closing and getattr(protocol, "name", "") == "shell":
            text = protocol.render(Call(name="shell", arguments={"command": text}))
        yield text


def _closing(line: str) -> str:
    """Return what ends a text that begins with this line, "" if the line is all of it."""
    if line.lstrip().startswith("<tool_call>"):
        return "</tool_call>"
    fence = re.match(r"\s*(`{3,})", line)
    return fence[1] if fence else ""


def validate(
    env: Annotated[str, typer.Argument(help="environment id; 'module:id' imports the module first")],
    task_set: Annotated[str | None, typer.Option(help="registered task set or 'module:function'")] = None,
    split: Annotated[list[str] | None, typer.Option(help="check this split only; may be given again")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="check so many tasks of a split, evenly chosen")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="processes; default: one a core")] = None,
    task_option: Annotated[list[str] | None, typer.Option(help="key=value for the task set, e.g. path=FILE")] = None,
    option: Annotated[list[str] | None, typer.Option(help="key=value for the environment, e.g. max_turns=5")] = None,
    gold: Annotated[bool, typer.Option("--gold", help="play the reference (default: both)")] = False,
    noop: Annotated[bool, typer.Option("--noop", help="play doing nothing (default: both)")] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the outcome of every task here")] = None,
    known_bad: Annotated[
        Path | None,
        typer.Option(
            "--known-bad",
            help="list in this file the tasks whose reference is not paid (a known_bad_file); what it lists of tasks "
            "that are not checked stays",
        ),
    ] = None,
    imports: ImportOption = None,
) -> None:
    """Check a task set: the reference must be paid 1, doing nothing 0. Something broken: exit code 1.

    What --known-bad lists counts as dealt with.
    """
    from agentgym_rtmc.environments.known_bad import read_known_bad, write_known_bad
    from agentgym_rtmc.environments.validation import validate_tasks

    _import(imports)
    gold, noop = gold or not noop, noop or not gold
    if known_bad is not None and not gold:
        raise ConfigError("--known-bad lists tasks whose reference is not paid; play it with --gold")
    listed = read_known_bad(known_bad) if known_bad is not None and known_bad.exists() else {}
    modules = [*(imports or []), *([env.rpartition(":")[0]] if ":" in env else [])]
    entry = find_env(env)
    loaded = load_task_set(entry.id, task_set, **_options(task_option))
    chosen = {name: _evenly(loaded.split(name), limit) for name in split or loaded.splits}
    tasks = list({task.id: task for part in chosen.values() for task in part}.values())  # splits may overlap
    if not tasks:
        raise ConfigError(f"task set {loaded.name!r} has no tasks in {', '.join(chosen)}; choose another --split")
    workers = min(workers or os.cpu_count() or 1, len(tasks))
    began = time.monotonic()
    checked = validate_tasks(
        entry, tasks, workers=workers, options=_options(option), modules=modules, gold=gold, noop=noop
    )
    with contextlib.closing(checked) as outcomes:
        by_task = {outcome.task: outcome for outcome in _watched(outcomes, len(tasks))}
    seconds = time.monotonic() - began
    rows = [_summary(name, [by_task[task.id] for task in part], gold, noop) for name, part in chosen.items()]
    broken = [outcome for outcome in by_task.values() if outcome.problems]
    if json_file is not None:
        found = [vars(by_task[task.id]) for task in tasks]
        report = {"environment": entry.id, "task_set": loaded.name, "splits": rows, "seconds": seconds, "tasks": found}
        json_file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    show_table(rows)
    for outcome in broken:
        print(f"broken: {outcome.task}: {'; '.join(outcome.problems)}")
    verdict = f"{len(broken)} of {len(by_task)} tasks are broken" if broken else f"all {len(by_task)} tasks are fine"
    print(f"{entry.id}, {loaded.name}: {verdict} ({seconds:.0f} s, {workers} workers)")
    bad = {outcome.task: outcome.known_bad for outcome in broken if outcome.known_bad}
    if known_bad is not None:
        write_known_bad(known_bad, {name: why for name, why in listed.items() if name not in by_task} | bad)
        print(f"{known_bad}: lists {len(bad)} of these tasks")
        # One that does something wrong beside that is not dealt with by leaving it out of training.
        broken = [outcome for outcome in broken if outcome.problems != (bad.get(outcome.task),)]
    if broken:
        raise typer.Exit(1)


def _summary(split: str, outcomes: Sequence[Outcome], gold: bool, noop: bool) -> Row:
    paid = {
        "reference paid 1": sum(outcome.reference == 1 for outcome in outcomes) if gold else None,
        "nothing paid 0": sum(outcome.nothing == 0 for outcome in outcomes) if noop else None,
    }
    return {
        "split": split,
        "tasks": len(outcomes),
        **{name: count for name, count in paid.items() if count is not None},
        "broken": sum(bool(outcome.problems) for outcome in outcomes),
    }


def _watched(outcomes: Iterator[Outcome], total: int) -> Iterator[Outcome]:
    """Show on standard error how far it is: a bar in a terminal, else a line for every tenth."""
    broken = 0
    with counting_bar("validating", transient=True) as progress:
        bar = progress.add_task("", total=total)
        for number, outcome in enumerate(outcomes, 1):
            broken += bool(outcome.problems)
            progress.update(bar, advance=1, description=f"{broken} broken" if broken else "")
            if not progress.console.is_terminal and number * 10 // total > (number - 1) * 10 // total:
                print(f"validated {number} of {total} tasks, {broken} broken", file=sys.stderr, flush=True)
            yield outcome


def _evenly(tasks: Sequence[Task], limit: int | None) -> list[Task]:
    if limit is None or len(tasks) <= limit:
        return list(tasks)
    return [tasks[index * len(tasks) // limit] for index in range(limit)]


def _choose_task(tasks: TaskSet, task_id: str | None, split: str | None, seed: int) -> Task:
    if task_id is not None:
        return tasks.task(task_id)
    pool = tasks.split(split if split is not None else next(iter(tasks.splits), ""))
    if not pool:
        raise ConfigError(f"split {split!r} of task set {tasks.name!r} is empty; choose another with --split")
    return pool[int(np.random.default_rng(seed).integers(len(pool)))]


def _options(given: list[str] | None) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for text in given or []:
        keys, value = parse_override(text)
        if len(keys) != 1:
            raise ConfigError(f"option {text!r} is not of the form key=value")
        options[keys[0]] = value
    return options


def _import(modules: list[str] | None) -> None:
    for module in modules or []:
        load(f"{module}:__name__")


def _section(title: str, text: str) -> None:
    if text:
        print(f"\n── {title} {'─' * max(3, 76 - len(title))}\n{text.rstrip()}")
