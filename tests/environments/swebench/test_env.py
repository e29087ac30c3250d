"""Episodes of the small instance in a real engine: both interfaces, budgets, what is told, and what is paid."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
import pytest

from agentgym_rtmc.calls import Call
from agentgym_rtmc.calls.tool_call import ToolCallProtocol
from agentgym_rtmc.environments.checks import check_agent_env
from agentgym_rtmc.environments.swebench.env import SWEBenchEnv
from agentgym_rtmc.environments.swebench.players import apply_commands, reference, write_action
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow
from agentgym_rtmc.environments.swebench.tasks import task_of
from agentgym_rtmc.errors import ConfigError

pytest.importorskip("swebench")
SMALL = {"memory_mb": 512, "disk_mb": 128}
OPTIONS: dict[str, Any] = {"container": SMALL, "grading_container": SMALL, "grading_seconds": 300.0}
Made = Callable[..., gymnasium.Env[str, str]]


@pytest.fixture(scope="session")
def gradings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gradings")


@pytest.fixture
def make(gradings: Path) -> Iterator[Made]:
    made = []

    def build(**options: Any) -> gymnasium.Env[str, str]:
        made.append(gymnasium.make("agentgym_rtmc/SWEBench-v0", **{**OPTIONS, "gradings": gradings, **options}))
        return made[-1]

    yield build
    for env in made:
        env.close()


def play(env: gymnasium.Env[str, str], row: SWEBenchRow, *commands: str) -> list[Any]:
    env.reset(seed=0, options={"task": task_of(row)})
    return [env.step(write_action(command)) for command in commands]


def test_reference_is_paid(make: Made, small_row: SWEBenchRow) -> None:
    env = make()
    observation, info = env.reset(seed=0, options={"task": task_of(small_row)})
    assert "3 by 5 is 15" in observation and info == {"task": small_row.instance_id, "files": {}}
    acting = reference(task_of(small_row), observation, np.random.default_rng(0))
    answers = [env.step(action) for action in acting]
    _, reward, terminated, truncated, info = answers[-1]
    assert (reward, terminated, truncated) == (1.0, True, False), info
    assert info["reward"] == {"solved": 1.0, "fail_to_pass": 0.0, "pass_to_pass": 0.0}
    assert info["grade"]["fail_to_pass"] == [2, 0] and info["grade"]["resolved"] is True
    assert list(answers[0][4]["files"]) == ["shapes/area.py"]
    assert "+    return width * height\n" in info["patch"]


@pytest.mark.parametrize(
    ("name", "shares"), [("", (0.0, 1.0)), ("WRONG", (0.0, 1.0)), ("PARTIAL", (0.5, 1.0)), ("BREAKING", (1.0, 0.5))]
)
def test_all_else_is_not(
    make: Made, small_row: SWEBenchRow, small: ModuleType, name: str, shares: tuple[float, float]
) -> None:
    env = make(weights={"fail_to_pass": 0.25})
    commands = [*(apply_commands(getattr(small, name)) if name else ()), "submit"]
    _, reward, terminated, _, info = play(env, small_row, *commands)[-1]
    assert terminated and info["reward"]["solved"] == 0 and not info["grade"]["resolved"]
    if name:
        passed = [info["grade"][part] for part in ("fail_to_pass", "pass_to_pass")]
        assert tuple(good / (good + bad) for good, bad in passed) == shares
        assert reward == pytest.approx(0.25 * shares[0])


def test_surroundings(make: Made, small_row: SWEBenchRow) -> None:
    env = make(max_turns=20)
    answers = play(
        env,
        small_row,
        "echo $CONDA_DEFAULT_ENV; python -c 'import sys; print(sys.prefix)'; id -u; pwd",
        "python -m pytest -q tests 2>&1 | tail -3",
        "grep -r test_rectangle / --include=*.py 2>/dev/null | head -3; ls tests",
        "python -c \"import socket; socket.create_connection(('1.1.1.1', 53), 2)\" 2>&1 | tail -1",
        "rm setup.cfg; echo '# x   ' >>shapes/text.py; echo new >new.txt; ln -s new.txt link; echo 1 >debug.log",
        "git mv tools/run.sh tools/go.sh; git commit -q -a -m x; git status --porcelain | head -3",
        "seq 100000",
        "no_such_program",
    )
    texts = [answer[0] for answer in answers]
    assert texts[0].splitlines()[0] == "testbed" and texts[0].splitlines()[2:] == ["65534", "/testbed"]
    assert answers[1][4]["tests"] == {"passed": 2, "total": 2}
    assert (
        texts[2] == "__init__.py\ntest_area.py\ntest_text.py"
        and texts[3] == "OSError: [Errno 101] Network is unreachable"
    )
    files = answers[4][4]["files"]
    assert sorted(files) == ["link", "new.txt", "setup.cfg", "shapes/text.py"] and files["setup.cfg"] is None
    assert sorted(answers[5][4]["files"]) == sorted([*files, "tools/go.sh", "tools/run.sh"])
    assert "bytes left out" in texts[6] and len(texts[6]) < 17_000 and texts[6].endswith("100000")
    assert answers[7][4]["exit_code"] == 127 and "[exit code 127]" in texts[7]


def test_tools(make: Made, small_row: SWEBenchRow) -> None:
    env = make(interface="tools")
    assert '"name":"editor"' in env.get_wrapper_attr("system_prompt")
    protocol = ToolCallProtocol()

    def act(*calls: Call) -> Any:
        return env.step("\n".join(protocol.render(call) for call in calls))

    env.reset(seed=0, options={"task": task_of(small_row)})
    path = "shapes/area.py"
    edits = [("width + height", "width * height"), ("base * height", "base * height / 2")]
    calls = [
        Call(name="editor", arguments={"command": "str_replace", "path": path, "old_str": old, "new_str": new})
        for old, new in edits
    ]
    seen = act(*calls, Call(name="bash", arguments={"command": "git diff --stat"}))
    assert "2 insertions" in seen[0] and seen[4]["exit_code"] == 0
    assert "there is no tool" in act(Call(name="edit", arguments={}))[0]
    assert act(Call(name="submit", arguments={}))[1] == 1.0


def test_budgets(make: Made, small_row: SWEBenchRow) -> None:
    env = make(max_turns=2)
    last = play(env, small_row, "true", "true")[-1]
    assert last[3] and last[4]["truncation"] == "turns" and last[4]["reward"]["solved"] == 0
    env = make(max_tokens=3000)
    last = play(env, small_row, "seq 3000")[-1]
    assert last[3] and last[4]["truncation"] == "tokens" and "the episode ended: tokens" in last[0]
    env = make(max_seconds=0.01)
    last = play(env, small_row, *apply_commands(small_row.patch))[-1]
    assert last[3] and last[4]["truncation"] == "seconds" and last[1] == 1.0  # graded as it stands


def test_a_command_past_its_time(make: Made, small_row: SWEBenchRow) -> None:
    answer = play(make(command_seconds=2.0), small_row, "echo begun; sleep 100")[0]
    assert answer[0].startswith("begun\n[killed") and "2 s" in answer[4]["killed"]


def test_contract(instance: dict[str, Any], tmp_path: Path, gradings: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(instance) + "\n", encoding="utf-8")
    options = {**OPTIONS, "gradings": gradings, "task_options": {"source": str(rows)}, "max_turns": 6}
    check_agent_env("agentgym_rtmc/SWEBench-v0", actions=["```sh\nls\n```", "```sh\necho x >y\n```"], **options)


def test_options_are_checked() -> None:
    for options, told in (
        ({"interface": "mouse"}, "interface"),
        ({"max_seconds": 0}, "max_seconds"),
        ({"weights": {"style": 1.0}}, "weights"),
        ({"container": {"cpu": 1}}, "container.cpu"),
        ({"observation_tokens": 1}, "at least 40"),
    ):
        with pytest.raises(ConfigError, match=told):
            SWEBenchEnv(**options)  # type: ignore[arg-type]
