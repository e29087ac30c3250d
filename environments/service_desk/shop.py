"""Shops: customers, items, stock, orders, payments and bookings, drawn by a number and written into a SQLite database.

Invariants: a shop is a function of its number alone. Ids and PINs are two digits, short to write; ids are unlike within
a kind. Every order has one line; a delivered one has a day of delivery, and any paid one a payment. Money is in whole
units, days are dates.
"""

from __future__ import annotations

import datetime
import random
import sqlite3
from dataclasses import dataclass
from functools import lru_cache

from agentgym_rtmc.environments.databases import PreparedDatabase

TODAY = datetime.date(2026, 5, 15)
NAMES = ("Ada", "Ben", "Cleo", "Dora", "Emil", "Finn", "Gita", "Hugo", "Ida", "Jon", "Kim", "Lena", "Max", "Nora")
CITIES = ("Bern", "Bonn", "Graz", "Kiel", "Linz", "Oslo", "Rome", "York")
GOODS = {
    "lamp": "home",
    "chair": "home",
    "shirt": "clothes",
    "coat": "clothes",
    "shoes": "clothes",
    "tea": "food",
    "honey": "food",
    "soap": "care",
    "cream": "care",
    "novel": "books",
    "atlas": "books",
    "robot": "toys",
    "puzzle": "toys",
}
"""Name of a product -> its category."""
CATEGORIES = tuple(dict.fromkeys(GOODS.values()))
COLOURS = ("blue", "red", "green", "black")
STATUSES = ("placed", "shipped", "delivered")
DAYS = range(1, 15)
"""Days ahead that the workshop's calendar holds."""
_CUSTOMERS, _ORDERS, _BOOKINGS = 24, 80, 24

SCHEMA = """
CREATE TABLE customers(id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT NOT NULL, pin INTEGER NOT NULL);
CREATE TABLE items(id INTEGER PRIMARY KEY, name TEXT NOT NULL, colour TEXT NOT NULL, category TEXT NOT NULL,
    price INTEGER NOT NULL);
CREATE TABLE stock(item INTEGER PRIMARY KEY REFERENCES items(id), count INTEGER NOT NULL CHECK (count >= 0));
CREATE TABLE orders(id INTEGER PRIMARY KEY, customer INTEGER NOT NULL REFERENCES customers(id), status TEXT NOT NULL,
    city TEXT NOT NULL, promised TEXT NOT NULL, delivered TEXT);
CREATE TABLE order_items("order" INTEGER PRIMARY KEY REFERENCES orders(id), item INTEGER NOT NULL REFERENCES items(id),
    count INTEGER NOT NULL);
CREATE TABLE payments("order" INTEGER PRIMARY KEY REFERENCES orders(id), method TEXT NOT NULL, amount INTEGER NOT NULL,
    refunded INTEGER NOT NULL DEFAULT 0 CHECK (refunded BETWEEN 0 AND amount));
CREATE TABLE credits(id INTEGER PRIMARY KEY, customer INTEGER NOT NULL REFERENCES customers(id),
    amount INTEGER NOT NULL);
CREATE TABLE bookings(id INTEGER PRIMARY KEY, customer INTEGER NOT NULL REFERENCES customers(id), status TEXT NOT NULL,
    day TEXT NOT NULL);
CREATE TABLE calendar(day TEXT PRIMARY KEY, free INTEGER NOT NULL CHECK (free >= 0));
CREATE TABLE contact(id INTEGER PRIMARY KEY CHECK (id = 1), verified INTEGER REFERENCES customers(id),
    wrong_pins INTEGER NOT NULL DEFAULT 0, answered INTEGER NOT NULL DEFAULT 0);
CREATE TABLE lookups(kind TEXT NOT NULL, subject TEXT NOT NULL, PRIMARY KEY (kind, subject));
"""
RECORDS = ("bookings", "calendar", "credits", "customers", "items", "order_items", "orders", "payments", "stock")
"""The tables that are the shop's own; the others hold how far this conversation is: who was verified, what was
answered, looked up and asked."""


@dataclass(frozen=True)
class Customer:
    """One account."""

    id: int
    name: str
    city: str
    pin: int


@dataclass(frozen=True)
class Item:
    """One variant of a product."""

    id: int
    name: str
    colour: str
    category: str
    price: int
    stock: int


@dataclass(frozen=True)
class Order:
    """One order with its line and its payment. `days`: since delivery, or None; `late`: days after the promised one."""

    id: int
    customer: int
    item: int
    count: int
    status: str
    city: str
    days: int | None
    late: int
    total: int
    method: str | None
    """`card` or `gift`; None: not paid yet."""


@dataclass(frozen=True)
class Booking:
    """An appointment in the workshop, `ahead` days from today."""

    id: int
    customer: int
    ahead: int


