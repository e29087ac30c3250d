"""What a person sees of an evaluation that runs: in a terminal a table no higher than the screen, else plain lines."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import echo_env
import gymnasium
from echo_env import make_task
from rich.console import Console

from agentgym_rtmc.episodes import Episode
from agentgym_rtmc.trainer.evaluation_board import EvaluationBoard
from agentgym_rtmc.trainer.policy.base import Completion, SamplingParams, Spent
from agentgym_rtmc.trainer.policy.scripted import ScriptedPolicy
from agentgym_rtmc.trainer.rollout import Rollout, RolloutConfig, plan_groups

WORDS = [f"{a}{b}" for a in echo_env.FIRST for b in echo_env.SECOND]
MODULES = str(Path(__file__).parent / "modules")


def passed(episode: Episode) -> bool:
    return episode.valid and episode.total_reward >= 1


def drawn(board: EvaluationBoard, height: int) -> list[str]:
    console = Console(file=io.StringIO(), width=100, height=height, force_terminal=True, color_system=None)
    console.print(board)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


class Paid(ScriptedPolicy):
    """A scripted policy that tells what each of its turns used."""

    def __init__(self, board: EvaluationBoard) -> None:
        super().__init__(echo_env.demonstrator)
        self.seen: list[list[str]] = []
        self.board = board

    def complete(self, conversations, keys, params):  # type: ignore[no-untyped-def]
        self.seen.append(drawn(self.board, 30))
        made = super().complete(conversations, keys, params)
        return [Completion(one.text, one.finish_reason, spent=Spent(1500, 0.25)) for one in made]


def test_what_runs_and_what_is_done() -> None:
    tasks = [make_task(word) for word in WORDS[:6]]
    plans = plan_groups(tasks, 2, first_number=100, seed=0, label="x")
    board = EvaluationBoard(len(plans), passed)
    policy = Paid(board)
    settings = RolloutConfig(env_workers=2, concurrency=4)
    with Rollout(
        lambda: gymnasium.make("tests/Echo-v0"), policy, settings, SamplingParams(), on_episode=board.count
    ) as rollout:
        board.watch(rollout.running)
        groups, _ = rollout.collect(plans)
        assert rollout.running() == []
    first = policy.seen[0]
    assert first[0].startswith("0 of 12 episodes · ") and "pass@1" not in first[0]
    assert first[1].split() == ["task", "episode", "state", "turn", "tokens", "reward"]
    assert any(line.split()[:3] == [tasks[0].id, "100", "thinking"] for line in first)
    later = policy.seen[-1]
    assert re.match(
        r"\d+ of 12 episodes · \d+ running · pass@1 \d\.\d+ \[.*\] · [\d.]+k tokens · cost \d+\.\d\d$", later[0]
    )
    last = drawn(board, 30)
    rewards = [episode.total_reward for group in groups for episode in group.episodes]
    assert last[0].startswith("12 of 12 episodes · 0 running · pass@1") and len(last) == 2 + 12
    assert sorted(line.split()[-1] for line in last[2:]) == sorted(f"{reward:g}" for reward in rewards)
    assert {line.split()[2] for line in last[2:]} == {"done", "failed"}
    turns = sum(len(episode.turns) for group in groups for episode in group.episodes)
    assert f"{turns * 1.5:.1f}k tokens" in last[0] and f"cost {turns * 0.25:.2f}" in last[0]


def test_never_higher_than_the_screen() -> None:
    board = EvaluationBoard(500, passed)
    tasks = [make_task(word) for word in WORDS]
    plans = plan_groups(tasks, 10, first_number=0, seed=0, label="x")
    settings = RolloutConfig(env_workers=2)
    with Rollout(
        lambda: gymnasium.make("tests/Echo-v0", max_turns=1),
        ScriptedPolicy(echo_env.demonstrator),
        settings,
        SamplingParams(),
        on_episode=board.count,
    ) as rollout:
        rollout.collect(plans)
    for height in (5, 10, 24, 60):
        lines = drawn(board, height)
        assert len(lines) <= max(4, height - 2) and lines[0].startswith("320 of 500 episodes")
        assert lines[-1] == f"… and {320 - (len(lines) - 3)} more"


def test_an_environment_says_what_it_is_at() -> None:
    env = gymnasium.make("tests/Echo-v0", max_turns=1)
    plain = env.unwrapped
    assert isinstance(plain, echo_env.EchoEnv)
    heard: list[str] = []
    grade = plain.grade
    plain.grade = lambda: heard.append(plain.activity) or grade()  # type: ignore[func-returns-value,method-assign]
    env.reset(seed=0, options={"task": make_task("ab")})
    env.step("ab")
    env.reset(seed=0, options={"task": make_task("ab")})
    plain.finish("seconds")
    assert heard == ["grading", "grading"] and plain.activity == ""
    env.close()


def evaluating(terminal: bool, tmp_path: Path) -> str:
    """The standard error of an evaluation, in a terminal of 12 lines or in a pipe."""
    words = [sys.executable, "-m", "agentgym_rtmc", "eval", "scripted:demonstrator", "env.id=echo_env:tests/Echo-v0"]
    words += ["--tasks", "7", "--samples", "6", "--workers", "3", "env.options={seconds=0.05}", "-o", "e.jsonl"]
    environment = {"PYTHONPATH": MODULES, "PATH": "", "TERM": "xterm", "LINES": "12", "COLUMNS": "90"}
    ours, theirs = pty.openpty() if terminal else os.pipe()
    with subprocess.Popen(words, stderr=theirs, stdout=subprocess.DEVNULL, env=environment, cwd=tmp_path) as process:
        os.close(theirs)
        told, give_up = b"", time.monotonic() + 120
        while time.monotonic() < give_up:
            if not select.select([ours], [], [], 1)[0]:
                continue
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other end of a terminal is closed
                break
            if not piece:
                break
            told += piece
        assert process.wait(60) == 0, told.decode()
    os.close(ours)
    return told.decode()


def test_a_terminal_shows_the_table(tmp_path: Path) -> None:
    told = evaluating(True, tmp_path)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", told)
    assert "of 42 episodes" in text and "state" in text and "pass@1" in text and " more" in text
    drawn_again = [match[0].count("\x1b[1A") for match in re.finditer(r"(?:\x1b\[1A\x1b\[2K)+", told)]
    assert drawn_again and max(drawn_again) < 12  # what is drawn over has fewer lines than the screen
    assert text.rstrip().splitlines()[-1].startswith("scripted:demonstrator")  # the bar alone stays


def test_a_pipe_gets_plain_lines(tmp_path: Path) -> None:
    told = evaluating(False, tmp_path)
    assert "\x1b" not in told and "42/42" in told and "state" not in told and len(told.splitlines()) < 10
