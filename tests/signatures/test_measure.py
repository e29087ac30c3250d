"""The measures on episodes whose values are known, the reader of step rows, and the room's commands."""

from __future__ import annotations

import gzip
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.importers.recorded import read_recorded
from agentgym_rtmc.importers.step_rows import episode_of_row
from agentgym_rtmc.signatures import make_signature, registered_signatures
from agentgym_rtmc.signatures.commands import app
from agentgym_rtmc.signatures.measure import in_groups, is_constant, measure
from agentgym_rtmc.tasks import Task

SHARED = Path(os.environ.get("AGENTGYM_RTMC_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
ROWS = SHARED / "trajectories" / "groups.jsonl.gz"


class Text:
    """Actions are the turn's text, the state the last one."""

    def start(self, opening):
        return "start"

    def action_key(self, turn):
        return turn.text

    def advance(self, state, turn):
        return turn.text

    def state_key(self, state):
        return state


def turn(text: str, observation: str = "", reward: float = 0.0) -> Turn:
    return Turn(text=text, calls=(Call(name="do", arguments={"x": text}),), observation=observation, reward=reward)


def episode(name: str, group: str, *turns: Turn, valid: bool = True) -> Episode:
    opening = Opening(task=Task(id=group), observation="")
    return Episode(id=name, group=group, opening=opening, turns=turns, valid=valid)


def rows_of(episodes, **options):
    rows = measure({"text": Text()}, episodes, **options)
    return {row.kind: row for row in rows if row.signature == "text"}


def test_company_counts_other_episodes_of_the_group_only():
    episodes = [
        episode("1", "g", turn("a"), turn("a"), turn("b")),
        episode("2", "g", turn("a"), turn("c")),
        episode("3", "h", turn("b"), turn("c")),  # alone in its group: not counted
        episode("4", "g", turn("b"), valid=False),
    ]
    assert [e.id for e in in_groups(episodes)] == ["1", "2"]
    rows = rows_of(episodes)
    assert rows["action"].turns == 5
    assert rows["action"].company == pytest.approx(3 / 5)
    assert rows["action"].distinct == 3
    # States: start a a | start a
    assert rows["state"].company == 1.0
    assert rows["action"].by_turn == (1.0, 0.5, 0.0)


def test_aliasing_is_nothing_for_keys_that_tell_and_one_for_keys_that_do_not():
    rng = random.Random(0)
    telling, mixing = [], []
    for number in range(60):
        good = number % 2
        telling.append(episode(str(number), "g", turn(f"way {good}", f"saw {good}", float(good))))
        mixing.append(episode(str(number), "g", turn(f"way {rng.randrange(2)}", f"saw {good}", float(good))))
    clear, mixed = rows_of(telling)["action"], rows_of(mixing)["action"]
    assert clear.alias_outcome == pytest.approx(0.0)
    assert clear.alias_next == pytest.approx(0.0)
    assert mixed.alias_outcome == pytest.approx(1.0, abs=0.12)
    assert mixed.alias_next == pytest.approx(1.0, abs=0.12)


@pytest.mark.parametrize(
    ("call", "constant"),
    [
        (None, True),
        (Call(name="submit"), True),
        (Call(name="git_diff"), True),
        (Call(name="finish", arguments={"result": "x"}), True),
        (Call(name="shell", arguments={"command": "git status --short"}), True),
        (Call(name="shell", arguments={"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}), True),
        (Call(name="shell", arguments={"command": "ls"}), False),
        (Call(name="shell", arguments={"command": "echo done"}), False),
    ],
)
def test_constant_turns(call, constant):
    made = Turn(text="x", calls=(call,) if call else (), observation="", reward=0.0)
    assert is_constant(made) is constant
    if call and call.arguments.get("command") == "echo done":
        assert is_constant(made, effects_only=True)


STEPS = [
    {"tool": "bash", "cmd": "cat m.py", "obs": "x", "rc": 0},
    {
        "tool": "show_file",
        "cmd": None,
        "args": {"file_path": "m.py", "": "", "start_line": "1", "end_line": "5"},
        "obs": "y",
    },
    {"tool": "run_bash_cmd", "cmd": None, "args": {"command": "ls"}, "obs": "z"},
    {"tool": "<parse_error>", "cmd": None, "obs": "Warning: no valid call"},
    {
        "tool": "<parse_error>",
        "cmd": None,
        "obs": "run_bash_cmd(args={'command': \"ls -la\"})\n----TOOL RESULT BEGIN----\nm.py",
    },
    {"tool": "str_replace_editor", "cmd": "str_replace_editor view /testbed/m.py  --view_range 5 9", "obs": ""},
    {"tool": "finish", "args": {"result": "done"}, "obs": ""},
]
ROW = {"instance_id": "owner__repo-1", "agent": "a", "model": "m", "resolved": True, "steps": STEPS}


def test_step_rows_become_episodes():
    made = episode_of_row(ROW)
    calls = [t.calls[0] if t.calls else None for t in made.turns]
    assert calls[0] == Call(name="shell", arguments={"command": "cat m.py"})
    assert calls[1] == Call(name="show_file", arguments={"file_path": "m.py", "start_line": "1", "end_line": "5"})
    assert calls[2] == Call(name="shell", arguments={"command": "ls"})
    assert calls[3] is None
    assert calls[4] == Call(name="shell", arguments={"command": "ls -la"})
    assert calls[5].arguments == {"command": "view", "path": "/testbed/m.py", "view_range": ["5", "9"]}
    assert made.group == "owner__repo-1"
    assert made.total_reward == 1.0
    assert made.turns[0].info == {"exit_code": 0}


def write_rows(path: Path, *more: str) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in [*[json.dumps(ROW)] * 3, *more])
    return path


def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command as a user starts it."""
    words = [sys.executable, "-m", "agentgym_rtmc", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd=cwd)


def test_the_list_names_every_signature():
    result = CliRunner().invoke(app, ["--json"])
    listed = {row["name"]: row["summary"] for row in json.loads(result.stdout)}
    assert set(listed) == set(registered_signatures())
    assert all(listed.values())


def test_measuring_from_the_command_line(tmp_path):
    packed, plot = write_rows(tmp_path / "rows.jsonl.gz"), tmp_path / "plots" / "s.png"
    arguments = ["signatures", "measure", packed, "-s", "commands", "-s", "operations:file", "--plot", plot]
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert "15 of 21 turns of 3 episodes in 1 groups" in done.stdout
    assert "not counted" in done.stdout and "by turn" in done.stdout
    assert plot.read_bytes().startswith(b"\x89PNG")
    rows = json.loads(run(*arguments, "--json").stdout)
    assert {row["signature"] for row in rows} == {"raw", "commands", "operations:file"}
    assert all(row["company"] == 1.0 and row["others"] == 2.0 for row in rows)
    assert all(row["by_turn"][0] == 1.0 for row in rows)


def test_rows_that_cannot_be_read_are_located_and_the_rest_goes_on(tmp_path):
    packed = write_rows(tmp_path / "rows.jsonl.gz", "{", "[]")
    for command in (["signatures", "measure", "--no-plot", "-s", "commands"], ["audit"]):
        done = run(*command, packed, tmp_path / "absent")
        assert done.returncode == 0, done.stderr
        assert "3 episodes" in done.stdout
        assert "not read: 3 files or rows" in done.stderr
        assert "rows.jsonl.gz:4: " in done.stderr and "absent: No such file" in done.stderr


def test_trajectories_of_other_agents_are_measured_and_audited(tmp_path):
    steps = [{"action": "git log --all", "observation": "x", "response": "look"}, {"action": "submit"}]
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "proj__x-1.traj").write_text(json.dumps({"trajectory": steps}))
    files = sorted(tmp_path.glob("*/*.traj"))
    assert "1 of 2 turns of 2 episodes" not in (done := run("signatures", "measure", "--no-plot", *files)).stdout
    assert "2 of 4 turns of 2 episodes in 1 groups" in done.stdout, done.stderr
    assert run("audit", *files).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["{file}", "-s", "comands"], "did you mean 'commands'"),
        (["{file}", "-s", "operations:coarse"], "'coarse' is none of 'exact', 'bucket', 'file'"),
        (["{file}", "--plot", "picture.xyz"], "the plot's format is told by its ending"),
        (["{alone}"], "none of 1 episodes shares its task with another"),
        (["{empty}"], "the file is empty"),
        (["{absent}"], "No such file or directory"),
        ([], "Missing argument"),
        (["{file}", "--signatures", "commands"], "No such option"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path, arguments, told):
    places = {
        "file": write_rows(tmp_path / "rows.jsonl.gz"),
        "alone": tmp_path / "alone.jsonl",
        "empty": tmp_path / "empty.jsonl",
        "absent": tmp_path / "absent.jsonl",
    }
    places["alone"].write_text(json.dumps(ROW) + "\n")
    places["empty"].touch()
    done = run("signatures", "measure", *(word.format(**places) for word in arguments), cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""


def test_without_matplotlib_it_says_what_to_do(tmp_path):
    (tmp_path / "matplotlib.py").write_text("raise ModuleNotFoundError('No module', name='matplotlib')\n")
    packed = write_rows(tmp_path / "rows.jsonl.gz")
    words = [sys.executable, "-m", "agentgym_rtmc", "signatures", "measure", str(packed)]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert "pip install 'agentgym-rtmc[train]'" in done.stderr
    done = subprocess.run(
        [*words, "--no-plot"], capture_output=True, text=True, check=False, env=environment, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


def test_outcomes_nobody_recorded_are_not_taken_for_failures():
    good = [episode(str(n), "g", turn("a", reward=1.0)) for n in range(4)]
    bad = [episode(f"b{n}", "g", turn("b")) for n in range(4)]
    unknown = [episode(f"u{n}", "g", turn("a")) for n in range(4)]
    assert rows_of(good + bad)["action"].alias_outcome == pytest.approx(0.0)
    assert rows_of(good + bad + unknown)["action"].alias_outcome > 0.1
    ids = [one.id for one in unknown]
    assert rows_of(good + bad + unknown, unlabelled=ids)["action"].alias_outcome == pytest.approx(0.0)


def test_submissions_are_constant_whatever_is_handed_in_with_them():
    for command, constant in [
        ("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && git add -A && git diff --cached", True),
        ("git status --porcelain; git --no-pager diff", True),
        ("git diff -- m.py", False),
        ("git status; ls", False),
    ]:
        made = Turn(text="x", calls=(Call(name="shell", arguments={"command": command}),), observation="", reward=0.0)
        assert is_constant(made) is constant, command


@pytest.mark.full
def test_canonical_keys_meet_more_often_than_raw_text_on_real_episodes():
    if not ROWS.exists():
        pytest.skip(f"no {ROWS}; set AGENTGYM_RTMC_SHARED_DATA")
    signatures = {
        "commands": make_signature("commands"),
        "file": make_signature("operations", level="file"),
        "bucket": make_signature("operations", level="bucket"),
    }
    recorded = read_recorded([ROWS], keep_unlabelled=True)
    company = {
        r.signature: r.company
        for r in measure(signatures, recorded.episodes, unlabelled=recorded.unlabelled)
        if r.kind == "action"
    }
    assert company["commands"] >= 1.35 * company["raw"], company
    assert company["file"] >= 3 * company["raw"], company
    assert company["commands"] < company["bucket"] < company["file"]
