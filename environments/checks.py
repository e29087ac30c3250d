"""`check_agent_env`: does an environment keep the contract that rollouts and training rely on?

For authors of environments, in their tests:

    from agentgym_rtmc.environments.checks import check_agent_env
    check_agent_env("my_package/MyTask-v0")

Invariant: every complaint names the rule, what was seen, and what to do. A clean return means all rules were tried.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.utils.env_checker import check_env

from agentgym_rtmc.errors import AgentGymError, ProtocolError
from agentgym_rtmc.tasks import Task

MALFORMED: tuple[str, ...] = (
    "",
    " \n\t ",
    "no action at all",
    "```",
    "```sh",
    "```sh\n```",
    "```sh\n\n\n```",
    "```sh\nls\n```\n```sh\nls\n```",
    "```python\nprint(1)\n```",
    "``````",
    "<tool_call>",
    "<tool_call>{</tool_call>",
    '<tool_call>{"name": 3}</tool_call>',
    '<tool_call>{"name": "no_such_tool", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "x", "arguments": "y"}</tool_call>',
    '{"name": "x"}',
    "[" * 5000,
    "{" * 5000,
    "\0",
    "```sh\necho \0\n```",
    "\ud800",
    "```sh\necho \udcff\n```",
    "\u202e\u200b\ufeff",
    "é→字" * 50,
    "<think>",
    "<think>never closed ```sh\nls\n```",
    "\r\n```sh\r\nls\r\n```\r\n",
    "\x1b[31m",
    "a" * 100_000,
    "```sh\n" + "x" * 100_000 + "\n```",
    "%s%n{}{0}${x}`id`",
    "</s><|im_end|><|endoftext|>",
)
"""Texts that are no action, or an odd one: none may raise."""

_SHORTEST_SECRET = 8
_MAX_TURNS = 1000


class ContractError(AgentGymError, AssertionError):
    """An environment breaks the contract. The message names the rule and what to do."""


def check_agent_env(
    env: gymnasium.Env[str, str] | str,
    *,
    actions: Sequence[str] = (),
    seed: int = 0,
    gymnasium_check: bool = True,
    **options: Any,
) -> None:
    """Check an environment, or make it by id (`options` go to `gymnasium.make`) and check it.

    `actions` are sensible actions of the environment, to be tried beside malformed ones. The environment must draw a
    task of its own when `reset` is given none. Raises ContractError for the first rule that is broken; Gymnasium's own
    `check_env` runs too, unless `gymnasium_check` is off.
    """
    if isinstance(env, str):
        made: gymnasium.Env[str, str] = gymnasium.make(env, **options)
        try:
            check_agent_env(made, actions=actions, seed=seed, gymnasium_check=gymnasium_check)
        finally:
            made.close()
        return
    check_attributes(env)
    first = _play(env, seed, actions)
    _demand(
        first == _play(env, seed, actions),
        "equal seeds and actions gave different observations, rewards or info; take times, pids, paths and set orders "
        "out of them, and draw randomness from self.np_random only",
    )
    for start in range(0, len(MALFORMED), 4):
        _play(env, seed, MALFORMED[start : start + 4])
    _check_end(env, seed)
    _check_given_task(env, seed)
    if gymnasium_check:
        check_env(env.unwrapped, skip_render_check=True)


def check_attributes(env: gymnasium.Env[str, str]) -> None:
    """Check the spaces and what rollouts read from an environment: system_prompt, protocol, finish."""
    bare = env.unwrapped
    for name in ("observation_space", "action_space"):
        space = getattr(bare, name, None)
        _demand(
            isinstance(space, gymnasium.spaces.Space) and "line\nzeile é字" in space,
            f"{name} must hold any text, newlines and Unicode too; use agentgym_rtmc.environments.UnicodeText",
        )
    prompt = getattr(bare, "system_prompt", None)
    _demand(isinstance(prompt, str), f"system_prompt must be a string (empty for none), not {type(prompt).__name__}")
    protocol = getattr(bare, "protocol", None)
    for name in ("parse", "render", "instructions"):
        _demand(callable(getattr(protocol, name, None)), f"protocol must have a method {name}; see calls.TextProtocol")
    _demand(callable(getattr(bare, "finish", None)), "finish(reason) is missing; it grades an episode cut from outside")
    try:
        protocol.parse("")  # type: ignore[union-attr]
    except ProtocolError:
        pass
    else:
        raise ContractError("protocol.parse accepted an empty text; it must raise ProtocolError")


def _play(env: gymnasium.Env[str, str], seed: int, actions: Sequence[str]) -> list[Any]:
    """Run an episode over some actions and check each answer; returns what was seen, as JSON text."""
    observation, info = env.reset(seed=seed)
    task = getattr(env.unwrapped, "task", None)
    secrets = _secrets(task) if isinstance(task, Task) else []
    prompt = getattr(env.unwrapped, "system_prompt", "")
    _check_seen("the first observation", env, observation, info, [*secrets], extra=prompt)
    seen: list[Any] = [observation, _as_json("info of reset", info)]
    for number, action in enumerate(actions):
        where = f"the answer to action {number} ({action[:40]!r})"
        try:
            answer = env.step(action)
        except AgentGymError as error:
            what = f"{type(error).__name__}: {error}"
            raise ContractError(f"{where} raised {what}; answer with an observation") from error
        except Exception as error:
            raise ContractError(
                f"{where} raised {type(error).__name__}: {error}; an agent's action must never raise: answer with an "
                "observation that says what was wrong"
            ) from error
        _demand(len(answer) == 5, f"{where} has {len(answer)} parts, not 5")
        observation, reward, terminated, truncated, info = answer
        finite = isinstance(reward, float | int) and math.isfinite(reward)
        _demand(finite, f"{where}: reward {reward!r} is not a finite number")
        _demand(
            isinstance(terminated, bool) and isinstance(truncated, bool),
            f"{where}: terminated and truncated must be plain bools",
        )
        _demand(not (terminated and truncated), f"{where} is terminated and truncated; the task's own end goes first")
        _check_seen(where, env, observation, info, secrets)
        seen.append([observation, reward, terminated, truncated, _as_json(where, info)])
        if terminated or truncated:
            break
    return seen


def _check_end(env: gymnasium.Env[str, str], seed: int) -> None:
    """An agent that does nothing useful is truncated in the end; then, and after `finish`, a reset is needed."""
    env.reset(seed=seed)
    for _ in range(_MAX_TURNS):
        _, _, terminated, truncated, info = env.step("nothing useful")
        if terminated or truncated:
            break
    else:
        raise ContractError(f"an agent that never acts was not stopped after {_MAX_TURNS} turns; give it a turn limit")
    _demand(
        terminated or isinstance(info.get("truncation"), str),
        "the limit that ended the episode is not named in info['truncation']",
    )
    _demand_reset_needed(env, "after the end of an episode")
    env.reset(seed=seed)
    answer = env.unwrapped.finish("tokens")  # type: ignore[attr-defined]
    _demand(
        len(answer) == 5 and answer[3] is True and answer[2] is False,
        "finish(reason) must answer like step, with truncated=True",
    )
    _demand(answer[4].get("truncation") == "tokens", "finish(reason) must name its reason in info['truncation']")
    _demand_reset_needed(env, "after finish()")


def _demand_reset_needed(env: gymnasium.Env[str, str], when: str) -> None:
    try:
        env.step("one more")
    except gymnasium.error.ResetNeeded:
        return
    raise ContractError(f"step() {when} must raise gymnasium.error.ResetNeeded")


def _check_given_task(env: gymnasium.Env[str, str], seed: int) -> None:
    """A task handed in through the options, as an object or as JSON, is the one that is played."""
    first, info = env.reset(seed=seed)
    task = getattr(env.unwrapped, "task", None)
    if not isinstance(task, Task):
        return
    for form in (task, task.model_dump(mode="json")):
        again, again_info = env.reset(seed=seed, options={"task": form})
        _demand(
            again == first and again_info == info,
            "reset(options={'task': task}) began differently from the same task drawn by reset",
        )
    _demand(info.get("task") == task.id, "info['task'] of reset must be the task's id")


# -- small rules ------------------------------------------------------------------------------------------------------


def _check_seen(
    where: str,
    env: gymnasium.Env[str, str],
    observation: object,
    info: object,
    secrets: Sequence[str],
    extra: str = "",
) -> None:
    _demand(
        isinstance(observation, str) and observation in env.observation_space,
        f"{where}: the observation is not a text of the observation space",
    )
    _demand(isinstance(info, Mapping), f"{where}: info is a {type(info).__name__}, not a dict")
    text = f"{extra}\n{observation}\n{_as_json(where, info)}"
    for secret in secrets:
        _demand(
            secret not in text and json.dumps(secret)[1:-1] not in text,
            f"{where}: prompt, observation or info shows private task data ({secret[:60]!r}); keep Task.private out",
        )


def _as_json(where: str, value: object) -> str:
    try:
        text = json.dumps(value, allow_nan=False, sort_keys=True)
        text.encode()
        json.dumps(value, ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise ContractError(f"{where}: not JSON that every file can hold: {error}; use plain values in info") from error
    _demand(json.loads(text) == value, f"{where}: info does not survive JSON; use lists, not tuples, and string keys")
    return text


def _secrets(task: Task) -> list[str]:
    """Texts of the private part that are long enough to be telling and that the public part does not hold."""
    public = json.dumps(task.public)
    found = {text for text in _texts(task.private) if len(text) >= _SHORTEST_SECRET}
    return sorted(text for text in found if json.dumps(text)[1:-1] not in public and text not in public)


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        # A whole row, such as one hidden case, counts too.
        yield json.dumps(value)
        for item in value:
            yield from _texts(item)


def _demand(holds: bool, complaint: str) -> None:
    if not holds:
        raise ContractError(complaint)
