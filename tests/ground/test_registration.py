"""Registering and finding environments, and following lazy references."""

import sys
from pathlib import Path

import gymnasium
import pytest

from agentgym_rtmc import Task, TaskSet, find_env, load_task_set, register_env, registered_envs
from agentgym_rtmc.errors import DependencyError, RegistrationError, nearest
from agentgym_rtmc.registration import load

MODULES = Path(__file__).parent / "modules"


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registrations of a test end with it, in our table and in Gymnasium's."""
    monkeypatch.setattr("agentgym_rtmc.registration._REGISTRY", registered_envs())
    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.envs.registration.registry))


def two_tasks(prefix: str = "t") -> TaskSet:
    return TaskSet("two", {"train": [Task(id=f"{prefix}1")], "heldout": [Task(id=f"{prefix}2")]})


def no_tasks() -> list[Task]:
    return []


HERE = __name__


def test_an_environment_is_registered_and_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(MODULES)
    monkeypatch.delitem(sys.modules, "counting", raising=False)
    entry = find_env("counting:test/Counting-v0")
    assert (entry.id, entry.entry_point) == ("test/Counting-v0", "counting:CountingEnv")
    assert find_env("Counting-v0") is find_env("test/Counting-v0") is entry
    env = gymnasium.make(entry.id, max_turns=1)
    observation, _ = env.reset(seed=1, options={"task": Task(id="x", public={"ask": "say 5"}, private={"number": 5})})
    assert observation == "say 5"
    _, reward, terminated, truncated, info = env.step("```sh\necho 5\n```")
    assert (reward, terminated, truncated, info["truncation"]) == (1.0, False, True, "turns")


def test_the_same_registration_twice_is_one() -> None:
    first = register_env("test/Same-v0", "m:E", summary="s")
    assert register_env("test/Same-v0", "m:E", summary="s") == first
    with pytest.raises(RegistrationError, match="'test/Same-v0' is already registered as m:E"):
        register_env("test/Same-v0", "m:Other", summary="s")


def test_unknown_environments_name_the_nearest() -> None:
    with pytest.raises(RegistrationError, match=r"did you mean 'agentgym_rtmc/CodeRepair-v0'.*Register your own"):
        find_env("agentgym_rtmc/CodeRepare-v0")
    register_env("one/Same-v0", "m:E")
    register_env("two/Same-v0", "m:E")
    with pytest.raises(RegistrationError, match="no environment 'Same-v0'"):
        find_env("Same-v0")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"entry_point": "m.E"}, "'m.E' is not of the form 'module:name'"),
        ({"reference": "m:a:b"}, "'m:a:b' is not of the form"),
        ({"task_sets": {"all": "m"}}, "'m' is not of the form"),
        ({"id": "not an id"}, "'not an id' cannot be registered with Gymnasium"),
    ],
)
def test_wrong_registrations(arguments: dict[str, object], complaint: str) -> None:
    with pytest.raises(RegistrationError, match=complaint):
        register_env(**{"id": "test/Wrong-v0", "entry_point": "m:E", **arguments})  # type: ignore[arg-type]
    assert "test/Wrong-v0" not in registered_envs()
    assert "test/Wrong-v0" not in gymnasium.envs.registration.registry


def test_lazy_references(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load("agentgym_rtmc.tasks:Task") is Task
    for reference, complaint in (
        ("agentgym_rtmc.tasks:Tusk", "module 'agentgym_rtmc.tasks' has no 'Tusk'; did you mean 'Task'?"),
        ("no_such_module:x", "cannot import 'no_such_module'; is it installed and on the path?"),
        ("agentgym_rtmc.no_such:x", "cannot import 'agentgym_rtmc.no_such'"),
        ("tasks", "'tasks' is not of the form 'module:name'"),
        (":x", "':x' is not of the form"),
    ):
        with pytest.raises(RegistrationError) as caught:
            load(reference)
        assert complaint in str(caught.value)
    monkeypatch.syspath_prepend(MODULES)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        DependencyError, match=r"needs torch, which is not installed: pip install 'agentgym-rtmc\[train\]'"
    ):
        load("needs_torch:run")


def test_task_sets_are_loaded_by_name_reference_or_default() -> None:
    register_env("test/Sets-v0", "m:E", task_sets={"two": f"{HERE}:two_tasks", "none": f"{HERE}:no_tasks"})
    assert [task.id for task in load_task_set("test/Sets-v0")] == ["t1", "t2"]
    assert [task.id for task in load_task_set("test/Sets-v0", "two", prefix="x")] == ["x1", "x2"]
    assert len(load_task_set("test/Sets-v0", f"{HERE}:two_tasks")) == 2
    with pytest.raises(RegistrationError, match=r"has no task set 'tow'; did you mean 'two'\?"):
        load_task_set("test/Sets-v0", "tow")
    with pytest.raises(RegistrationError, match="none: the loader returned list, not a TaskSet"):
        load_task_set("test/Sets-v0", "none")
    with pytest.raises(RegistrationError, match="the task set 'two' has no option 'seed'"):
        load_task_set("test/Sets-v0", "two", seed=3)
    register_env("test/Bare-v0", "m:E")
    with pytest.raises(RegistrationError, match="has no task sets; pass one as 'module:function'"):
        load_task_set("test/Bare-v0")


def test_nearest_names() -> None:
    assert nearest("rtmcc", ["grpo", "rtmc"]) == "; did you mean 'rtmc'?"
    assert nearest("zzz", ["grpo", "rtmc"]) == "; known: grpo, rtmc"
    assert nearest("RTMC", ["grpo", "rtmc"]) == "; did you mean 'rtmc'?"
    assert nearest("zzz", []) == "; none are known"
