"""Scripted clerks: one that is always right, one that knows the ropes and decides badly, one that acts at random.

Invariant: all are functions of (task, observations, rng), and act in the environment's own protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import cache

import numpy as np

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.environments.random_calls import play_randomly
from agentgym_rtmc.environments.service_desk.env import FULL_OPENING, ServiceDeskEnv
from agentgym_rtmc.environments.service_desk.lines import Style
from agentgym_rtmc.environments.service_desk.plan import Step, end, reference_calls
from agentgym_rtmc.environments.service_desk.policy import Decision, Kind, Policy, Request, decide
from agentgym_rtmc.environments.service_desk.scenario import Case
from agentgym_rtmc.environments.service_desk.shop import make_shop
from agentgym_rtmc.tasks import Task

_GENEROUS = Policy(return_days=999, human_above=99999, late_days=-1, notice_days=-99, final_sale="nothing")
_EXCUSES: dict[Kind, tuple[str, ...]] = {
    "cancel": ("shipped", "too_late", "final_sale", "not_yours"),
    "return": ("shipped", "too_late", "final_sale", "not_yours"),
    "exchange": ("shipped", "too_late", "final_sale", "out_of_stock", "not_yours"),
    "late": ("not_late", "not_yours"),
    "address": ("shipped", "not_yours"),
    "move": ("too_late", "no_slot", "not_yours"),
    "unbook": ("too_late", "not_yours"),
    "status": ("not_yours",),
}
"""What a request of each kind may be refused with, beside a wrong PIN."""


def reference(task: Task, observation: str, rng: np.random.Generator) -> Generator[str, str, None]:
    """Do what is right, call by call."""
    write = _writer(observation)
    for step in reference_calls(Case.of(task)):
        yield write(step.call)


def demonstrator(
    task: Task,
    observation: str,
    rng: np.random.Generator,
    *,
    guess: float = 0.75,
    skip: float = 0.06,
    again: float = 0.03,
    give_in: float = 0.3,
) -> Generator[str, str, None]:
    """Know how the desk works, and often decide against the policy.

    `guess`: chance that a request is decided by guessing: done whatever the policy says, refused with some reason,
    handed over, or, where there is nothing to decide, answered with the wrong thing. `skip`: of leaving out a step
    before the end; `again`: of making one twice; `give_in`: of doing after all what is insisted on.
    """
    case, write = Case.of(task), _writer(observation)
    steps = reference_calls(case)
    for number, request in enumerate(case.scenario.requests):
        mine = [step for step in steps if step.request == number]
        if rng.random() < guess:
            ending = end(case, _guess(case, request, rng), number)
            mine = [step for step in mine if step.purpose not in ("change", "end")] + ending
        for call in _play(case, mine, rng, skip, again, give_in):
            yield write(call)


def _play(
    case: Case, steps: list[Step], rng: np.random.Generator, skip: float, again: float, give_in: float
) -> Iterator[Call]:
    refused = False
    for step in steps:
        if step.purpose != "end" and rng.random() < skip:
            continue
        if step.purpose == "end" and refused and rng.random() < give_in:
            request = case.scenario.requests[step.request]
            if request.kind in _EXCUSES:
                yield from (one.call for one in end(case, _generous(case, request), step.request)[:3])
                return
        refused = step.call.name == "refuse_request"
        yield step.call
        if step.purpose != "end" and rng.random() < again:
            yield step.call


def _guess(case: Case, request: Request, rng: np.random.Generator) -> Decision:
    excuses = _EXCUSES.get(request.kind)
    draw = rng.random()
    if excuses is None:
        return _slip(case, request, draw)
    if draw < 0.5:
        return _generous(case, request)
    if draw < 0.55:
        return Decision((), Call(name="escalate", arguments={"reason": "large_amount"}))
    return Decision((), Call(name="refuse_request", arguments={"reason": excuses[int(rng.integers(len(excuses)))]}))


def _slip(case: Case, request: Request, draw: float) -> Decision:
    """Mix up what is seldom doubted: price and stock, one hand-over and another; right half of the time."""
    kinds: tuple[Kind, Kind] = ("price", "stock") if request.kind in ("price", "stock") else ("injury", "legal")
    other = kinds[request.kind == kinds[0]]
    kind = request.kind if draw < 0.5 else other
    shop = make_shop(case.shop)
    return decide(case.policy, shop, case.scenario.customer, case.verifiable, request.model_copy(update={"kind": kind}))


def _generous(case: Case, request: Request) -> Decision:
    """Decide as if the policy forbade nothing."""
    shop = make_shop(case.shop)
    owner = case.scenario.customer
    if request.order is not None:
        owner = shop.orders[request.order].customer
    if request.booking is not None:
        owner = shop.bookings[request.booking].customer
    policy = _GENEROUS.model_copy(update={"late_credit": case.policy.late_credit})
    return decide(policy, shop, owner, True, request)


def random_player(task: Task, observation: str, rng: np.random.Generator) -> Generator[str, str, None]:
    """Call any tool with anything."""
    env = _env("full" if observation.startswith(FULL_OPENING) else "compact")
    return play_randomly(env.tools, env.protocol, observation, rng)


def _writer(observation: str) -> Callable[[Call], str]:
    """Calls are written in the style that the customer is heard in."""
    return _env("full" if observation.startswith(FULL_OPENING) else "compact").protocol.render


@cache
def _env(style: Style) -> ServiceDeskEnv:
    """An environment to ask for its tools and its protocol; nothing is played in it."""
    return ServiceDeskEnv(style=style)
