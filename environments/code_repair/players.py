"""Scripted agents for CodeRepair: one that knows the repair, and one that searches for it and often fails.

Invariant: both are functions of (task, observations, rng). Actions are in the environment's own protocol.
"""

from __future__ import annotations

import re
from collections.abc import Generator

import numpy as np

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.calls.shell import ShellProtocol
from agentgym_rtmc.environments.code_repair.mutations import OPERATORS
from agentgym_rtmc.environments.code_repair.repairs import (
    difference,
    edit_command,
    find_repairs,
    rewrite_command,
    sed_script,
)
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.tasks import Task

SUBMIT = "submit"
TEST, SCORE = "python t.py", "python t.py -q"
"""Run the visible tests: with the first failing call, or only to see how many pass."""
LONGEST_SCRIPT = 160
"""Repairs that a sed script of so many characters cannot make are made by writing the program anew."""
_OUTCOME = re.compile(r"^\d+/\d+ (?:PASS|FAIL)", re.MULTILINE)
_PROTOCOL = ShellProtocol()
# Roughly how common each kind of bug is among the tasks, in percent; a kind with many places gives little to each.
_WEIGHTS = dict.fromkeys(OPERATORS, 2.0) | {
    "wrong_variable": 16.0,
    "compare": 14.0,
    "arithmetic": 13.0,
    "off_by_one": 13.0,
    "wrong_return": 11.0,
    "wrong_constant": 7.0,
    "wrong_index": 6.0,
    "swapped_arguments": 4.0,
    "boolean": 3.0,
    "wrong_call": 3.0,
}


def write_action(command: str) -> str:
    """Return a command as the text of an action."""
    return _PROTOCOL.render(Call(name="shell", arguments={"command": command}))


def true_repair(task: Task, unique: bool = False) -> str:
    """Return the sed script that restores the original. Raises TaskError for a task without one."""
    source, original = task.public.get("source"), task.private.get("original")
    if not isinstance(source, str) or not isinstance(original, str):
        raise TaskError(f"task {task.id!r} has no public 'source' or private 'original'; players need both")
    return sed_script(source, difference(source, original), unique)


def repair_command(task: Task, unique: bool = False, test: str = TEST) -> str:
    """Return the command that restores the original and runs the tests: an edit, or the whole program where that would
    be long. Raises TaskError for a task without an original."""
    script = true_repair(task, unique)
    if len(script) <= LONGEST_SCRIPT:
        return edit_command(script, test=test)
    return rewrite_command(str(task.private["original"]))


def reference(task: Task, observation: str, rng: np.random.Generator) -> Generator[str, str, None]:
    """Make the right edit, then submit."""
    yield write_action(repair_command(task))
    yield write_action(SUBMIT)


def demonstrator(
    task: Task,
    observation: str,
    rng: np.random.Generator,
    *,
    hint: float = 0.1,
    repeat: float = 0.05,
    give_up: float = 0.1,
    sweep: float = 0.8,
    unique: bool = False,
) -> Generator[str, str, None]:
    """Look, unless the first observation shows the tests' outcome, then guess edits until they pass or patience ends.

    `hint` is the probability that a guess is the right edit, `repeat` that an earlier guess is tried again (others are
    new, as long as there are new ones), `give_up` that the agent submits without a pass; each is drawn anew every turn.
    `sweep` is the probability that a new guess is the next one in order: the same edit at its next place, then the
    next edit. `unique` writes edits with so much of their surroundings that they occur once, instead of counting
    occurrences.
    """
    source, answer = str(task.public["source"]), repair_command(task, unique, SCORE)
    repairs = find_repairs(source)
    kinds = task.public.get("operators")
    if isinstance(kinds, list):  # what kinds of bugs the task set has is no secret
        repairs = tuple(edit for edit in repairs if edit.operator in kinds)
    scripts = {sed_script(source, edit, unique): edit.operator for edit in repairs}
    new = {edit_command(script, test=SCORE): kind for script, kind in sorted(scripts.items(), key=_rank)}
    order = list(new)
    seen = observation
    if not _OUTCOME.search(observation):
        if rng.random() < 0.7:
            seen = yield write_action(f"cat m.py; {TEST}")
        else:
            yield write_action("cat m.py")
            seen = yield write_action(TEST)
    tried: list[str] = []
    while "PASS" not in seen and rng.random() >= give_up:
        if tried and rng.random() < repeat:
            command = tried[int(rng.integers(len(tried)))]
        elif rng.random() < hint or not new:
            command = answer
        elif tried and tried[-1] in order and rng.random() < sweep:
            place = order.index(tried[-1])
            command = next(guess for guess in order[place:] + order[:place] if guess in new)
        else:
            command = str(rng.choice(list(new), p=_chances(list(new.values()))))
        new.pop(command, None)
        tried.append(command)
        seen = yield write_action(command)
    yield write_action(SUBMIT)


def _rank(guess: tuple[str, str]) -> tuple[float, str, str, int]:
    """The order of a search: common kinds of bugs first, then edit by edit, from place to place."""
    script, kind = guess
    edit, _, place = script.rpartition("|")
    return -_WEIGHTS[kind], kind, edit, int(place)


def _chances(kinds: list[str]) -> np.ndarray:
    """Shape: (guesses,), summing to 1: every kind of bug by its weight, its places evenly."""
    weights = np.array([_WEIGHTS[kind] / kinds.count(kind) for kind in kinds])
    weights /= weights.sum()
    return weights
