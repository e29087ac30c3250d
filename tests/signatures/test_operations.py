"""The operations signature on episodes of the code-repair kind."""

from __future__ import annotations

import itertools

import pytest

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.errors import SignatureError
from agentgym_rtmc.signatures import episode_keys, make_signature
from agentgym_rtmc.tasks import Task


def shell_episode(*commands: str, info: dict | None = None) -> Episode:
    turns = tuple(
        Turn(text=c, calls=(Call(name="shell", arguments={"command": c}),), observation="", reward=0.0, info=info or {})
        for c in commands
    )
    return Episode(id="e", group="g", opening=Opening(task=Task(id="t"), observation=""), turns=turns)


def last_state(signature, *commands: str) -> str:
    return episode_keys(signature, shell_episode(*commands, "submit")).states[-1]


FIX = "sed -zi 's|a|b|2' m.py"


@pytest.mark.parametrize("level", ["exact", "bucket", "file"])
def test_a_revert_and_an_edit_meet_the_same_edit_from_the_start(level):
    signature = make_signature("operations", level=level)
    wandered = ("cat m.py", "sed -zi 's|x|y|1' m.py && python t.py", f"git checkout -q . && {FIX} && python t.py")
    straight = ("cat ./m.py", f"{FIX}; python3 t.py")
    assert last_state(signature, *wandered) == last_state(signature, *straight)
    assert last_state(signature, *wandered[:2], "git checkout -- m.py") == last_state(signature, "cat m.py")


def test_exact_edits_are_named_by_what_they_do():
    signature = make_signature("operations")
    other = last_state(signature, "sed -zi 's|a|c|2' m.py")
    assert last_state(signature, FIX) != other
    assert last_state(signature, FIX) == last_state(signature, "sed -z -i 's/a/b/2' /testbed/m.py")
    coarse = make_signature("operations", content_hashes=False)
    assert last_state(coarse, FIX) == last_state(coarse, "sed -zi 's|a|c|2' m.py")


def test_the_record_does_not_depend_on_order():
    commands = ["cat m.py", "grep -n foo m.py", "sed -n 1,5p t.py", FIX]
    keys = {last_state(make_signature("operations"), *order) for order in itertools.permutations(commands)}
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("level", "same"),
    [("exact", False), ("bucket", True), ("file", True)],
)
def test_levels_from_fine_to_coarse(level, same):
    signature = make_signature("operations", level=level)
    keys = [
        episode_keys(signature, shell_episode(command)).actions[0]
        for command in ("sed -n 10,20p m.py", "sed -n 30,40p m.py")
    ]
    assert (keys[0] == keys[1]) is same
    far = episode_keys(signature, shell_episode("sed -n 510,520p m.py")).actions[0]
    assert (far == keys[0]) is (level == "file")


def test_action_keys_read_like_the_table():
    keys = episode_keys(make_signature("operations", level="bucket"), shell_episode("cat m.py", "sed -n 150,250p m.py"))
    assert keys.actions == ("view:f@m.py", "view:1-2@m.py")
    file_level = make_signature("operations", level="file", outcome=True)
    turn = Turn(text="x", calls=(Call(name="shell", arguments={"command": FIX}),), observation="", reward=0.0)
    assert file_level.action_key(turn) == "modify@m.py:ok"
    failed = turn.model_copy(update={"observation": "sed: can't read m.py: No such file or directory"})
    assert file_level.action_key(failed) == "modify@m.py:error"
    assert file_level.action_key(turn.model_copy(update={"calls": ()})) == "unparsed"


def test_structured_calls_meet_their_shell_twins():
    signature = make_signature("operations")
    call = Call(name="str_replace_editor", arguments={"command": "view", "path": "/testbed/m.py", "view_range": [5, 9]})
    turn = Turn(text="x", calls=(call,), observation="", reward=0.0)
    assert signature.action_key(turn) == episode_keys(signature, shell_episode("sed -n '5,9p' m.py")).actions[0]


def test_test_counts_are_part_of_the_state():
    signature = make_signature("operations")
    keys = [
        episode_keys(signature, shell_episode("python t.py", "x", info={"tests": tests})).states[1]
        for tests in ({"failed": 1, "passed": 2}, {"failed": ["a"], "passed": ["b", "c"]}, {"failed": 0, "passed": 3})
    ]
    assert keys[0] == keys[1] != keys[2]


def test_an_unknown_level_is_refused():
    with pytest.raises(SignatureError, match="'coarse'"):
        make_signature("operations", level="coarse")


def test_a_long_episode_costs_linear_time():
    import time

    signature = make_signature("operations")
    seconds = []
    for turns in (500, 2000):
        episode = shell_episode(*(f"sed -n {i},{i + 3}p pkg/f{i}.py" for i in range(turns)))
        episode_keys(signature, episode)  # fills the parser's memory, so that the fold itself is timed
        start = time.process_time()
        episode_keys(signature, episode)
        seconds.append((time.process_time() - start) / turns)
    assert seconds[1] < 3 * seconds[0]
