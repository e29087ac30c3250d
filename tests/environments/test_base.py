"""The base environment: spaces, clocks, rewards, and what an agent's action may and may not do."""

import gymnasium
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.calls.shell import ShellProtocol
from agentgym_rtmc.environments.base import AgentEnv, Reply, UnicodeText
from agentgym_rtmc.errors import ConfigError, GradingError, TaskError
from agentgym_rtmc.tasks import Task, TaskSet

TASKS = TaskSet("echo", {"all": [Task(id=f"t{n}", public={"n": n}, private={"secret": "hush-hush"}) for n in range(5)]})


class EchoEnv(AgentEnv):
    """Repeats commands; `end` ends; solved when "yes" was the last word."""

    system_prompt = "Say yes."

    def __init__(self, **options):
        super().__init__(options.pop("tasks", TASKS), options.pop("max_turns", 3), **options)
        self.protocol = ShellProtocol()
        self.graded = 0
        self.last = ""

    def begin(self, task):
        self.last = ""
        return f"task {task.public['n']}, draw {self.np_random.integers(1000)}", {}

    def act(self, calls: tuple[Call, ...]):
        command = str(calls[0].arguments["command"])
        if command == "end":
            return Reply("bye", terminated=True)
        self.last = command
        return Reply(command, reward={"words": 0.25})

    def grade(self):
        self.graded += 1
        if self.last == "broken grader":
            raise GradingError("the grader is broken")
        return {"solved": float(self.last == "yes")}


def say(command):
    return f"```sh\n{command}\n```"


def test_rewards_by_part_add_up_and_the_end_is_graded_once():
    env = EchoEnv()
    env.reset(seed=1)
    assert env.step(say("yes"))[1] == 0.25
    _, reward, terminated, truncated, info = env.step(say("end"))
    assert (reward, terminated, truncated, env.graded) == (1.0, True, False, 1)
    assert info["reward"] == {"solved": 1.0}
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset"):
        env.step(say("yes"))


def test_out_of_turns_truncates_and_grades_what_stands():
    env = EchoEnv(max_turns=2)
    env.reset(seed=1)
    env.step(say("yes"))
    _, reward, terminated, truncated, info = env.step("not a block")
    assert (reward, terminated, truncated) == (1.0, False, True)
    assert info["truncation"] == "turns" and info["turns_left"] == 0 and "parse_error" in info


def test_the_end_wins_over_the_last_turn():
    env = EchoEnv(max_turns=1)
    env.reset(seed=1)
    assert env.step(say("end"))[2:4] == (True, False)


def test_finish_grades_and_names_its_reason():
    env = EchoEnv()
    env.reset(seed=1)
    env.step(say("yes"))
    _, reward, terminated, truncated, info = env.finish("tokens")
    assert (reward, terminated, truncated, info["truncation"]) == (1.0, False, True, "tokens")
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.finish("tokens")


def test_turn_cost_is_taken_from_unreadable_turns_too():
    env = EchoEnv(turn_cost=0.1)
    env.reset(seed=1)
    assert env.step("nonsense")[1] == pytest.approx(-0.1)
    _, reward, *_, info = env.step(say("end"))
    assert reward == pytest.approx(-0.1) and info["reward"] == {"turns": -0.1, "solved": 0.0}


def test_a_failing_grader_ends_the_episode():
    env = EchoEnv()
    env.reset(seed=1)
    env.step(say("broken grader"))
    with pytest.raises(GradingError):
        env.step(say("end"))
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(say("end"))
    assert env.reset(seed=1)[0].startswith("task")


@pytest.mark.parametrize("action", [None, 3, b"bytes", ["list"], object()])
def test_an_action_that_is_no_text_becomes_an_observation(action):
    env = EchoEnv()
    env.reset(seed=1)
    observation, *_, info = env.step(action)
    assert type(action).__name__ in observation and "parse_error" in info


def test_tasks_are_drawn_by_the_seed_or_given():
    env = EchoEnv()
    drawn = {env.reset(seed=seed)[1]["task"] for seed in range(40)}
    assert drawn == {"t0", "t1", "t2", "t3", "t4"}
    assert env.reset(seed=7) == EchoEnv().reset(seed=7)
    assert env.reset(options={"task": TASKS.task("t3")})[1]["task"] == "t3"
    assert env.reset(options={"task": {"id": "own", "public": {"n": 9}}})[0].startswith("task 9")
    with pytest.raises(TaskError, match="not a task"):
        env.reset(options={"task": {"public": {}}})
    with pytest.raises(TaskError, match="has no tasks"):
        EchoEnv(tasks=[]).reset(seed=1)


def test_tasks_are_loaded_when_first_needed():
    loaded = []

    def load():
        loaded.append(1)
        return TASKS.split("all")

    env = EchoEnv(tasks=load)
    env.reset(options={"task": TASKS.task("t1")})
    assert not loaded
    env.reset(seed=1)
    env.reset(seed=2)
    assert loaded == [1]


def test_a_failed_reset_leaves_no_episode():
    env = EchoEnv()
    env.reset(seed=1)
    with pytest.raises(KeyError):
        env.reset(options={"task": Task(id="without-n")})
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(say("yes"))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"max_turns": 0}, "max_turns"),
        ({"turn_cost": -1.0}, "turn_cost"),
        ({"turn_cost": float("nan")}, "turn_cost"),
        ({"render_mode": "anso"}, "did you mean 'ansi'"),
    ],
)
def test_impossible_options_are_named(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        EchoEnv(**options)


def test_render_shows_the_last_observation():
    env = EchoEnv(render_mode="ansi")
    env.reset(seed=1)
    env.step(say("hello"))
    assert env.render() == "hello"
    assert EchoEnv().render() is None


@given(st.text())
def test_unicode_text_holds_every_text(text):
    space = UnicodeText()
    assert text in space
    assert space.from_jsonable(space.to_jsonable([text])) == [text]


def test_unicode_text_is_a_space_of_short_samples():
    space = UnicodeText(max_length=5, seed=3)
    samples = [space.sample() for _ in range(200)]
    assert all(0 < len(sample) <= 5 and sample in space for sample in samples)
    assert len(set(samples)) > 100
    assert "a" * 6 not in space and 5 not in space
    assert space == UnicodeText(5) != UnicodeText(6)
    assert UnicodeText(5, seed=3).sample() == samples[0]
