"""The edits signature: the state is what the files are."""

from __future__ import annotations

from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.signatures import episode_keys, make_signature
from agentgym_rtmc.tasks import Task


def states(signature, *infos: dict) -> tuple[str, ...]:
    """State keys before each turn and after the last."""
    turns = tuple(Turn(text="x", observation="", reward=0.0, info=info) for info in (*infos, {}))
    opening = Opening(task=Task(id="t"), observation="")
    return episode_keys(signature, Episode(id="e", group="g", opening=opening, turns=turns)).states


def test_a_reverted_edit_meets_the_start_again():
    keys = states(make_signature("edits"), {"files": {"m.py": "a1"}}, {"files": {}}, {"files": {"m.py": "a1"}})
    assert keys[0] == keys[2] == "start"
    assert keys[1] == keys[3] != "start"


def test_content_not_history_counts():
    signature = make_signature("edits")
    direct = states(signature, {"files": {"m.py": "b", "t.py": None}})
    wandering = states(signature, {"files": {"t.py": None}}, {"files": {"t.py": None, "m.py": "b"}})
    assert direct[-1] == wandering[-1]
    assert states(signature, {"files": {"m.py": "b"}})[-1] != direct[-1]


def test_turns_without_files_keep_the_state():
    keys = states(make_signature("edits"), {"files": {"m.py": "a"}}, {}, {"tests": {"failed": 1}})
    assert keys[1] == keys[2] == keys[3]


def test_scratch_files_stand_apart():
    plain, with_scratch = make_signature("edits"), make_signature("edits", scratch=True)
    info = {"files": {"reproduce_bug.py": "a", "pkg/__pycache__/m.cpython-311.pyc": "b"}}
    assert states(plain, info)[-1] == "start"
    assert states(with_scratch, info)[-1] != "start"


def test_workspace_adds_the_last_outcome():
    signature = make_signature("workspace")
    keys = states(signature, {"tests": {"failed": 1}}, {"files": {"m.py": "a"}}, {"tests": {"failed": 0}, "files": {}})
    assert keys[1].startswith("start/")
    assert len(set(keys)) == 4
    assert keys[1].rpartition("/")[2] == keys[2].rpartition("/")[2] != keys[3].rpartition("/")[2]
