"""check_signature finds the classic faults, and finds none in our own signatures."""

from __future__ import annotations

import itertools
import random
import time

import pytest

from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.signatures import episode_keys, make_signature, registered_signatures
from agentgym_rtmc.signatures.checks import check_signature
from agentgym_rtmc.tasks import Task

PARAMETERS = {
    "compose": {"parts": ["edits", "test_outcomes"]},
    "restrict": {"of": "operations", "reads": False, "scratch": False},
    "chain": {"levels": ["operations", {"name": "operations", "level": "file"}]},
}
OURS = ["operations", "commands", "edits", "workspace", "test_outcomes", "observation", "tool_state", *PARAMETERS]


class Plain:
    """A sound signature, spoiled by the subclasses."""

    def start(self, opening):
        return ()

    def action_key(self, turn):
        return turn.text[:10]

    def advance(self, state, turn):
        return (len(turn.text),)

    def state_key(self, state):
        return str(state)


class Clock(Plain):
    def state_key(self, state):
        return time.strftime("%H:%M:%S")


class Dice(Plain):
    def action_key(self, turn):
        return str(random.random())


class Identity(Plain):
    def state_key(self, state):
        return repr(object())


class Counting(Plain):
    def __init__(self):
        self.count = itertools.count()

    def action_key(self, turn):
        return str(next(self.count))


class InPlace(Plain):
    def start(self, opening):
        return []

    def advance(self, state, turn):
        state.append(turn.text)
        return state

    def state_key(self, state):
        return str(len(state))


class Temporary(Plain):
    def action_key(self, turn):
        return "cat /tmp/agent-x7f3k2/m.py"


class Long(Plain):
    def action_key(self, turn):
        return turn.text


class Quadratic(Plain):
    def advance(self, state, turn):
        return (*state, turn.text[:200])

    def state_key(self, state):
        return str(len("".join(sorted(state * 3))))


class Raises(Plain):
    def action_key(self, turn):
        return turn.calls[0].name


class NotText(Plain):
    def state_key(self, state):
        return 3


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Clock, "from one moment to the next"),
        (Dice, "between two runs"),
        (Identity, "address of an object"),
        (Counting, "differs between two runs"),
        (InPlace, "advance changed the state"),
        (Temporary, "temporary path"),
        (Long, "digest what is long"),
        (Quadratic, "keep what a key needs"),
        (Raises, "IndexError"),
        (NotText, "not str"),
    ],
)
def test_each_fault_is_found(fault, words):
    faults = check_signature(fault())
    assert faults
    assert any(words in sentence for sentence in faults), faults


def test_a_sound_signature_passes():
    assert check_signature(Plain(), pause=0) == []


@pytest.mark.parametrize("name", OURS)
def test_ours_pass(name):
    assert name in registered_signatures()
    assert check_signature(make_signature(name, **PARAMETERS.get(name, {})), pause=0) == []


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(
    "info", [{"files": "none"}, {"files": None}, {"tests": 3}, {"tests": []}, {"exit_code": "1"}, {"database": [1]}]
)
def test_ours_bear_what_no_environment_should_say(name, info):
    signature = make_signature(name, **PARAMETERS.get(name, {}))
    turn = Turn(text="x", observation="", reward=0.0, info=info)
    opening = Opening(task=Task(id="t"), observation="", info=info)
    episode_keys(signature, Episode(id="e", group="g", opening=opening, turns=(turn, turn)))


def test_a_plain_function_passes():
    from agentgym_rtmc.signatures.base import FunctionSignature

    assert check_signature(FunctionSignature(lambda opening, turns: str(len(turns))), pause=0) == []
