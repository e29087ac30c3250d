"""What environments cost. CodeRepair: loading, resets, turns with and without remembered results, grading, its share of
training. Those with typed tools, which run in this process: loading, resets, turns, episodes a minute, their share.

CPU is of this process and all its children. "Beyond the command" is a turn's CPU less that of the same command run
bare on the same files in the same run, so that a busy machine hurts both alike. The share of a training step is that of
wall time in which `agentgym-rtmc train` waits for environments, over a few updates of the environment's example.
`python benchmarks/environments.py [--turns 40] [--updates 3] [--json]`; `--updates 0` leaves the training out.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import gymnasium
import numpy as np
from rich.console import Console
from rich.table import Table

from agentgym_rtmc.environments.code_repair import grading, players
from agentgym_rtmc.environments.code_repair.asserts.tests import Mode
from agentgym_rtmc.environments.code_repair.builtin import load_builtin
from agentgym_rtmc.environments.code_repair.env import CodeRepairEnv
from agentgym_rtmc.environments.code_repair.factory import make_task
from agentgym_rtmc.environments.code_repair.repairs import edit_command
from agentgym_rtmc.environments.code_repair.workspace import start_snapshot
from agentgym_rtmc.environments.sandbox import memo
from agentgym_rtmc.environments.sandbox.root_sources import interpreter
from agentgym_rtmc.registration import Player, find_env, load, load_task_set
from agentgym_rtmc.tasks import Task


def cpu_seconds() -> float:
    """CPU time of this process and the children it has waited for."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in usage)


class Clock:
    """Wall and CPU milliseconds of a block."""

    wall = 0.0
    cpu = 0.0


@contextmanager
def timed(count: int) -> Iterator[Clock]:
    """Measure a block that does something `count` times."""
    clock = Clock()
    cpu, wall = cpu_seconds(), time.perf_counter()
    yield clock
    clock.wall = (time.perf_counter() - wall) * 1e3 / count
    clock.cpu = (cpu_seconds() - cpu) * 1e3 / count


def repeat_commands(env: CodeRepairEnv, tasks: list[Task], command: Callable[[Task], str]) -> Clock:
    """One turn in each task."""
    clocks = []
    for task in tasks:
        env.reset(options={"task": task})
        with timed(1) as clock:
            env.step(players.write_action(command(task)))
        clocks.append(clock)
    total = Clock()
    total.wall = sum(clock.wall for clock in clocks) / len(clocks)
    total.cpu = sum(clock.cpu for clock in clocks) / len(clocks)
    return total


def bare(tasks: list[Task], command: Callable[[Task], str]) -> Clock:
    """The same commands as plain processes; these come from the reference player, not from an agent."""
    total = Clock()
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder, "bin", "python")
        python.parent.mkdir()
        python.write_text(f'#!/bin/sh\nexec {interpreter()} -S -E -B "$@"\n')  # as bare as the sandbox's own
        python.chmod(0o755)
        path = f"{folder}/bin:/usr/local/bin:/usr/bin:/bin"
        for number, task in enumerate(tasks):
            place = Path(folder, str(number))
            for name, (mode, data) in start_snapshot(task).items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                if data:
                    (place / name).write_bytes(data)
                elif mode & 0o040000:
                    (place / name).mkdir(exist_ok=True)
            with timed(len(tasks)) as clock:
                subprocess.run(
                    ["sh", "-c", command(task)], cwd=place, env={"PATH": path}, capture_output=True, check=False
                )
            total.wall += clock.wall
            total.cpu += clock.cpu
    return total


def episodes(env: CodeRepairEnv, tasks: list[Task], repeats: int) -> tuple[int, float]:
    """The demonstrator on each task; returns turns and the share of commands that were remembered."""
    memo.SHARED.clear()
    turns = 0
    for seed in range(repeats):
        for task in tasks:
            observation, _ = env.reset(seed=seed, options={"task": task})
            acting = players.demonstrator(task, observation, np.random.default_rng(seed))
            action, over = next(acting), False
            while not over:
                observation, _, terminated, truncated, _ = env.step(action)
                turns += 1
                over = terminated or truncated
                if not over:
                    action = acting.send(observation)
    asked = memo.SHARED.hits + memo.SHARED.misses
    return turns, memo.SHARED.hits / max(1, asked)


IN_PROCESS = ("ServiceDesk-v0", "DataQuestions-v0")
EXAMPLES = ("code_repair", "service_desk", "data_questions")
ADD = "def add(a, b):\n    return a + b\n"
TESTS = "def test_add():\n    assert add(1, 2) == 3\n    assert add(-4, 4) == 0\n"


def tested(mode: Mode, number: int) -> tuple[Task, bytes]:
    """A task graded by assert code, and a right program that was never judged before."""
    files = {"m.py": ADD.replace("+", "-")}
    task = make_task("add", files=files, reference=ADD, visible=TESTS, hidden=TESTS, entry=["add"], mode=mode)
    return task, f"{ADD}n = {number}\n".encode()


