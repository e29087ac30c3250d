"""The simulated customer: a script that opens, answers questions, insists, and goes when all is answered.

Invariants: no chance and no clock: what is said follows from the scenario and from what was asked. The customer judges
nothing and believes what it is told; whether that was true is for the environment to say.
"""

from __future__ import annotations

from typing import Literal

from agentgym_rtmc.environments.service_desk import lines
from agentgym_rtmc.environments.service_desk.lines import Style, line
from agentgym_rtmc.environments.service_desk.policy import Request
from agentgym_rtmc.environments.service_desk.scenario import Case
from agentgym_rtmc.environments.service_desk.shop import CITIES, make_shop

Topic = Literal["name", "pin", "account", "city", "order", "booking", "goods", "wish"]
PATIENCE = 3
"""Questions that an impatient customer answers."""


class Customer:
    """One caller. `gone` is true once the conversation is over."""

    def __init__(self, case: Case, style: Style) -> None:
        self._scenario = case.scenario
        self._shop = make_shop(case.shop)
        self._account = self._shop.customers[case.scenario.customer]
        self._style = style
        self._asked = 0
        self._insisted = False
        self.current = 0
        self.gone = False

    @property
    def request(self) -> Request:
        """The request that waits for an answer."""
        return self._scenario.requests[self.current]

    def open(self) -> str:
        """Say the first thing."""
        scenario = self._scenario
        said = {
            "signed_in": lines.SIGNED_IN,
            "numbers": lines.NUMBERS,
            "name": lines.NAME,
            "nothing": lines.GREETING,
        }[scenario.identity]
        parts = [line(said, self._style, customer=scenario.customer, pin=scenario.pin, name=self._account.name)]
        parts.append(self._wish())
        if scenario.manner == "talkative":
            elsewhere = CITIES[(CITIES.index(self._account.city) + 1) % len(CITIES)]
            years, cats = 2 + scenario.customer % 50, 2 + scenario.customer % 5
            parts.append(line(lines.CHATTER, self._style, elsewhere=elsewhere, years=years, cats=cats))
        if scenario.manner == "impatient":
            parts.append(line(lines.HURRY, self._style))
        if scenario.manner == "pushy" and self.request.kind == "late":
            parts.append(line(lines.LOUDER, self._style, demand=20 + scenario.customer % 30))
        return "\n".join(parts)

    def ask(self, about: Topic) -> str:
        """Answer a question."""
        self._asked += 1
        if self._scenario.manner == "impatient" and self._asked > PATIENCE:
            self.gone = True
            return line(lines.HUNG_UP, self._style)
        value = self._knows(about)
        return line(lines.UNKNOWN if value is None else lines.ANSWERS[about], self._style, value=value)

    def hear_answer(self) -> str:
        """Take an answer; say what is next, or goodbye."""
        self.current += 1
        self._insisted = False
        if self.current == len(self._scenario.requests):
            self.gone = True
            return line(lines.BYE, self._style)
        return line(lines.NEXT, self._style, request=self._wish())

    def hear_refusal(self) -> str:
        """Take a refusal, or insist once."""
        if self._scenario.manner == "pushy" and not self._insisted:
            self._insisted = True
            return line(lines.INSIST, self._style)
        return self.hear_answer()

    def _wish(self) -> str:
        request = self.request
        return line(
            lines.REQUESTS[request.kind],
            self._style,
            order=self._call_order(request),
            booking=self._call_booking(request),
            item=request.item,
            new=self._call_new(request),
            day=request.day,
            city=request.city,
        )

    def _call_order(self, request: Request) -> str:
        if request.order is None:
            return "the order"
        if self._scenario.manner == "terse":
            return "my order"
        if self._scenario.manner == "forgetful":
            return f"the {self._goods(self._shop.orders[request.order].item)}"
        return f"order {request.order}"

    def _call_booking(self, request: Request) -> str:
        known = self._scenario.manner not in ("terse", "forgetful")
        return f"booking {request.booking}" if known else "my booking"

    def _call_new(self, request: Request) -> str:
        if request.item is None:
            return ""
        if self._scenario.manner == "forgetful":
            return f"a {self._shop.items[request.item].colour} one"
        return f"item {request.item}"

    def _goods(self, item: int) -> str:
        return f"{self._shop.items[item].colour} {self._shop.items[item].name}"

    def _knows(self, about: Topic) -> int | str | None:
        request, forgetful = self.request, self._scenario.manner == "forgetful"
        if about == "pin":
            return self._scenario.pin
        if about == "account":
            return self._scenario.customer if self._scenario.identity in ("signed_in", "numbers") else None
        if about == "order":
            return None if forgetful else request.order
        if about == "booking":
            return None if forgetful else request.booking
        if about == "goods":
            return None if request.order is None else self._goods(self._shop.orders[request.order].item)
        if about == "wish":
            return self._wish()
        return self._account.name if about == "name" else self._account.city
