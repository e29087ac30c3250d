"""Scenarios: who calls, what they want, what they know and how they speak. The private part of a task.

Invariant: a scenario is plain data; with the shop and the policy it determines everything that is judged.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentgym_rtmc.environments.service_desk.policy import URGENT_KINDS, Decision, Policy, Request, decide
from agentgym_rtmc.environments.service_desk.shop import Shop, make_shop
from agentgym_rtmc.errors import TaskError
from agentgym_rtmc.tasks import Task

Manner = Literal["plain", "terse", "talkative", "impatient", "forgetful", "pushy"]
"""`terse`: says the least. `talkative`: tells what nobody asked. `impatient`: hangs up at the fourth question.
`forgetful`: has no order number at hand, only the goods. `pushy`: insists after a refusal."""
Identity = Literal["signed_in", "numbers", "name", "nothing"]
"""What the opening says of who calls: verified already, account number and PIN, the name alone, nothing."""


class Scenario(BaseModel):
    """One call. `pin` is what the caller says, which an impostor's is wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    customer: int
    pin: int
    identity: Identity = "signed_in"
    manner: Manner = "plain"
    requests: tuple[Request, ...] = Field(min_length=1, max_length=3)


class Case(BaseModel):
    """A task of the desk, read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shop: int
    policy: Policy
    scenario: Scenario

    @classmethod
    def of(cls, task: Task) -> Case:
        """Read a task. Raises TaskError naming the field."""
        try:
            case = cls.model_validate(
                {
                    "shop": task.public.get("shop"),
                    "policy": task.public.get("policy"),
                    "scenario": task.private.get("scenario"),
                }
            )
        except ValidationError as error:
            first = error.errors()[0]
            raise TaskError(f"task {task.id!r}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
        case.check(task.id)
        return case

    def check(self, name: str) -> None:
        """Raise TaskError where the scenario names what the shop does not have."""
        shop = make_shop(self.shop)
        if self.scenario.customer not in shop.customers:
            raise TaskError(f"task {name!r}: shop {self.shop} has no customer {self.scenario.customer}")
        for request in self.scenario.requests:
            known: tuple[tuple[str, int | None, object], ...] = (
                ("order", request.order, shop.orders),
                ("booking", request.booking, shop.bookings),
                ("item", request.item, shop.items),
            )
            for kind, number, rows in known:
                if number is not None and number not in rows:  # type: ignore[operator]
                    raise TaskError(f"task {name!r}: shop {self.shop} has no {kind} {number}")
            if not _complete(request):
                raise TaskError(f"task {name!r}: a request of kind {request.kind!r} lacks what it is about")

    @property
    def verifiable(self) -> bool:
        """Whether the caller can be, or already is, verified."""
        return self.scenario.identity == "signed_in" or self._customer_pin() == self.scenario.pin

    def _customer_pin(self) -> int:
        return make_shop(self.shop).customers[self.scenario.customer].pin

    def decisions(self) -> list[Decision]:
        """What is right for each request, up to the one that a human takes over."""
        shop: Shop = make_shop(self.shop)
        found: list[Decision] = []
        for request in self.scenario.requests:
            found.append(decide(self.policy, shop, self.scenario.customer, self.verifiable, request))
            if found[-1].last.name == "escalate":
                break
        return found


def _complete(request: Request) -> bool:
    kind = request.kind
    if kind in URGENT_KINDS:
        return True
    if kind in ("price", "stock"):
        return request.item is not None
    if kind in ("move", "unbook"):
        return request.booking is not None and (kind == "unbook" or request.day is not None)
    needs = {"exchange": request.item, "address": request.city}
    return request.order is not None and needs.get(kind, 0) is not None
