"""Tasks, turns, episodes and groups as values: what they refuse and what they carry."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue, ValidationError

from agentgym_rtmc import Call, Episode, EpisodeGroup, Opening, Task, TaskSet, Turn
from agentgym_rtmc.episodes import group_episodes
from agentgym_rtmc.errors import TaskError

TASK = Task(id="t1", public={"issue": "it breaks"})
OPENING = Opening(task=TASK, observation="hello")


def turn(reward: float = 0.0, **more: object) -> Turn:
    return Turn.model_validate({"text": "ls", "observation": "a", "reward": reward, **more})


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"a": float("nan")}, "nan is not JSON"),
        ({"a": [float("-inf")]}, "-inf is not JSON"),
        ({"a": "\ud800"}, "lone surrogate"),
        ({"\udfff": 1}, "lone surrogate"),
        ({"a": {1, 2}}, "JSON|json"),
        ({"a": object()}, "JSON|json"),
    ],
)
def test_what_json_cannot_carry_is_refused_everywhere(value: dict[str, JsonValue], complaint: str) -> None:
    for make in (
        lambda: turn(info=value),
        lambda: Call(name="x", arguments=value),
        lambda: Task(id="t", public=value),
        lambda: Opening(task=TASK, observation="", info=value),
    ):
        with pytest.raises(ValidationError, match=complaint):
            make()


def test_nesting_has_a_limit() -> None:
    def nest(depth: int) -> dict[str, JsonValue]:
        value: JsonValue = 0
        for _ in range(depth):
            value = {"a": value}
        assert isinstance(value, dict)
        return value

    deepest = turn(info=nest(64))
    assert Turn.model_validate_json(deepest.model_dump_json()) == deepest
    with pytest.raises(ValidationError, match="nested more than 64 deep"):
        turn(info=nest(65))


def test_text_that_is_no_unicode_is_mended_not_lost() -> None:
    mended = Turn(text="a\ud800b", observation="\udfff", reward=0.0)
    assert (mended.text, mended.observation) == ("a\ufffdb", "\ufffd")
    assert Turn.model_validate_json(mended.model_dump_json()) == mended


@given(st.text(st.characters(exclude_categories=())), st.floats(allow_nan=False, allow_infinity=False))
def test_a_turn_survives_its_file_form(text: str, reward: float) -> None:
    value = Turn(text=text, observation=text, reward=reward, token_ids=(1,), logprobs=(reward,))
    assert Turn.model_validate_json(value.model_dump_json()) == value


def test_turns_refuse_contradictions() -> None:
    with pytest.raises(ValidationError, match="not finite"):
        turn(float("nan"))
    with pytest.raises(ValidationError, match="differ in length"):
        turn(token_ids=(1, 2), logprobs=(0.0,))
    with pytest.raises(ValidationError, match="differ in length"):
        turn(logprobs=(0.0,))
    with pytest.raises(ValidationError, match="frozen"):
        turn().text = "other"  # type: ignore[misc]
    with pytest.raises(ValidationError, match="rewards"):
        turn(rewards=1)


def test_an_opening_holds_nothing_private() -> None:
    secret = Task(id="t", public={"a": 1}, private={"answer": "42"})
    with pytest.raises(ValidationError, match=r"pass task\.disclosed\(\)"):
        Opening(task=secret, observation="")
    assert Opening(task=secret.disclosed(), observation="").task.private == {}
    assert "42" not in repr(secret)


def test_flags_exclude_each_other() -> None:
    with pytest.raises(ValidationError, match="not both"):
        Episode(id="e", group="g", opening=OPENING, terminated=True, truncated=True)
    with pytest.raises(ValidationError, match="invalid episode"):
        Episode(id="e", group="g", opening=OPENING, terminated=True, valid=False, error="the sandbox died")
    with pytest.raises(ValidationError, match="without truncated=True"):
        Episode(id="e", group="g", opening=OPENING, truncation="turns")


def test_rewards_add_up_exactly() -> None:
    episode = Episode(id="e", group="g", opening=OPENING, turns=tuple(turn(0.1) for _ in range(10)))
    assert episode.total_reward == 1.0


def test_groups_are_collected_in_order() -> None:
    episodes = [Episode(id=f"e{i}", group=g, opening=OPENING) for i, g in enumerate("bab")]
    groups = group_episodes(episodes)
    assert [(group.id, [e.id for e in group.episodes]) for group in groups] == [("b", ["e0", "e2"]), ("a", ["e1"])]
    assert groups[0].task_id == "t1"
    other = Episode(id="x", group="b", opening=Opening(task=Task(id="t2"), observation=""))
    with pytest.raises(ValidationError, match="mixes tasks"):
        EpisodeGroup(id="b", episodes=(episodes[0], other))
    with pytest.raises(ValidationError, match="at least one"):
        EpisodeGroup(id="b", episodes=())


def test_task_sets() -> None:
    tasks = TaskSet("small", {"train": [Task(id="a"), Task(id="b")], "heldout": [Task(id="c")]})
    assert tasks.splits == {"train": 2, "heldout": 1}
    assert [task.id for task in tasks] == ["a", "b", "c"]
    assert len(tasks) == 3
    assert tasks.task("c").id == "c"
    with pytest.raises(TaskError, match="no split 'held'; did you mean 'heldout'"):
        tasks.split("held")
    with pytest.raises(TaskError, match="no task 'd'; known: a, b, c"):
        tasks.task("d")
    with pytest.raises(TaskError, match=r"'a' occurs twice \(second time in split 'heldout'\)"):
        TaskSet("twice", {"train": [Task(id="a")], "heldout": [Task(id="a")]})


def test_selections_join_splits() -> None:
    one, two = Task(id="a"), Task(id="b")
    tasks = TaskSet("small", {"train": [one], "heldout": [two]}, {"all": [one, two], "first": [one]})
    assert tasks.splits == {"train": 1, "heldout": 1}
    assert tasks.selections == {"all": 2, "first": 1}
    assert tasks.split("all") == (one, two)
    assert len(tasks) == len(list(tasks)) == 2
    with pytest.raises(TaskError, match="no split 'firs'; did you mean 'first'"):
        tasks.split("firs")
    with pytest.raises(TaskError, match="'train' is a split"):
        TaskSet("small", {"train": [one]}, {"train": [one]})
    with pytest.raises(TaskError, match="'b' of selection 'all' is in no split"):
        TaskSet("small", {"train": [one]}, {"all": [two]})


def test_a_broken_row_names_its_place() -> None:
    assert Task.from_json('{"id": "a", "public": {"n": 1}}', "tasks.jsonl:3") == Task(id="a", public={"n": 1})
    with pytest.raises(TaskError, match=r"tasks\.jsonl:3: not a task: id: Field required"):
        Task.from_json("{}", "tasks.jsonl:3")
    with pytest.raises(TaskError, match=r"tasks\.jsonl:4: not a task: the row: Invalid JSON"):
        Task.from_json("{", "tasks.jsonl:4")
