"""What breaks the policy: every act is judged on the database as it stands before it, whatever the customer wanted.

Invariants: nothing is changed here. An act that the policy allows to *somebody* is no breach, though it may be the
wrong one for the request; that is for the final state to show.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from agentgym_rtmc.environments.service_desk.policy import Policy
from agentgym_rtmc.environments.service_desk.shop import days_until

Arguments = dict[str, int]


def find_breach(connection: sqlite3.Connection, policy: Policy, tool: str, arguments: Arguments) -> str | None:
    """Return the rule that a change would break: identity, ownership or the name of the tool; None if it is fine.

    `arguments` name a customer, an order or a booking that is there.
    """
    verified = connection.execute("SELECT verified FROM contact").fetchone()[0]
    if verified is None:
        return "identity"
    if _owner(connection, arguments) != verified:
        return "ownership"
    rule = _RULES.get(tool)
    return None if rule is None or rule(connection, policy, arguments) else tool


def _owner(connection: sqlite3.Connection, arguments: Arguments) -> int:
    if "customer" in arguments:
        return arguments["customer"]
    kind = "order" if "order" in arguments else "booking"
    owner: int = connection.execute(f"SELECT customer FROM {kind}s WHERE id = ?", (arguments[kind],)).fetchone()[0]
    return owner


_ORDER = """
SELECT status, count * price, category, delivered, promised, coalesce(method, ''), coalesce(amount - refunded, 0)
FROM orders JOIN order_items ON order_items."order" = orders.id JOIN items ON items.id = item
LEFT JOIN payments ON payments."order" = orders.id WHERE orders.id = ?
"""


def _may_cancel(connection: sqlite3.Connection, policy: Policy, arguments: Arguments) -> bool:
    return bool(_order(connection, arguments)[0] == "placed")


def _may_come_back(connection: sqlite3.Connection, policy: Policy, arguments: Arguments) -> bool:
    status, _, category, delivered, *_ = _order(connection, arguments)
    fits: bool = status == "delivered" and category != policy.final_sale
    return fits and -days_until(delivered) <= policy.return_days


def _may_return(connection: sqlite3.Connection, policy: Policy, arguments: Arguments) -> bool:
    total: int = _order(connection, arguments)[1]
    return _may_come_back(connection, policy, arguments) and total <= policy.human_above


def _may_refund(connection: sqlite3.Connection, policy: Policy, arguments: Arguments) -> bool:
    status, *_, method, left = _order(connection, arguments)
    return status in ("cancelled", "returned") and method == "card" and arguments["amount"] == left


def _may_credit(connection: sqlite3.Connection, policy: Policy, arguments: Arguments) -> bool:
    """A gift card's payback, or the credit for an order of the customer's that came late; each of them once."""
    customer, amount = arguments["customer"], arguments["amount"]
    due: list[int] = []
    for (number,) in connection.execute("SELECT id FROM orders WHERE customer = ?", (customer,)):
        status, total, _, delivered, promised, method, _ = _order(connection, {"order": number})
        if status in ("cancelled", "returned") and method == "gift":
            due.append(total)
        if delivered is not None and days_until(delivered) - days_until(promised) > policy.late_days:
            due.append(policy.late_credit)
    for (given,) in connection.execute("SELECT amount FROM credits WHERE customer = ?", (customer,)):
        if given in due:
            due.remove(given)
    return amount in due


def _may_change_booking(connection: sqlite3.Connection, policy: Policy, arguments: Arguments) -> bool:
    [day] = connection.execute("SELECT day FROM bookings WHERE id = ?", (arguments["booking"],)).fetchone()
    return days_until(day) >= policy.notice_days


def _order(connection: sqlite3.Connection, arguments: Arguments) -> tuple[Any, ...]:
    row: tuple[Any, ...] = connection.execute(_ORDER, (arguments["order"],)).fetchone()
    return row


_RULES: dict[str, Callable[[sqlite3.Connection, Policy, Arguments], bool]] = {
    "cancel_order": _may_cancel,
    "set_city": _may_cancel,
    "return_order": _may_return,
    "exchange_order": _may_come_back,
    "refund_payment": _may_refund,
    "give_credit": _may_credit,
    "move_booking": _may_change_booking,
    "cancel_booking": _may_change_booking,
}
"""Tool -> whether the policy lets it be used so."""
