"""The conformance check accepts a good environment and finds each kind of fault."""

import random

import gymnasium
import pytest

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.calls.shell import ShellProtocol
from agentgym_rtmc.environments.base import AgentEnv, Reply
from agentgym_rtmc.environments.checks import MALFORMED, ContractError, check_agent_env
from agentgym_rtmc.tasks import Task

TASKS = [
    Task(id=f"t{n}", public={"n": n}, private={"answer": "the-hidden-answer", "cases": [[n, 12345678]]}) for n in (1, 2)
]


class GoodEnv(AgentEnv):
    """Guess a number."""

    system_prompt = "Guess."

    def __init__(self, render_mode=None):
        super().__init__(TASKS, 4, render_mode=render_mode)
        self.protocol = ShellProtocol()

    def begin(self, task):
        return f"a hint: {self.np_random.integers(100)}", {}

    def act(self, calls: tuple[Call, ...]):
        return Reply("no", terminated=calls[0].arguments["command"] == "end")

    def grade(self):
        return {"solved": 0.0}


ACTIONS = ["```sh\nls\n```", "```sh\nend\n```"]


def test_a_good_environment_passes():
    check_agent_env(GoodEnv(), actions=ACTIONS)


def test_it_passes_by_id_and_through_gymnasiums_wrappers():
    if "tests/Good-v0" not in gymnasium.registry:
        gymnasium.register("tests/Good-v0", entry_point=GoodEnv)
    check_agent_env("tests/Good-v0", actions=ACTIONS)


class RaisesOnAction(GoodEnv):
    def act(self, calls):
        raise ValueError("cannot")


class LeaksInObservation(GoodEnv):
    def act(self, calls):
        return Reply(f"psst: {self.task.private['answer']}")


class LeaksInInfo(GoodEnv):
    def begin(self, task):
        return "start", {"all": task.model_dump()}


class LeaksACase(GoodEnv):
    def act(self, calls):
        return Reply(f"try {self.task.private['cases']}")


class LeaksInPrompt(GoodEnv):
    system_prompt = "It is the-hidden-answer."


class Random(GoodEnv):
    def act(self, calls):
        return Reply(str(random.random()))


class RandomInfo(GoodEnv):
    def act(self, calls):
        return Reply("no", info={"address": random.random()})


class NotJson(GoodEnv):
    def act(self, calls):
        return Reply("no", info={"seen": {1, 2}})


class Tuples(GoodEnv):
    def act(self, calls):
        return Reply("no", info={"seen": (1, 2)})


class NotANumber(GoodEnv):
    def act(self, calls):
        return Reply("no", info={"seen": float("nan")})


class LoneSurrogate(GoodEnv):
    def act(self, calls):
        return Reply("no", info={"path": "\udcff"})


class BothFlags(GoodEnv):
    def step(self, action):
        observation, reward, _, _, info = super().step(action)
        return observation, reward, True, True, info


class NeverEnds(GoodEnv):
    def step(self, action):
        self._turns = 0
        return super().step(action)


class GoesOnAfterTheEnd(GoodEnv):
    def step(self, action):
        self._over = False
        return super().step(action)


class UnnamedLimit(GoodEnv):
    def _answer(self, *arguments):
        answer = super()._answer(*arguments)
        answer[4].pop("truncation", None)
        return answer


class InfiniteReward(GoodEnv):
    def act(self, calls):
        return Reply("no", reward={"x": float("inf")})


class NumpyFlags(GoodEnv):
    def step(self, action):
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, int(terminated), truncated, info


class NarrowSpace(GoodEnv):
    def __init__(self):
        super().__init__()
        self.action_space = gymnasium.spaces.Text(100)


class NoProtocol(GoodEnv):
    def __init__(self):
        super().__init__()
        self.protocol = None


class EagerProtocol(GoodEnv):
    class Eager(ShellProtocol):
        def parse(self, text):
            return (Call(name="shell", arguments={"command": text}),)

    def __init__(self):
        super().__init__()
        self.protocol = self.Eager()


class ObservationNotText(GoodEnv):
    def act(self, calls):
        return Reply(b"bytes")


class IgnoresGivenTask(GoodEnv):
    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed)
        return (f"other task: {info['task']}" if options else observation), info


@pytest.mark.parametrize(
    ("kind", "complaint"),
    [
        (RaisesOnAction, "must never raise"),
        (LeaksInObservation, "shows private task data"),
        (LeaksInInfo, "shows private task data"),
        (LeaksACase, "shows private task data"),
        (LeaksInPrompt, "shows private task data"),
        (Random, "different observations"),
        (RandomInfo, "different observations"),
        (NotJson, "not JSON"),
        (Tuples, "lists, not tuples"),
        (NotANumber, "not JSON"),
        (LoneSurrogate, "not JSON"),
        (BothFlags, "terminated and truncated"),
        (NeverEnds, "turn limit"),
        (GoesOnAfterTheEnd, "ResetNeeded"),
        (UnnamedLimit, "not named"),
        (InfiniteReward, "finite"),
        (NumpyFlags, "plain bools"),
        (NarrowSpace, "action_space must hold any text"),
        (NoProtocol, "protocol must have"),
        (EagerProtocol, "accepted an empty text"),
        (ObservationNotText, "not a text"),
        (IgnoresGivenTask, "began differently"),
    ],
)
def test_each_fault_is_found_and_named(kind, complaint):
    with pytest.raises(ContractError, match=complaint):
        check_agent_env(kind(), actions=ACTIONS[:1], gymnasium_check=False)


def test_there_are_thirty_malformed_actions():
    assert len(set(MALFORMED)) >= 30
