"""Typed tools: a function becomes a schema, and a wrong call is answered so that an agent can mend it."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from agentgym_rtmc.calls import Call, Tool, Toolbox
from agentgym_rtmc.calls.tools import render_result, render_results
from agentgym_rtmc.errors import ProtocolError, RegistrationError, ToolError


class Address(BaseModel):
    street: str
    number: int = 1


class Desk:
    """A small desk whose tools are bound methods."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def refund(
        self,
        order: str,
        amount: float,
        reason: Literal["broken", "late"] = "late",
        copy: bool = False,
        notes: list[str] | None = None,
    ) -> str:
        """Pay an order back.

        At most its price.

        Args:
            order: The order's number,
                as printed on the bill.
            amount (float): In euros.
            reason: Why.

        Returns:
            A receipt.
        """
        if order == "unknown":
            raise ToolError("no such order")
        self.log.append(f"{order} {amount} {reason} {copy} {notes}")
        return f"refunded {amount:.2f}"

    def move(
        self, to: Address, tags: Annotated[list[int], Field(max_length=3, description="Numbers.")]
    ) -> dict[str, Any]:
        self.log.append(f"{to} {tags}")
        return {"to": to, "tags": tags}


def test_the_schema_is_openais_function_form() -> None:
    schema = Tool(Desk().refund).schema
    assert schema == {
        "type": "function",
        "function": {
            "name": "refund",
            "description": "Pay an order back.\n\nAt most its price.",
            "parameters": {
                "type": "object",
                "additionalProperties": False,
                "required": ["order", "amount"],
                "properties": {
                    "order": {"type": "string", "description": "The order's number, as printed on the bill."},
                    "amount": {"type": "number", "description": "In euros."},
                    "reason": {"type": "string", "enum": ["broken", "late"], "default": "late", "description": "Why."},
                    "copy": {"type": "boolean", "default": False},
                    "notes": {
                        "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                        "default": None,
                    },
                },
            },
        },
    }


def test_the_usage_line_names_every_argument() -> None:
    assert Tool(Desk().refund).usage == (
        "refund(order: string, amount: number, reason?: 'broken' | 'late', copy?: boolean, "
        "notes?: array of string | null)"
    )
    assert Tool(Desk().move).usage == "move(to: Address, tags: array of integer)"


def test_descriptions_may_stand_in_the_annotation() -> None:
    properties = Tool(Desk().move).parameters["properties"]
    assert isinstance(properties, dict)
    assert properties["tags"] == {
        "type": "array",
        "items": {"type": "integer"},
        "maxItems": 3,
        "description": "Numbers.",
    }


def test_values_are_converted_and_defaults_filled() -> None:
    desk = Desk()
    results = Toolbox([desk.refund, desk.move]).run(
        [
            Call(name="refund", arguments={"order": "7", "amount": "2.5", "copy": True}),
            Call(name="move", arguments={"to": {"street": "Mill Lane"}, "tags": [1, 2]}),
        ]
    )
    assert desk.log == ["7 2.5 late True None", "street='Mill Lane' number=1 [1, 2]"]
    assert [result.text for result in results] == [
        "refunded 2.50",
        '{"to":{"street":"Mill Lane","number":1},"tags":[1,2]}',
    ]
    assert render_results(results) == (
        '[1 refund]\nrefunded 2.50\n[2 move]\n{"to":{"street":"Mill Lane","number":1},"tags":[1,2]}'
    )