@dataclass(frozen=True)
class Shop:
    """All rows of a shop, by id; `free` is how many appointments a day ahead still takes."""

    number: int
    customers: dict[int, Customer]
    items: dict[int, Item]
    orders: dict[int, Order]
    bookings: dict[int, Booking]
    free: dict[int, int]


@lru_cache(maxsize=256)
def make_shop(number: int) -> Shop:
    """Draw a shop."""
    rng = random.Random(f"shop {number}")
    # Some names are taken twice, by people in different cities.
    names = rng.sample(NAMES * 2, _CUSTOMERS)
    ids = rng.sample(range(10, 100), _CUSTOMERS)
    cities: dict[str, list[str]] = {name: rng.sample(CITIES, len(CITIES)) for name in NAMES}
    customers = {
        i: Customer(i, name, cities[name].pop(), rng.randrange(10, 100)) for i, name in zip(ids, names, strict=True)
    }
    items: dict[int, Item] = {}
    numbers = iter(rng.sample(range(10, 100), len(GOODS) * 3))
    for name, category in GOODS.items():
        price = rng.choice((5, 10, 15, 20, 25, 30, 40, 60))
        for colour in rng.sample(COLOURS, 3):
            i = next(numbers)
            items[i] = Item(i, name, colour, category, price, rng.choice((0, 0, 1, 2, 3, 5, 8)))
    orders: dict[int, Order] = {}
    for i in rng.sample(range(10, 100), _ORDERS):
        item = rng.choice(list(items.values()))
        customer = rng.choice(ids)
        count = rng.choice((1, 1, 1, 2))
        status = rng.choice(("placed", "shipped", "delivered", "delivered", "delivered"))
        delivered = status == "delivered"
        orders[i] = Order(
            id=i,
            customer=customer,
            item=item.id,
            count=count,
            status=status,
            city=customers[customer].city,
            days=rng.choice((*range(1, 50), 6, 8, 13, 14, 15, 16, 20, 22, 29, 30, 31, 32)) if delivered else None,
            late=rng.choice((0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8)) if delivered else 0,
            total=item.price * count,
            method=rng.choice(("card", "card", "card", "gift")) if delivered else rng.choice(("card", "gift", None)),
        )
    free = {day: rng.choice((0, 0, 1, 2)) for day in DAYS}
    bookings = {
        i: Booking(i, rng.choice(ids), rng.choice((1, 1, 2, 2, 3, 3, 4, 5, 6, 8)))
        for i in rng.sample(range(10, 100), _BOOKINGS)
    }
    return Shop(number, customers, items, orders, bookings, free)


def date_of(days: int) -> str:
    """Write the date so many days from today; negative ones lie in the past."""
    return (TODAY + datetime.timedelta(days=days)).isoformat()


def days_until(date: str) -> int:
    """Return how many days from today a date lies."""
    return (datetime.date.fromisoformat(date) - TODAY).days


@lru_cache(maxsize=256)
def prepare_shop(number: int) -> PreparedDatabase:
    """Write a shop's database, once."""
    shop = make_shop(number)

    def fill(connection: sqlite3.Connection) -> None:
        connection.executescript(SCHEMA)
        put = connection.executemany
        put(
            "INSERT INTO customers VALUES (?, ?, ?, ?)",
            [(c.id, c.name, c.city, c.pin) for c in shop.customers.values()],
        )
        items = shop.items.values()
        put("INSERT INTO items VALUES (?, ?, ?, ?, ?)", [(i.id, i.name, i.colour, i.category, i.price) for i in items])
        put("INSERT INTO stock VALUES (?, ?)", [(i.id, i.stock) for i in items])
        orders = shop.orders.values()
        put("INSERT INTO orders VALUES (?, ?, ?, ?, ?, ?)", [_order_row(o) for o in orders])
        put("INSERT INTO order_items VALUES (?, ?, ?)", [(o.id, o.item, o.count) for o in orders])
        put("INSERT INTO payments VALUES (?, ?, ?, 0)", [(o.id, o.method, o.total) for o in orders if o.method])
        put(
            "INSERT INTO bookings VALUES (?, ?, 'booked', ?)",
            [(b.id, b.customer, date_of(b.ahead)) for b in shop.bookings.values()],
        )
        put("INSERT INTO calendar VALUES (?, ?)", [(date_of(day), free) for day, free in shop.free.items()])
        connection.execute("INSERT INTO contact(id) VALUES (1)")

    return PreparedDatabase.build(fill)


def _order_row(order: Order) -> tuple[object, ...]:
    if order.days is None:
        return order.id, order.customer, order.status, order.city, date_of(3), None
    return (
        order.id,
        order.customer,
        order.status,
        order.city,
        date_of(-order.days - order.late),
        date_of(-order.days),
    )
