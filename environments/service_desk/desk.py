"""The desk's tools: plain typed functions on the database of the episode.

Invariants:
- A tool does what it is told if the shop's database can hold it, whether or not the policy allows it; what it broke is
  kept in `breaches`. What the database cannot hold (no such order, none in stock) is refused and changes nothing.
- Every value reaches SQL as a bound parameter. Every change is one transaction.
- `changes` counts what changed the shop's own records.
- Look-ups are entered in the table `lookups`, so that the database tells what was looked up.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

from pydantic import Field

from agentgym_rtmc.environments.service_desk.breaches import Arguments, find_breach
from agentgym_rtmc.environments.service_desk.lines import Style
from agentgym_rtmc.environments.service_desk.policy import Policy
from agentgym_rtmc.environments.service_desk.shop import CITIES, date_of, days_until
from agentgym_rtmc.errors import ToolError

Id = Annotated[int, Field(ge=1, le=99999)]
Amount = Annotated[int, Field(ge=1, le=99999, description="whole units of money")]
Word = Annotated[str, Field(min_length=1, max_length=40)]
_MOST_ROWS = 8
_MOST_PINS = 3


class Desk:
    """The tools that look things up and change them; those for talking are the environment's."""

    def __init__(self, style: Style) -> None:
        self._compact = style == "compact"
        self._connection = sqlite3.connect(":memory:", check_same_thread=False)
        self._policy = Policy()
        self.breaches: list[str] = []
        self.changes = 0

    def begin(self, connection: sqlite3.Connection, policy: Policy) -> None:
        """Sit down at another database, which is the desk's from now on."""
        self._connection.close()
        self._connection, self._policy = connection, policy
        self.breaches = []
        self.changes = 0

    @property
    def connection(self) -> sqlite3.Connection:
        """The database of the episode."""
        return self._connection

    @property
    def verified(self) -> int | None:
        """The customer who was verified."""
        number: int | None = self._rows("SELECT verified FROM contact")[0][0]
        return number

    def tools(self) -> list[Callable[..., Any]]:
        """All tools, in the order in which they are offered."""
        return [
            self.find_customer,
            self.get_customer,
            self.verify_customer,
            self.list_orders,
            self.get_order,
            self.find_items,
            self.get_item,
            self.list_bookings,
            self.get_booking,
            self.list_free_days,
            self.cancel_order,
            self.return_order,
            self.exchange_order,
            self.set_city,
            self.refund_payment,
            self.give_credit,
            self.move_booking,
            self.cancel_booking,
        ]

    def note_question(self, about: str) -> None:
        """Enter that the customer was asked for something."""
        self._note("asked", about)

    def note_answers(self, count: int) -> None:
        """Enter how many requests have been answered."""
        self._connection.execute("UPDATE contact SET answered = ?", (count,))

    # -- looking up ---------------------------------------------------------------------------------------------

    def find_customer(self, name: Word) -> Any:
        """Find customers by first name: their numbers and cities."""
        rows = self._rows("SELECT id, city FROM customers WHERE name = ? COLLATE NOCASE ORDER BY id", name)
        self._note("find_customer", name, rows)
        return self._list([{"customer": i, "city": city} for i, city in rows], f"no customer is called {name!r}")

    def get_customer(self, customer: Id) -> Any:
        """Look up an account: name, city, credit."""
        name, city = self._row("customer", customer, "name, city")
        [(credit,)] = self._rows("SELECT coalesce(sum(amount), 0) FROM credits WHERE customer = ?", customer)
        self._note("customer", customer)
        return self._show({"name": name, "city": city, "credit": credit})

    def verify_customer(self, customer: Id, pin: Annotated[int, Field(ge=0, le=999999)]) -> str:
        """Verify who is on the line by the PIN that the customer gave."""
        [right] = self._row("customer", customer, "pin")
        [(wrong,)] = self._rows("SELECT wrong_pins FROM contact")
        if wrong >= _MOST_PINS:
            self._refuse("no more tries: refuse with identity")
        if pin != right:
            self._connection.execute("UPDATE contact SET wrong_pins = wrong_pins + 1")
            return "wrong pin"
        self._connection.execute("UPDATE contact SET verified = ?", (customer,))
        return "verified"

    def list_orders(self, customer: Id) -> Any:
        """List the orders of a customer: number, goods, status."""
        self._row("customer", customer, "id")
        rows = self._rows(
            'SELECT orders.id, colour, name, status FROM orders JOIN order_items ON "order" = orders.id '
            "JOIN items ON items.id = item WHERE customer = ? ORDER BY orders.id",
            customer,
        )
        self._note("orders of", customer)
        shown = [{"order": i, "goods": f"{colour} {name}", "status": status} for i, colour, name, status in rows]
        return self._list(shown, "no orders")

    def get_order(self, order: Id) -> Any:
        """Look up an order: whose it is, the goods, what was paid and how, its status, and how late it came."""
        customer, status, city, promised, delivered = self._row(
            "order", order, "customer, status, city, promised, delivered"
        )
        [(item, count, goods, category, price)] = self._rows(
            "SELECT item, count, colour || ' ' || name, category, price FROM order_items JOIN items ON items.id = item "
            'WHERE "order" = ?',
            order,
        )
        payment = self._rows('SELECT method, amount, refunded FROM payments WHERE "order" = ?', order)
        self._note("order", order)
        shown: dict[str, Any] = {"customer": customer, "item": item, "goods": goods, "category": category}
        if count != 1:
            shown["count"] = count
        shown |= {"total": price * count, "paid_by": payment[0][0] if payment else "nobody", "status": status}
        if payment and payment[0][2]:
            shown["paid_back"] = payment[0][2]
        if not self._compact:
            shown |= {"city": city, "promised": promised, "delivered": delivered}
        if delivered is not None:
            shown["days_since_delivery"] = -days_until(delivered)
            shown["days_late"] = days_until(delivered) - days_until(promised)
        return self._show(shown)

    def find_items(self, name: Word) -> Any:
        """Find the variants of a product by its name (lamp, shirt): item numbers and colours."""
        rows = self._rows("SELECT id, colour FROM items WHERE name = ? COLLATE NOCASE ORDER BY id", name)
        self._note("find_items", name, rows)
        return self._list([{"item": i, "colour": colour} for i, colour in rows], f"no item is called {name!r}")

    def get_item(self, item: Id) -> Any:
        """Look up an item: goods, category, price, number in stock."""
        name, colour, category, price = self._row("item", item, "name, colour, category, price")
        [(stock,)] = self._rows("SELECT count FROM stock WHERE item = ?", item)
        self._note("item", item)
        return self._show({"goods": f"{colour} {name}", "category": category, "price": price, "stock": stock})

    def list_bookings(self, customer: Id) -> Any:
        """List the bookings of a customer in the workshop."""
        self._row("customer", customer, "id")
        rows = self._rows("SELECT id, status FROM bookings WHERE customer = ? ORDER BY id", customer)
        self._note("bookings of", customer)
        return self._list([{"booking": i, "status": status} for i, status in rows], "no bookings")

    def get_booking(self, booking: Id) -> Any:
        """Look up a booking: whose it is, its status, and how many days ahead it is."""
        customer, status, day = self._row("booking", booking, "customer, status, day")
        self._note("booking", booking)
        shown = {"customer": customer, "status": status, "days_ahead": days_until(day)}
        return self._show(shown if self._compact else {**shown, "date": day})

    def list_free_days(self) -> Any:
        """List the days on which the workshop still takes bookings, as days from today."""
        rows = self._rows("SELECT day FROM calendar WHERE free > 0 ORDER BY day")
        self._note("calendar", "days")
        days = [days_until(day) for (day,) in rows]
        return " ".join(map(str, days)) if self._compact else days

    # -- changing -----------------------------------------------------------------------------------------------

    def cancel_order(self, order: Id) -> None:
        """Cancel an order; its goods go back into stock. Payments stay: pay back apart."""
        self._take_back("cancel_order", order, "cancelled")

    def return_order(self, order: Id) -> None:
        """Take back an order; its goods go back into stock. Payments stay: pay back apart."""
        self._take_back("return_order", order, "returned")

    def exchange_order(self, order: Id, item: Id) -> None:
        """Exchange the goods of an order for as many of another item."""
        self._row("order", order, "id")
        self._row("item", item, "id")
        self._open_order(order)
        with self._change("exchange_order", order=order):
            [(old, count)] = self._rows('SELECT item, count FROM order_items WHERE "order" = ?', order)
            [(stock,)] = self._rows("SELECT count FROM stock WHERE item = ?", item)
            if item == old:
                self._refuse(f"order {order} is of item {item} already")
            if stock < count:
                self._refuse(f"only {stock} of item {item} in stock, {count} needed")
            self._add_stock(old, count)
            self._add_stock(item, -count)
            self._connection.execute('UPDATE order_items SET item = ? WHERE "order" = ?', (item, order))

    def set_city(self, order: Id, city: Word) -> None:
        """Send an order to another city."""
        self._row("order", order, "id")
        self._open_order(order)
        # Cities as the shop writes them, so that no text of the caller's is stored.
        known = {one.casefold(): one for one in CITIES}
        if city.strip().casefold() not in known:
            self._refuse(f"the shop does not deliver to {city!r}")
        with self._change("set_city", order=order):
            self._connection.execute("UPDATE orders SET city = ? WHERE id = ?", (known[city.strip().casefold()], order))

    def refund_payment(self, order: Id, amount: Amount) -> None:
        """Pay money back to the card an order was paid with."""
        self._row("order", order, "id")
        paid = self._rows('SELECT method, amount - refunded FROM payments WHERE "order" = ?', order)
        if not paid:
            self._refuse(f"order {order} is not paid")
        method, left = paid[0]
        if method != "card":
            self._refuse(f"order {order} was paid by {method}, not by card")
        if amount > left:
            self._refuse(f"only {left} of order {order} can be paid back")
        with self._change("refund_payment", order=order, amount=amount):
            self._connection.execute('UPDATE payments SET refunded = refunded + ? WHERE "order" = ?', (amount, order))

    def give_credit(self, customer: Id, amount: Amount) -> None:
        """Give a customer credit for later orders."""
        self._row("customer", customer, "id")
        with self._change("give_credit", customer=customer, amount=amount):
            self._connection.execute("INSERT INTO credits(customer, amount) VALUES (?, ?)", (customer, amount))

    def move_booking(
        self, booking: Id, day: Annotated[int, Field(ge=1, le=365, description="days from today")]
    ) -> None:
        """Move a booking to another day that is free."""
        old = self._open_booking(booking)
        if not self._rows("SELECT 1 FROM calendar WHERE day = ? AND free > 0", date_of(day)):
            self._refuse(f"day {day} is not free")
        with self._change("move_booking", booking=booking):
            self._free(date_of(day), -1)
            self._free(old, 1)
            self._connection.execute("UPDATE bookings SET day = ? WHERE id = ?", (date_of(day), booking))

    def cancel_booking(self, booking: Id) -> None:
        """Cancel a booking; its day is free again."""
        day = self._open_booking(booking)
        with self._change("cancel_booking", booking=booking):
            self._free(day, 1)
            self._connection.execute("UPDATE bookings SET status = 'cancelled' WHERE id = ?", (booking,))

    # -- parts --------------------------------------------------------------------------------------------------

    def _take_back(self, tool: str, order: int, status: str) -> None:
        self._row("order", order, "id")
        self._open_order(order)
        with self._change(tool, order=order):
            [(item, count)] = self._rows('SELECT item, count FROM order_items WHERE "order" = ?', order)
            self._add_stock(item, count)
            self._connection.execute("UPDATE orders SET status = ? WHERE id = ?", (status, order))

    def _open_order(self, order: int) -> None:
        [status] = self._row("order", order, "status")
        if status in ("cancelled", "returned"):
            self._refuse(f"order {order} is {status} already")

    def _open_booking(self, booking: int) -> str:
        status, day = self._row("booking", booking, "status, day")
        if status != "booked":
            self._refuse(f"booking {booking} is {status} already")
        return str(day)

    def _add_stock(self, item: int, count: int) -> None:
        self._connection.execute("UPDATE stock SET count = count + ? WHERE item = ?", (count, item))

    def _free(self, day: str, count: int) -> None:
        self._connection.execute("UPDATE calendar SET free = free + ? WHERE day = ?", (count, day))

    @contextmanager
    def _change(self, tool: str, **arguments: int) -> Iterator[None]:
        """One transaction, judged by the policy before it; a refusal inside undoes it."""
        given: Arguments = dict(arguments)
        breach = find_breach(self._connection, self._policy, tool, given)
        self._connection.execute("BEGIN")
        try:
            yield
        except ToolError:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")
        self.changes += 1
        if breach is not None:
            self.breaches.append(breach)

    def _rows(self, sql: str, *values: int | str) -> list[tuple[Any, ...]]:
        return self._connection.execute(sql, values).fetchall()

    def _row(self, kind: str, number: int, columns: str) -> tuple[Any, ...]:
        rows = self._rows(f"SELECT {columns} FROM {kind}s WHERE id = ?", number)
        if not rows:
            self._refuse(f"there is no {kind} {number}")
        return rows[0]

    def _refuse(self, why: str) -> NoReturn:
        raise ToolError(why)

    def _note(self, kind: str, subject: int | str, found: object = True) -> None:
        """Enter a look-up; one that found nothing is none."""
        if found:
            self._connection.execute(
                "INSERT OR IGNORE INTO lookups VALUES (?, ?)", (kind, str(subject).strip().casefold())
            )

    def _show(self, record: dict[str, Any]) -> Any:
        if not self._compact:
            return record
        return " ".join(f"{name.replace('_', ' ')} {value}" for name, value in record.items())

    def _list(self, records: list[dict[str, Any]], nothing: str) -> Any:
        if not records:
            return nothing
        if not self._compact:
            return records if len(records) <= _MOST_ROWS else [*records[:_MOST_ROWS], f"{len(records)} in all"]
        # The first column is named, so that its number reads as it is written in a call: `get_order 45`.
        lines = [" ".join(map(str, (next(iter(record)), *record.values()))) for record in records]
        return "\n".join(lines[:_MOST_ROWS] + [f"{len(lines)} in all"] * (len(lines) > _MOST_ROWS))