@pytest.mark.parametrize(
    ("name", "arguments", "complaint"),
    [
        ("refnd", {}, "there is no tool 'refnd'; did you mean 'refund'?"),
        ("fly", {}, "there is no tool 'fly'; known: move, refund"),
        ("refund", {"order": "7"}, "refund: argument 'amount' is missing. Usage: refund(order: string, amount: number"),
        (
            "refund",
            {"order": "7", "amout": 3},
            "'amount' is missing; there is no argument 'amout'; did you mean 'amount'?",
        ),
        ("refund", {"order": "7", "amount": "lots"}, "argument 'amount' should be a valid number"),
        ("refund", {"order": 7, "amount": 1}, "argument 'order' should be a valid string, got 7"),
        ("refund", {"order": "7", "amount": 1, "reason": "ugly"}, "should be 'broken' or 'late', got 'ugly'"),
        ("move", {"to": {"street": "A", "number": "x"}, "tags": []}, "argument 'to.number' should be a valid integer"),
        ("move", {"to": {"street": "A"}, "tags": [1, "b"]}, "argument 'tags.1' should be a valid integer"),
        ("move", {"to": {"street": "A"}, "tags": [1] * 9}, "argument 'tags' "),
        ("refund", {"order": "7", "amount": 1, **{f"x{i}": 0 for i in range(9)}}, "; and 5 more. Usage"),
    ],
)
def test_a_wrong_call_is_answered_and_nothing_runs(name: str, arguments: dict[str, Any], complaint: str) -> None:
    desk = Desk()
    good = Call(name="refund", arguments={"order": "1", "amount": 1})
    with pytest.raises(ProtocolError) as caught:
        Toolbox([desk.refund, desk.move]).run([good, Call(name=name, arguments=arguments)])
    assert complaint in str(caught.value)
    assert desk.log == []


def test_a_tool_that_refuses_is_a_result() -> None:
    (result,) = Toolbox([Desk().refund]).run([Call(name="refund", arguments={"order": "unknown", "amount": 1})])
    assert (result.ok, result.text) == (False, "error: no such order")


def test_a_defect_of_a_tool_is_not_hidden() -> None:
    def divide(by: int) -> float:
        return 1 / by

    with pytest.raises(ZeroDivisionError):
        Toolbox([divide]).run([Call(name="divide", arguments={"by": 0})])


def test_functions_that_cannot_be_offered() -> None:
    def untyped(a, b: int) -> None: ...  # type: ignore[no-untyped-def]

    def starred(*args: int) -> None: ...

    def opaque(a: Desk) -> None: ...

    for function, complaint in ((untyped, "'a' has no type"), (starred, "by name"), (opaque, "cannot be offered")):
        with pytest.raises(RegistrationError, match=complaint):
            Tool(function)
    with pytest.raises(RegistrationError, match="two tools are named 'refund'"):
        Toolbox([Desk().refund, Desk().refund])


def test_a_tool_without_arguments() -> None:
    def look() -> None:
        """Look around."""

    box = Toolbox([Tool(look, name="look_around")])
    assert render_results(box.run([Call(name="look_around")])) == "done"
    assert box.tools["look_around"].usage == "look_around()"
    with pytest.raises(ProtocolError, match="there is no argument 'far'"):
        box.run([Call(name="look_around", arguments={"far": True})])


def test_results_are_rendered_as_json() -> None:
    @dataclass
    class Point:
        x: int

    assert render_result([Point(1), {"é": None}]) == '[{"x":1},{"é":null}]'
    assert render_result("as it is\n") == "as it is\n"


def test_the_instructions_hold_every_schema() -> None:
    box = Toolbox([Desk().refund, Desk().move])
    lines = box.instructions().splitlines()
    assert lines[1] == "<tools>"
    assert lines[-1] == "</tools>"
    assert len(lines) == 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(["order", "amount", "reason", "copy", "notes", "to", "tags", "x"]) | st.text(max_size=8)


@given(st.sampled_from(["refund", "move", "other"]), st.dictionaries(NAMES, JSON, max_size=5))
def test_any_call_is_answered_or_refused(name: str, arguments: dict[str, Any]) -> None:
    desk = Desk()
    try:
        results = Toolbox([desk.refund, desk.move]).run([Call(name=name, arguments=arguments)])
    except ProtocolError as error:
        assert len(str(error)) < 1500
        assert desk.log == []
    else:
        assert len(results) == 1
