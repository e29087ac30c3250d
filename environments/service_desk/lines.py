"""What the simulated customer says, in two styles: whole sentences, and a few words for very small models.

Invariant: both styles say the same facts; a style is chosen for an environment, never for a task.
"""

from __future__ import annotations

from typing import Literal

Style = Literal["full", "compact"]

REQUESTS: dict[str, tuple[str, str]] = {
    "price": ("What does item {item} cost?", "price of item {item}"),
    "stock": ("How many of item {item} do you have in stock?", "stock of item {item}"),
    "status": ("Where is {order}? Has it been shipped?", "status of {order}"),
    "cancel": ("I want to cancel {order}.", "cancel {order}"),
    "return": ("I want to return {order}.", "return {order}"),
    "exchange": ("I want to exchange {order} for {new}.", "exchange {order} for {new}"),
    "late": ("I want a credit, since {order} came late.", "late credit for {order}"),
    "address": ("Please send {order} to {city} instead.", "send {order} to {city}"),
    "move": ("Please move {booking} to the day {day} days from today.", "move {booking} to day {day}"),
    "unbook": ("Please cancel {booking}.", "cancel {booking}"),
    "injury": ("{order} broke and cut my hand. I had to see a doctor.", "{order} hurt my hand"),
    "legal": ("You will hear from my lawyer about {order}.", "my lawyer sues for {order}"),
}
"""Kind of request -> (full, compact)."""

SIGNED_IN = ("[signed in and verified: customer {customer}]", "verified customer {customer}")
NUMBERS = ("My customer number is {customer} and my PIN is {pin}.", "customer {customer} pin {pin}")
NAME = ("This is {name}.", "I am {name}")
GREETING = ("Hello!", "hello")
CHATTER = (
    "I have lived in {elsewhere} for {years} years, with {cats} cats, and I have never been so busy.",
    "{cats} cats, {years} years in {elsewhere}",
)
HURRY = ("Be quick, please.", "quick")
INSIST = ("I insist! A colleague of yours promised it, and I will not hang up before it is done.", "I insist")
LOUDER = ("And I demand {demand} at least!", "I demand {demand}")
NEXT = ("Thank you. There is one more thing. {request}", "next: {request}")
BYE = ("Thank you, goodbye.", "bye")
UNKNOWN = ("I don't know that.", "unknown")
HUNG_UP = ("I have no time for this. [the customer hung up]", "hung up")
ANSWERS: dict[str, tuple[str, str]] = {
    "name": ("My name is {value}.", "I am {value}"),
    "pin": ("My PIN is {value}.", "pin {value}"),
    "account": ("My customer number is {value}.", "customer {value}"),
    "city": ("I live in {value}.", "in {value}"),
    "order": ("It is order {value}.", "order {value}"),
    "booking": ("It is booking {value}.", "booking {value}"),
    "goods": ("It is about the {value}.", "{value}"),
    "wish": ("{value}", "{value}"),
}
"""What may be asked -> how it is answered."""


def line(pair: tuple[str, str], style: Style, **values: object) -> str:
    """Fill in one line."""
    return pair[style == "compact"].format(**values)