def training_share(example: str, updates: int) -> tuple[Clock, str]:
    """Wall time of an update, and what of it went where."""
    with tempfile.TemporaryDirectory() as folder:
        short = [
            "policy.warm_start.episodes=200",
            "evaluation.tasks=4",
            f"run.folder={folder}",
            f"loop.updates={updates}",
        ]
        config = Path(__file__).parents[1] / "examples" / f"{example}.toml"
        words = [sys.executable, "-m", "agentgym_rtmc", "train", str(config), *short]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        [metrics] = Path(folder).glob("*/metrics.jsonl")
        rows = [row["machine"] for row in map(json.loads, metrics.read_text().splitlines())]
    total = sum(row["update_seconds"] for row in rows)
    sampling, learning = (sum(row[f"{part}_seconds"] for row in rows) for part in ("sampling", "learner"))
    waiting = sum(row["rollout_seconds"] for row in rows) - sampling
    clock = Clock()
    clock.wall = 1e3 * total / len(rows)
    shares = {"environments": waiting, "sampling": sampling, "learner": learning}
    return clock, ", ".join(f"{name} {part / total:.0%}" for name, part in shares.items())


def in_process(env_id: str, report: Callable[..., None]) -> None:
    """An environment without a sandbox, played by its reference on one thread."""
    with timed(1) as clock:
        tasks = list(load_task_set(env_id).split("train"))
    name = env_id.partition("-")[0]
    report(f"{name}: load the task set", clock, f"{len(tasks)} training tasks")
    tasks = tasks[:: max(1, len(tasks) // 500)][:500]
    env: gymnasium.Env[str, str] = gymnasium.make(find_env(env_id).id, disable_env_checker=True)
    player: Player = load(str(find_env(env_id).reference))
    for note in ("new task", "same task again"):
        with timed(len(tasks)) as clock:
            openings = [env.reset(seed=0, options={"task": task})[0] for task in tasks]
        report(f"{name}: reset, {note}", clock, f"{1e3 / clock.wall:.0f} resets/s")
    scripts = [
        list(scripted(env, player, task, opening)) for task, opening in zip(tasks, openings, strict=True)
    ]  # what is done is known, so that only the environment is timed
    turns = sum(map(len, scripts))
    with timed(len(tasks)) as clock:
        for task, script in zip(tasks, scripts, strict=True):
            env.reset(seed=0, options={"task": task})
            for action in script:
                env.step(action)
    per_episode = turns / len(tasks)
    note = f"{6e4 / clock.wall:.0f} episodes/min of {per_episode:.1f} turns"
    report(f"{name}: episode", clock, note)
    env.close()


def scripted(env: gymnasium.Env[str, str], player: Player, task: Task, opening: str) -> Iterator[str]:
    """The actions of a player in an episode."""
    env.reset(seed=0, options={"task": task})
    acting = player(task, opening, np.random.default_rng(0))
    action: str | None = next(acting, None)
    while action is not None:
        yield action
        seen, _, terminated, truncated, _ = env.step(action)
        try:
            action = None if terminated or truncated else acting.send(seen)
        except StopIteration:
            action = None


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []

    def report(what: str, clock: Clock, note: str = "") -> None:
        cpu = round(clock.cpu, 2) if clock.cpu else None
        rows.append({"what": what, "wall ms": round(clock.wall, 2), "CPU ms": cpu, "note": note})

    with timed(1) as clock:
        tasks = list(load_builtin().split("train"))
    report("load the task set", clock, f"{len(tasks)} training tasks")
    tasks = tasks[:: len(tasks) // options.turns][: options.turns]
    env = CodeRepairEnv()
    fresh = CodeRepairEnv(memo=False)
    fresh.reset(options={"task": tasks[0]})
    fresh.step(players.write_action("true"))
    with timed(len(tasks)) as clock:
        for task in tasks:
            env.reset(options={"task": task})
    report("reset, new task", clock, f"{1e3 / clock.wall:.0f} resets/s")
    with timed(len(tasks)) as clock:
        for task in tasks:
            env.reset(options={"task": task})
    report("reset, same task again", clock, f"{1e3 / clock.wall:.0f} resets/s")

    def repair(task: Task) -> str:
        return edit_command(players.true_repair(task))

    for name, command in {"cat m.py": lambda task: "cat m.py", "revert, edit, test": repair}.items():
        plain, turn = bare(tasks, command), repeat_commands(fresh, tasks, command)
        report(f"turn: {name}", turn, f"{turn.cpu - plain.cpu:.1f} ms CPU beyond the command ({plain.cpu:.1f} ms bare)")
        repeat_commands(env, tasks, command)
        known = repeat_commands(env, tasks, command)
        report(f"turn: {name}, known", known, f"{1e3 / known.wall:.0f} turns/s")
    grading.MEMO.clear()
    for note in ("first", "known"):
        with timed(len(tasks)) as clock:
            for task in tasks:
                grading.judge(task, str(task.private["original"]).encode())
        report(f"grade, {note}", clock)
    for mode in ("apart", "together"):
        grading.judge(*tested(mode, -1))  # what is found out once for each task
        with timed(5) as clock:
            for number in range(5):
                grading.judge(*tested(mode, number))
        report(f"grade, tests and program {mode}", clock, "two assertions")
    with timed(1) as clock:
        turns, share = episodes(env, tasks[:10], 8)
    note = f"{turns} turns, {1e3 * turns / clock.wall:.0f} turns/s on one thread, {share:.0%} known"
    clock.wall, clock.cpu = clock.wall / turns, clock.cpu / turns
    report("demonstrator, groups of 8", clock, note)
    for env_id in IN_PROCESS:
        in_process(env_id, report)
    for example in EXAMPLES if options.updates else ():
        clock, note = training_share(example, options.updates)
        report(f"training step, {example}", clock, note)

    if options.json:
        print(json.dumps({"cores": os.cpu_count(), "rows": rows}))
        return
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
