"""Recorded episodes of every known format, from small files; what cannot be read is located, the rest goes on."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from agentgym_rtmc.episode_file import EpisodeWriter
from agentgym_rtmc.errors import EpisodeFileError
from agentgym_rtmc.importers.recorded import read_outcomes, read_recorded


def chat(task, commands, reward, **more):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Mend {task}."}]
    for command in commands:
        call = {"function": {"name": "bash", "arguments": json.dumps({"command": command})}}
        messages += [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": f"ran {command}"}]
    return {"task_id": task, "messages": messages, "reward": reward, **more}


SWE_AGENT = {
    "trajectory": [
        {"action": "ls\n", "observation": "a.py", "response": "I look.\n```\nls\n```"},
        {"action": "submit", "observation": "", "thought": "Done."},
    ],
    "info": {"exit_status": "submitted"},
}

MINI = {
    "trajectory_format": "mini-swe-agent-1",
    "info": {"exit_status": "Submitted"},
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Mend it."}]},
        {"role": "assistant", "content": "I look.\n```bash\nls\n```"},
        {"role": "user", "content": "<returncode>0</returncode>\na.py"},
        {"role": "assistant", "content": "", "extra": {"actions": [{"command": "cat a.py"}]}},
        {"role": "tool", "content": "x = 1"},
    ],
}


def test_trajectories_of_other_agents(tmp_path):
    labelled = SWE_AGENT | {"info": {"resolved": True}}
    (tmp_path / "proj__x-1.traj").write_text(json.dumps(labelled, indent=2))
    (tmp_path / "proj__x-2.traj.json").write_text(json.dumps(MINI, indent=1))
    (tmp_path / "proj__x-3.traj").write_text('{"trajectory": [')
    (tmp_path / "proj__x-4.traj").write_text(json.dumps({"trajectory": []}))
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"resolved_ids": ["proj__x-9"], "unresolved_ids": ["proj__x-2"]}))
    paths = [*sorted(tmp_path.glob("*.traj*")), tmp_path / "absent.traj"]
    found = read_recorded(paths, outcomes=read_outcomes(report))
    assert [(e.group, len(e.turns), e.total_reward) for e in found.episodes] == [
        ("proj__x-1", 2, 1.0),
        ("proj__x-2", 2, 0.0),
    ]
    swe, mini = found.episodes
    assert [call.arguments["command"] for turn in swe.turns for call in turn.calls] == ["ls", "submit"]
    assert [call.arguments["command"] for turn in mini.turns for call in turn.calls] == ["ls", "cat a.py"]
    assert mini.turns[0].observation.endswith("a.py") and mini.opening.observation == "Mend it."
    assert [Path(problem.where).name for problem in found.problems] == [
        "proj__x-3.traj",
        "proj__x-4.traj",
        "absent.traj",
    ]
    assert read_recorded(paths[:2]).unlabelled == [str(paths[1])]


def test_rewards_for_each_turn_and_packed_files(tmp_path):
    with gzip.open(tmp_path / "chats.jsonl.gz", "wt") as file:
        file.write(json.dumps(chat("t", ["ls", "cat a"], None, rewards=[0.25, 0.5])) + "\n")
        file.write(json.dumps(chat("t", ["ls", "cat a"], None, rewards=[0.25])) + "\n")
    found = read_recorded([tmp_path / "chats.jsonl.gz"], format="chat")
    assert [turn.reward for turn in found.episodes[0].turns] == [0.25, 0.5]
    assert "1 rewards for 2 assistant messages" in found.problems[0].reason


ROW = {
    "instance_id": "proj__x-1",
    "agent": "a",
    "steps": [{"tool": "bash", "cmd": "ls", "obs": "a.py"}, {"tool": "submit", "args": {}, "obs": ""}],
}


def lines(path, rows):
    path.write_bytes(b"".join((row if isinstance(row, bytes) else json.dumps(row).encode()) + b"\n" for row in rows))
    return path


def test_step_rows(tmp_path):
    rows = [ROW | {"resolved": value} for value in (True, False, None, "yes")] + [ROW | {"steps": [], "resolved": True}]
    found = read_recorded([lines(tmp_path / "rows.jsonl", rows)])
    assert [(e.group, e.total_reward, len(e.turns)) for e in found.episodes] == [
        ("proj__x-1", 1.0, 2),
        ("proj__x-1", 0.0, 2),
    ]
    assert [Path(where).name for where in found.unlabelled] == ["rows.jsonl:3"]
    assert [(Path(p.where).name, p.reason) for p in found.problems] == [
        ("rows.jsonl:4", "resolved is 'yes', not true, false or null"),
        ("rows.jsonl:5", "no turns of an agent in it"),
    ]


def test_unlabelled_episodes_are_kept_where_asked_for(tmp_path):
    rows = [ROW | {"resolved": None}, chat("t", ["ls"], None), ROW | {"resolved": True}]
    path = lines(tmp_path / "rows.jsonl", rows)
    found = read_recorded([path], keep_unlabelled=True)
    assert [(e.id, e.total_reward) for e in found.episodes] == [(f"{path}:{n}", float(n == 3)) for n in (1, 2, 3)]
    assert found.unlabelled == [f"{path}:1", f"{path}:2"] == read_recorded([path]).unlabelled


def test_a_file_may_begin_with_anything(tmp_path):
    rows = [{"note": "made by hand"}, b"\xff\xfe", b"", [1], b'{"cut', chat("t", ["ls"], 1), ROW | {"resolved": False}]
    found = read_recorded([lines(tmp_path / "mixed.jsonl", rows)])
    assert [(e.group, e.total_reward) for e in found.episodes] == [("t", 1.0), ("proj__x-1", 0.0)]
    assert [problem.where.rpartition(":")[2] for problem in found.problems] == ["1", "2", "4", "5"]
    assert "none of the known formats" in found.problems[0].reason


@pytest.mark.parametrize("name", ["t.json", "t.traj", "t.jsonl", "t"])
def test_whether_a_file_holds_one_document_is_told_from_its_content(tmp_path, name):
    swe, mini = SWE_AGENT | {"reward": 0.5}, MINI | {"reward": 1}
    assert [e.total_reward for e in read_recorded([lines(tmp_path / name, [swe, mini])]).episodes] == [0.5, 1.0]
    assert [e.total_reward for e in read_recorded([lines(tmp_path / name, [mini])]).episodes] == [1.0]


def test_packed_and_indented_files(tmp_path):
    (tmp_path / "a.b.traj.json.gz").write_bytes(gzip.compress(json.dumps(MINI | {"reward": 1}, indent=2).encode()))
    (tmp_path / "a.b.other").write_text(json.dumps(SWE_AGENT | {"reward": 0}, indent=2))
    (one,) = read_recorded([tmp_path / "a.b.traj.json.gz"]).episodes
    (other,) = read_recorded([tmp_path / "a.b.other"], format="swe-agent").episodes
    assert (one.group, other.group) == ("a.b", "a.b.other"), "dots belong to the id of a task"


def test_our_own_episodes_packed_or_not(tmp_path):
    episodes = read_recorded(
        [lines(tmp_path / "chats.jsonl", [chat("t", ["ls"], 1), chat("t", ["cat a"], 0)])]
    ).episodes
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer:
        writer.append(episodes)
    data = (tmp_path / "episodes.jsonl").read_bytes()
    (tmp_path / "packed").write_bytes(gzip.compress(data))
    (tmp_path / "cut").write_bytes(gzip.compress(data)[:-20])
    for name in ("episodes.jsonl", "packed"):
        assert read_recorded([tmp_path / name]).episodes == episodes
    (problem,) = read_recorded([tmp_path / "cut"]).problems
    assert "cut off or damaged" in problem.reason


def test_what_was_read_before_a_file_breaks_is_kept(tmp_path):
    rows = [chat(f"t{n}", [f"echo {n * 7919 % 1009}"], n % 2) for n in range(2000)]
    whole = gzip.compress(lines(tmp_path / "rows", rows).read_bytes())
    for name, data in (("cut.gz", whole[: len(whole) // 2]), ("broken.gz", whole[:-3000] + b"x" * 3000)):
        (tmp_path / name).write_bytes(data)
        found = read_recorded([tmp_path / name])
        assert 500 < len(found.episodes) < 2000
        assert "cut off or damaged" in found.problems[-1].reason


def test_files_that_hold_nothing(tmp_path):
    (tmp_path / "empty").touch()
    (tmp_path / "blank.traj").write_text("\n\n")
    (tmp_path / "folder").mkdir()
    found = read_recorded([tmp_path / name for name in ("empty", "blank.traj", "folder", "absent")])
    reasons = ["the file is empty", "the file is empty", "Is a directory", "No such file or directory"]
    assert not found.episodes and [problem.reason for problem in found.problems] == reasons


def test_chats_without_a_task_are_grouped_by_their_prompt(tmp_path):
    long = "Read the instructions carefully. " * 20
    rows = [{k: v for k, v in chat(name, ["ls"], 1).items() if k != "task_id"} | {"id": n} for n, name in
            enumerate(["a", "b", "a"])]  # fmt: skip
    for row in rows:
        row["messages"][1]["content"] = long + row["messages"][1]["content"]
    groups = [episode.group for episode in read_recorded([lines(tmp_path / "rows.jsonl", rows)]).episodes]
    assert groups[0] == groups[2] != groups[1] and len(groups[0]) < 200


def test_a_reward_is_a_number_or_absent(tmp_path):
    rows = [chat("t", ["ls"], value) for value in ("0.5", True, None, [1], 2)] + [chat("t", ["ls"], None, score=0.25)]
    found = read_recorded([lines(tmp_path / "rows.jsonl", rows)])
    assert [episode.total_reward for episode in found.episodes] == [1.0, 2.0, 0.25]
    assert [problem.reason for problem in found.problems] == [
        "reward '0.5' is not a finite number",
        "reward [1] is not a finite number",
    ]
    assert len(found.unlabelled) == 1


def test_runs_of_one_task_in_several_folders_are_told_apart_by_their_paths(tmp_path):
    paths = [tmp_path / run / "proj__x-1.traj" for run in "abc"]
    for path in paths:
        path.parent.mkdir()
        path.write_text(json.dumps(SWE_AGENT, indent=1))
    outcomes = {str(paths[0]): 1.0, str(paths[1]): 0.5, "proj__x-1": 0.0}
    episodes = read_recorded(paths, outcomes=outcomes).episodes
    assert [(e.group, e.total_reward) for e in episodes] == [("proj__x-1", r) for r in (1.0, 0.5, 0.0)]


def test_only_known_formats_can_be_named():
    with pytest.raises(EpisodeFileError, match="did you mean 'chat'"):
        read_recorded([], format="chats")


def test_outcomes_are_read_from_an_object_or_a_report(tmp_path):
    path = tmp_path / "outcomes.json"
    path.write_text('{"a": 1, "b": false, "c": 0.5, "d": null}')
    assert read_outcomes(path) == {"a": 1.0, "b": 0.0, "c": 0.5}
    path.write_text("[]")
    with pytest.raises(EpisodeFileError, match="not an object of outcomes"):
        read_outcomes(path)
