"""Checks a signature for the classic faults, as `check_env` does an environment.

Invariants: the signature is only used through its four methods; every fault is one sentence that names the turn and
what to do. An empty list means that nothing was found, not that nothing is wrong.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.errors import SignatureError
from agentgym_rtmc.signatures.base import EpisodeKeys, Signature, episode_keys
from agentgym_rtmc.tasks import Task

MAX_KEY = 4000
"""Longer keys (in characters) are called a fault: digest them."""
_IDENTITY = re.compile(r" object at 0x[0-9a-f]+|<function |<bound method ")
_TEMPORARY = re.compile(r"/(?:tmp|var/tmp|var/folders|dev/shm)/\S*[A-Za-z0-9_]{6,}")


def check_signature(signature: Signature[Any], episodes: Sequence[Episode] = (), pause: float = 1.05) -> list[str]:
    """Return the faults found, as sentences; an empty list if there are none.

    Looks for: exceptions on odd turns, keys that are not strings or too long, keys that differ between two runs or
    between an episode and its copy (time, randomness, object identity), states changed in place, action keys that
    depend on more than the turn, state keys that depend on what comes later, temporary paths in keys, and a cost that
    grows faster than the episode. `pause` is how many seconds pass between two runs, so that a clock shows.
    """
    faults: list[str] = []
    for episode in (*odd_episodes(), *episodes):
        try:
            faults += _faults(signature, episode)
        except SignatureError as error:
            faults.append(str(error))
    if not faults:
        given = [*episodes, *odd_episodes()][:20]
        before = [episode_keys(signature, episode) for episode in given]
        time.sleep(pause)
        for episode, keys in zip(given, before, strict=True):
            faults += _differences(keys, episode_keys(signature, episode), episode, "from one moment to the next")
    if not faults:
        faults += _slow(signature, episodes)
    return list(dict.fromkeys(faults))


def _faults(signature: Signature[Any], episode: Episode) -> list[str]:
    keys = episode_keys(signature, episode)
    faults = _differences(keys, episode_keys(signature, episode), episode, "between two runs")
    copied = Episode.model_validate_json(episode.model_dump_json())
    faults += _differences(
        keys, episode_keys(signature, copied), episode, "between an episode and its copy read back from JSON"
    )
    for kind, values in (("state", keys.states), ("action", keys.actions)):
        for index, key in enumerate(values):
            where = f"the {kind} key of turn {index} of {episode.id!r}"
            if len(key) > MAX_KEY:
                faults.append(f"{where} has {len(key)} characters: digest what is long")
            if _IDENTITY.search(key):
                faults.append(f"{where} holds the address of an object: {key[:80]!r}; name its content instead")
            shown = _TEMPORARY.search(key)
            if shown:
                faults.append(f"{where} holds a temporary path: {shown.group()[:80]!r}; normalise it")
    half = len(episode.turns) // 2
    if half:
        start = episode.model_copy(update={"turns": episode.turns[: half + 1]})
        cut = episode_keys(signature, start)
        if cut.states != keys.states[: half + 1]:
            faults.append(f"the state keys of {episode.id!r} change when later turns are taken away")
    for index in reversed(range(len(episode.turns))):
        if signature.action_key(episode.turns[index]) != keys.actions[index]:
            faults.append(f"the action key of turn {index} of {episode.id!r} depends on the turns asked for before")
            break
    return faults + _changed_in_place(signature, episode)


def _changed_in_place(signature: Signature[Any], episode: Episode) -> list[str]:
    state = signature.start(episode.opening)
    for index, turn in enumerate(episode.turns):
        before = signature.state_key(state)
        following = signature.advance(state, turn)
        if signature.state_key(state) != before:
            return [f"advance changed the state it was given at turn {index} of {episode.id!r}: return a new one"]
        state = following
    return []


def _differences(left: EpisodeKeys, right: EpisodeKeys, episode: Episode, when: str) -> list[str]:
    for kind, ours, theirs in (("state", left.states, right.states), ("action", left.actions, right.actions)):
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if one != other:
                return [
                    f"the {kind} key of turn {index} of {episode.id!r} differs {when} ({one[:40]!r}, {other[:40]!r}): "
                    "use nothing but the opening and the turns"
                ]
    return []


def _slow(signature: Signature[Any], episodes: Sequence[Episode]) -> list[str]:
    """Compare the cost of a turn in a short and in a long episode."""
    pattern = max((*episodes, *odd_episodes()), key=lambda episode: len(episode.turns))
    # Turns that all differ, so that neither a cache nor a set of few members hides the growth.
    turns = [_varied(pattern.turns[i % len(pattern.turns)], i) for i in range(1000)]
    seconds = []
    for count in (100, 1000):
        long = pattern.model_copy(update={"turns": tuple(turns[:count])})
        episode_keys(signature, long)
        best = min(_timed(signature, long) for _ in range(3000 // count))  # a short one is soon disturbed
        seconds.append(best / count)
    if seconds[1] > 3 * seconds[0] and seconds[1] > 5e-6:
        return [
            f"a turn costs {seconds[1] / seconds[0]:.0f} times as much in an episode of 1000 turns as in one of 100: "
            "keep what a key needs in the state instead of going through the history again"
        ]
    return []


def _varied(turn: Turn, index: int) -> Turn:
    info = copy.deepcopy(turn.info)
    text, observation = f"{turn.text[-200:]} {index}", f"{turn.observation[:400]} {index}"
    return turn.model_copy(update={"info": info, "text": text, "observation": observation})


def _timed(signature: Signature[Any], episode: Episode) -> float:
    start = time.thread_time()
    episode_keys(signature, episode)
    return time.thread_time() - start


def odd_episodes() -> Iterator[Episode]:
    """Episodes of odd turns: no calls, empty and huge texts, strange characters, strange arguments and info."""
    calls: list[tuple[Call, ...]] = [
        (),
        (Call(name="shell", arguments={"command": ""}),),
        (Call(name="shell", arguments={"command": "cat 'x"}),),
        (Call(name="shell", arguments={"command": "echo \x00\x1b[31m é 字 \n" * 50}),),
        (Call(name="shell", arguments={"command": None}),),
        (Call(name="shell", arguments={}),),
        (Call(name="shell", arguments={"command": ["ls", 1]}),),
        (Call(name="", arguments={"path": 3, "view_range": ["a", None]}),),
        (Call(name="view", arguments={"path": "", "view_range": [-1, 10**30]}),),
        (Call(name="replace_in_file", arguments={"file_path": "../../x", "from_line": "x"}),),
        (Call(name="tool", arguments={"deep": {"a": [{"b": [None, True, 1e300, "é" * 5000]}]}}),),
        (Call(name="a", arguments={"x": 1}), Call(name="b", arguments={"x": 2})),
    ]
    infos: list[dict[str, Any]] = [
        {}, {"files": {}}, {"files": {"m.py": None, "": "x"}}, {"files": {"é/ü.py": "0"}}, {"tests": {}},
        {"ledger": None}, {"tests": {"failed": ["t"], "passed": []}}, {"tests": {"failed": 0, "passed": 3}},
        {"exit_code": 1}, {"turns_left": 0}, {"database": "d"}, {"parse_error": "x"},
    ]  # fmt: skip
    opening = Opening(task=Task(id="odd"), observation="")
    turns = tuple(
        Turn(
            text="" if index % 2 else "x" * 20_000,
            calls=made,
            observation=("", "a\tb\r\n\x1b[0m 0x7f00aa11 \u2028", "=" * 5000)[index % 3],
            reward=float(index),
            finish_reason=("stop", "length", "abort")[index % 3],
            info=info,
        )
        for index, (made, info) in enumerate(zip(calls, infos, strict=True))
    )
    yield Episode(id="odd turns", group="odd", opening=opening, turns=turns)
    yield Episode(id="no turns", group="odd", opening=opening)
