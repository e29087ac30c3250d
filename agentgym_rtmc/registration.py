"""Registering and finding environments.

Invariants: registration imports nothing - every value is a lazy `module:name` string - and happens when
`agentgym_rtmc` is imported. The trainer knows environments only through this file and `gymnasium.make`.
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import gymnasium
import numpy as np

from agentgym_rtmc.errors import ConfigError, RegistrationError, nearest
from agentgym_rtmc.extras import missing_extra
from agentgym_rtmc.tasks import Task, TaskSet

Player = Callable[[Task, str, np.random.Generator], Generator[str, str, None]]
"""A scripted agent: called with (task with its private part, first observation, rng), yields actions and is sent the
observation that follows each."""


@dataclass(frozen=True)
class EnvRegistration:
    """What is known of an environment beside Gymnasium's own spec. All values are `module:name` strings.

    task_sets: name -> function returning a TaskSet (keyword options allowed); the first is the default.
    reference / demonstrator: a `Player` that solves the task / that solves it imperfectly (warm starts).
    reporter: called with (groups, tasks, folder, agent, options of the environment), writes the official report of
    an evaluation and returns its files. prepare: called with a task whose image is there; makes what
    episodes of it need, and returns a word on it (for `prefetch`). default_signature: registered name or `module:name`.
    """

    id: str
    entry_point: str
    summary: str
    task_sets: Mapping[str, str] = field(default_factory=dict)
    reference: str | None = None
    demonstrator: str | None = None
    reporter: str | None = None
    default_signature: str = "operations"
    prepare: str | None = None


_REGISTRY: dict[str, EnvRegistration] = {}


def register_env(
    id: str,
    entry_point: str,
    *,
    task_sets: Mapping[str, str] | None = None,
    summary: str = "",
    reference: str | None = None,
    demonstrator: str | None = None,
    reporter: str | None = None,
    prepare: str | None = None,
    default_signature: str = "operations",
    kwargs: Mapping[str, Any] | None = None,
) -> EnvRegistration:
    """Register an agent environment with Gymnasium and with the commands and the trainer of this project.

    `id` is a Gymnasium id (`namespace/Name-v0`), `entry_point` the lazy `module:Class`, `kwargs` its defaults.
    Raises RegistrationError for a second registration of the same id that says something else.
    """
    entry = EnvRegistration(
        id, entry_point, summary, dict(task_sets or {}), reference, demonstrator, reporter, default_signature, prepare
    )
    if id in _REGISTRY:
        if _REGISTRY[id] != entry:
            raise RegistrationError(f"environment {id!r} is already registered as {_REGISTRY[id].entry_point}")
        return entry
    for what in (entry_point, reference, demonstrator, reporter, prepare, *entry.task_sets.values()):
        if what is not None and what.count(":") != 1:
            raise RegistrationError(f"{id}: {what!r} is not of the form 'module:name'")
    try:
        gymnasium.register(id=id, entry_point=entry_point, kwargs=dict(kwargs or {}))
    except gymnasium.error.Error as error:
        raise RegistrationError(f"{id!r} cannot be registered with Gymnasium: {error}") from error
    _REGISTRY[id] = entry
    return entry


def make_env(entry: EnvRegistration, options: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """Make an environment without Gymnasium's wrappers of checks. Raises ConfigError for options it does not take."""
    check_options(entry, options)
    return gymnasium.make(entry.id, disable_env_checker=True, **options)


def check_options(entry: EnvRegistration, options: Mapping[str, Any]) -> None:
    """Raise ConfigError for options that an environment does not take, or lacks."""
    given: dict[str, Any] = {**gymnasium.spec(entry.id).kwargs, **options}
    if problem := wrong_option(load(entry.entry_point), given):
        raise ConfigError(f"{entry.id} {problem} (env.options, or --option key=value)")


def registered_envs() -> dict[str, EnvRegistration]:
    """All registrations by id."""
    return dict(_REGISTRY)


def find_env(id: str) -> EnvRegistration:
    """Return the registration of `id`, which may carry Gymnasium's `module:` prefix (the module is then imported)."""
    module, _, name = id.rpartition(":")
    if module:
        load(f"{module}:__name__")
    if name in _REGISTRY:
        return _REGISTRY[name]
    # A short name is enough where it is unambiguous: "CodeRepair-v0".
    matches = [known for known in _REGISTRY if known.rpartition("/")[2] == name]
    if len(matches) == 1:
        return _REGISTRY[matches[0]]
    raise RegistrationError(
        f"no environment {name!r} is registered{nearest(name, _REGISTRY)}. "
        "Register your own with agentgym_rtmc.register_env, or name its module: 'my_module:my/Env-v0'"
    )


def load(reference: str) -> Any:
    """Import `module:name` and return the object.

    Raises RegistrationError naming what is missing, or DependencyError where an extra of this package brings it.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise RegistrationError(f"{reference!r} is not of the form 'module:name'")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if (missing := missing_extra(error)) is not None:
            raise missing from error
        raise RegistrationError(
            f"{reference}: cannot import {error.name!r}; is it installed and on the path?"
        ) from error
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        known = [name for name in vars(module) if not name.startswith("_")]
        raise RegistrationError(
            f"{reference}: module {module_name!r} has no {attribute!r}{nearest(attribute, known)}"
        ) from error


def wrong_option(function: Callable[..., object], options: Mapping[str, Any]) -> str:
    """Say what keeps `function` from being called with these options, "" for nothing.

    >>> wrong_option(lambda *, turns: None, {"turn": 1})
    "has no option 'turn'; did you mean 'turns'?"
    >>> wrong_option(lambda *, turns: None, {})
    "needs the option 'turns'"
    """
    parameters = inspect.signature(function).parameters.values()
    named = {one.name: one for one in parameters if one.kind in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD)}
    takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters)
    for name in options:
        if name not in named and not takes_all:
            return f"has no option {name!r}{nearest(name, named)}"
    for name, one in named.items():
        if one.default is one.empty and name not in options:
            return f"needs the option {name!r}"
    return ""


def load_task_set(env_id: str, name: str | None = None, **options: Any) -> TaskSet:
    """Load a task set of an environment: a registered name, a `module:function`, or None for the default."""
    entry = find_env(env_id)
    if name is None:
        if not entry.task_sets:
            raise RegistrationError(f"{entry.id} has no task sets; pass one as 'module:function'")
        name = next(iter(entry.task_sets))
    if name not in entry.task_sets and ":" not in name:
        raise RegistrationError(f"{entry.id} has no task set {name!r}{nearest(name, entry.task_sets)}")
    loader = load(entry.task_sets.get(name, name))
    if problem := wrong_option(loader, options):
        raise RegistrationError(f"the task set {name!r} {problem} (env.task_options, or --task-option key=value)")
    loaded = loader(**options)
    if not isinstance(loaded, TaskSet):
        raise RegistrationError(f"{name}: the loader returned {type(loaded).__name__}, not a TaskSet")
    return loaded


def split_loader(
    env_id: str, task_set: str | None, split: str, options: Mapping[str, Any] | None
) -> Callable[[], Sequence[Task]]:
    """Return a function that gives the tasks of a split; all environments of a process share what it loads.

    `options` are the task set's and have to be what JSON can say.
    """
    as_json = json.dumps(dict(options or {}), sort_keys=True)
    return lambda: _load_once(env_id, task_set, as_json).split(split)


@lru_cache(maxsize=32)
def _load_once(env_id: str, task_set: str | None, options: str) -> TaskSet:
    return load_task_set(env_id, task_set, **json.loads(options))
