"""The desk's policy: numbers that differ between tasks, the rules they stand in, and what follows for a request.

Invariants: `decide` is pure and knows the shop as it is, not what an agent looked up. It is written apart from
`breaches.py`, which judges single acts on the database; tests hold the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.environments.service_desk.shop import Order, Shop

Kind = Literal[
    "price", "stock", "status", "cancel", "return", "exchange", "late", "address", "move", "unbook", "injury", "legal"
]
Refusal = Literal["identity", "not_yours", "shipped", "too_late", "final_sale", "out_of_stock", "not_late", "no_slot"]
Handover = Literal["injury", "legal", "large_amount"]

PUBLIC_KINDS = ("price", "stock")
"""What anybody may be told."""
URGENT_KINDS = ("injury", "legal")
"""What goes to a human at once, whoever asks."""


class Policy(BaseModel):
    """The numbers of the policy. Days are whole days, amounts whole units of money."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    return_days: int = Field(30, description="days after delivery in which an order may be returned or exchanged")
    human_above: int = Field(80, description="returns worth more than this go to a human")
    late_days: int = Field(3, description="a delivery more than so many days late earns a credit")
    late_credit: int = Field(5, description="the credit for a late delivery, whatever is demanded")
    notice_days: int = Field(2, description="a booking fewer days ahead than this can't be moved or cancelled")
    final_sale: str = Field("food", description="category that is neither taken back nor exchanged")


class Request(BaseModel):
    """One thing a customer wants. `order`, `booking`, `item`, `day` (days ahead) and `city` as far as it needs them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    order: int | None = None
    booking: int | None = None
    item: int | None = None
    day: int | None = None
    city: str | None = None


@dataclass(frozen=True)
class Decision:
    """What is right: the calls that change the database, then the call that ends the request."""

    changes: tuple[Call, ...]
    last: Call


def decide(policy: Policy, shop: Shop, customer: int, verified: bool, request: Request) -> Decision:
    """Apply the policy to a request of the customer, whose identity was verified or not."""
    if request.kind in URGENT_KINDS:
        return Decision((), Call(name="escalate", arguments={"reason": request.kind}))
    if request.kind in PUBLIC_KINDS:
        assert request.item is not None
        item = shop.items[request.item]
        return _tell(item.price if request.kind == "price" else item.stock)
    if not verified:
        return _refuse("identity")
    if request.booking is not None:
        return _decide_booking(policy, shop, customer, request, request.booking)
    assert request.order is not None
    order = shop.orders[request.order]
    if order.customer != customer:
        return _refuse("not_yours")
    return _decide_order(policy, shop, request, order)


def _decide_booking(policy: Policy, shop: Shop, customer: int, request: Request, number: int) -> Decision:
    booking = shop.bookings[number]
    if booking.customer != customer:
        return _refuse("not_yours")
    if booking.ahead < policy.notice_days:
        return _refuse("too_late")
    if request.kind == "unbook":
        return _tell("cancelled", _call("cancel_booking", booking=number))
    assert request.day is not None
    if not shop.free.get(request.day):
        return _refuse("no_slot")
    return _tell(request.day, _call("move_booking", booking=number, day=request.day))


def _decide_order(policy: Policy, shop: Shop, request: Request, order: Order) -> Decision:
    kind = request.kind
    if kind == "status":
        return _tell(order.status)
    if kind == "late":
        if order.status != "delivered" or order.late <= policy.late_days:
            return _refuse("not_late")
        return _tell(policy.late_credit, _credit(order, policy.late_credit))
    if kind == "address":
        assert request.city is not None
        if order.status != "placed":
            return _refuse("shipped")
        return _tell(request.city, _call("set_city", order=order.id, city=request.city))
    if order.status == "shipped":
        return _refuse("shipped")
    if order.status == "placed":
        return _cancel(order)
    # Delivered: also what a customer calls a cancellation is a return by now.
    if shop.items[order.item].category == policy.final_sale:
        return _refuse("final_sale")
    assert order.days is not None
    if order.days > policy.return_days:
        return _refuse("too_late")
    if kind == "exchange":
        assert request.item is not None
        if shop.items[request.item].stock < order.count:
            return _refuse("out_of_stock")
        return _tell(request.item, _call("exchange_order", order=order.id, item=request.item))
    if order.total > policy.human_above:
        return Decision((), Call(name="escalate", arguments={"reason": "large_amount"}))
    return _tell(order.total, _call("return_order", order=order.id), _pay_back(order))


def _cancel(order: Order) -> Decision:
    cancelling = _call("cancel_order", order=order.id)
    if order.method is None:
        return _tell(0, cancelling)
    return _tell(order.total, cancelling, _pay_back(order))


def _pay_back(order: Order) -> Call:
    """By the way it was paid: a card gets its money back, a gift card becomes credit."""
    if order.method == "gift":
        return _credit(order, order.total)
    return _call("refund_payment", order=order.id, amount=order.total)


def _credit(order: Order, amount: int) -> Call:
    return _call("give_credit", customer=order.customer, amount=amount)


def _tell(answer: int | str, *changes: Call) -> Decision:
    return Decision(changes, Call(name="tell_customer", arguments={"answer": answer}))


def _refuse(reason: Refusal) -> Decision:
    return Decision((), Call(name="refuse_request", arguments={"reason": reason}))


def _call(name: str, /, **arguments: int | str) -> Call:
    return Call(name=name, arguments=dict(arguments))
