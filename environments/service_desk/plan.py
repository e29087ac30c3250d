"""The reference: what a good clerk does for a case, call by call, in steps that say what each is for.

Invariant: it makes every look-up that the decision rests on, and no other; no call depends on chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.environments.service_desk.policy import PUBLIC_KINDS, URGENT_KINDS, Decision, Request
from agentgym_rtmc.environments.service_desk.scenario import Case
from agentgym_rtmc.environments.service_desk.shop import make_shop

Purpose = Literal["identity", "find", "look", "change", "end"]


@dataclass(frozen=True)
class Step:
    """One call. `request` is the number of the request it serves."""

    purpose: Purpose
    call: Call
    request: int


def reference_calls(case: Case) -> list[Step]:
    """Return all calls of the reference, in order."""
    steps: list[Step] = []
    identified = case.scenario.identity == "signed_in"
    for number, (request, decision) in enumerate(zip(case.scenario.requests, case.decisions(), strict=False)):
        if not identified and request.kind not in (*PUBLIC_KINDS, *URGENT_KINDS):
            steps += [Step("identity", call, number) for call in identify(case)]
            identified = True
        if case.verifiable or request.kind in PUBLIC_KINDS:
            steps += [Step("find", call, number) for call in find(case, request)]
            steps += [Step("look", call, number) for call in look(request, decision)]
        steps += end(case, decision, number)
    return steps


def identify(case: Case) -> list[Call]:
    """Find out who calls, and verify it."""
    scenario, shop = case.scenario, make_shop(case.shop)
    account = shop.customers[scenario.customer]
    calls: list[Call] = []
    if scenario.identity in ("name", "nothing"):
        if scenario.identity == "nothing":
            calls.append(ask("name"))
        calls.append(_call("find_customer", name=account.name))
        if sum(other.name == account.name for other in shop.customers.values()) > 1:
            calls.append(ask("city"))
        calls.append(ask("pin"))
    return [*calls, _call("verify_customer", customer=account.id, pin=scenario.pin)]


def find(case: Case, request: Request) -> list[Call]:
    """Find out which order, booking or item is meant, where the customer does not say its number."""
    manner, customer = case.scenario.manner, case.scenario.customer
    calls: list[Call] = []
    if request.kind in URGENT_KINDS:
        return []
    if manner == "terse" and (request.order or request.booking):
        calls.append(ask("order" if request.order else "booking"))
    if manner == "forgetful":
        if request.order:
            calls.append(_call("list_orders", customer=customer))
        if request.booking:
            calls.append(_call("list_bookings", customer=customer))
        if request.kind == "exchange" and request.item:
            calls.append(_call("find_items", name=make_shop(case.shop).items[request.item].name))
    return calls


def look(request: Request, decision: Decision) -> list[Call]:
    """Look up what the decision rests on."""
    calls: list[Call] = []
    if request.kind in URGENT_KINDS:
        return []
    if request.order:
        calls.append(_call("get_order", order=request.order))
    if request.booking:
        calls.append(_call("get_booking", booking=request.booking))
    reason = decision.last.arguments.get("reason")
    if request.item and reason in (None, "out_of_stock"):
        calls.append(_call("get_item", item=request.item))
    if request.kind == "move" and reason in (None, "no_slot"):
        calls.append(_call("list_free_days"))
    return calls


def end(case: Case, decision: Decision, number: int) -> list[Step]:
    """Carry out a decision, and say it; to those who insist, twice."""
    steps = [Step("change", call, number) for call in decision.changes]
    insists = case.scenario.manner == "pushy" and decision.last.name == "refuse_request"
    return steps + [Step("end", decision.last, number)] * (2 if insists else 1)


def ask(about: str) -> Call:
    """Ask the customer for something."""
    return _call("ask_customer", about=about)


def _call(name: str, /, **arguments: int | str) -> Call:
    return Call(name=name, arguments=dict(arguments))
