"""The measures on episodes whose values are known, the reader of step rows, and the room's commands."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.errors import EpisodeFileError
from agentgym_rtmc.importers.files import load_episodes
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


def write_rows(path: Path) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for _ in range(3):
            file.write(json.dumps(ROW) + "\n")
    return path


def test_files_are_told_by_their_first_line(tmp_path):
    from agentgym_rtmc.episode_file import EpisodeWriter

    packed = write_rows(tmp_path / "rows.jsonl.gz")
    own = tmp_path / "episodes.jsonl"
    with EpisodeWriter(own) as writer:
        writer.append([episode("1", "g", turn("a"))])
    assert [e.group for e in load_episodes([packed, own])] == ["owner__repo-1"] * 3 + ["g"]
    broken = tmp_path / "broken.jsonl"
    broken.write_text(json.dumps(ROW) + "\n{\n")
    with pytest.raises(EpisodeFileError, match=r"broken\.jsonl:2"):
        load_episodes([broken])
    with pytest.raises(EpisodeFileError, match="cannot be read"):
        load_episodes([tmp_path / "missing.jsonl"])


def test_the_list_names_every_signature():
    result = CliRunner().invoke(app, ["--json"])
    listed = {row["name"]: row["summary"] for row in json.loads(result.stdout)}
    assert set(listed) == set(registered_signatures())
    assert all(listed.values())


def test_measuring_from_the_command_line(tmp_path):
    packed, plot = write_rows(tmp_path / "rows.jsonl.gz"), tmp_path / "plots" / "s.png"
    arguments = ["measure", str(packed), "-s", "commands", "-s", "operations:file", "--plot", str(plot)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert "not counted" in result.stdout
    assert plot.stat().st_size > 1000
    rows = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert {row["signature"] for row in rows} == {"raw", "commands", "operations:file"}
    assert all(row["company"] == 1.0 for row in rows)


@pytest.mark.full
def test_canonical_keys_meet_more_often_than_raw_text_on_real_episodes():
    if not ROWS.exists():
        pytest.skip(f"no {ROWS}; set AGENTGYM_RTMC_SHARED_DATA")
    signatures = {
        "commands": make_signature("commands"),
        "file": make_signature("operations", level="file"),
        "bucket": make_signature("operations", level="bucket"),
    }
    episodes = load_episodes([ROWS])
    company = {r.signature: r.company for r in measure(signatures, episodes) if r.kind == "action"}
    assert company["commands"] >= 1.35 * company["raw"], company
    assert company["file"] >= 3 * company["raw"], company
    assert company["commands"] < company["bucket"] < company["file"]
