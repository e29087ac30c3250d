"""Calls as words: what is read, what is refused, and that rendering and reading are inverse."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rtmc.calls import Call, TextProtocol, WordCallProtocol
from agentgym_rtmc.environments.checks import MALFORMED
from agentgym_rtmc.errors import ProtocolError

TOOLS = {"send": ("order", "city", "note"), "look": ()}
PROTOCOL: TextProtocol = WordCallProtocol(TOOLS)


def send(**arguments):
    return Call(name="send", arguments=arguments)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("send 45 Bonn", [send(order=45, city="Bonn")]),
        ("  send\t45   Bonn \r\n", [send(order=45, city="Bonn")]),
        ('send 45 "New York"', [send(order=45, city="New York")]),
        ('send "45"', [send(order="45")]),
        ("send 045 4.5 true", [send(order="045", city=4.5, note=True)]),
        ("send 45 note=hi", [send(order=45, note="hi")]),
        ("send note=[1,2] 45", [send(order=45, note=[1, 2])]),
        ("send a=b", [send(order="a=b")]),
        ('send {"a": 1} null', [send(order={"a": 1}, city=None)]),
        ("send NaN -0 1e3", [send(order="NaN", city=0, note=1000.0)]),
        ("look\n\nlook\n", [Call(name="look"), Call(name="look")]),
        ("```\nlook\n```", [Call(name="look")]),
        ("<think>send 1</think>look", [Call(name="look")]),
        ("send </think>", [send(order="</think>")]),
        ("send 字 é", [send(order="字", city="é")]),
        ('<tool_call>{"name": "other", "arguments": {"a": 1}}</tool_call>', [Call(name="other", arguments={"a": 1})]),
    ],
)
def test_what_is_read(text, calls):
    assert PROTOCOL.parse(text) == tuple(calls)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no call"),
        ("\n \n", "no call"),
        ("sent 45", "did you mean 'send'"),
        ("look 1", "takes 0 arguments"),
        ("send 1 2 3 4", "send order city note"),
        ("send 1 order=2", "given twice"),
        ('send "never closed', "JSON value"),
        ('send "a"b', "blank is missing"),
        ("send [1, 2", "JSON value"),
        ("<think>send 1", "never closed"),
        ("look\n" * 17, "17 lines"),
        ("send " + "a" * 9000, "limit is 8000"),
        ('send "\\ud800"', "surrogate"),
        ("send " + "[" * 70 + "]" * 70, "nested"),
    ],
)
def test_what_is_refused(text, complaint):
    with pytest.raises(ProtocolError, match=complaint):
        PROTOCOL.parse(text)


@pytest.mark.parametrize("text", [text for text in MALFORMED if '"no_such_tool"' not in text])
def test_malformed_texts_are_refused(text):
    with pytest.raises(ProtocolError):
        PROTOCOL.parse(text)


def test_what_cannot_be_rendered():
    for call in (Call(name="sent"), send(ordr=1)):
        with pytest.raises(ProtocolError, match="did you mean"):
            PROTOCOL.render(call)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=("Cs",)))
    | st.from_regex(r"[\w=\"\[{-]{1,6}", fullmatch=True),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(TOOLS["send"]), VALUES))
def test_rendering_and_reading_are_inverse(arguments):
    call = Call(name="send", arguments={name: arguments[name] for name in TOOLS["send"] if name in arguments})
    text = PROTOCOL.render(call)
    assert "\n" not in text and PROTOCOL.parse(text) == (call,)


@given(st.text())
def test_nothing_but_protocol_errors(text):
    for given_text in (text, f"send {text}"):
        try:
            assert PROTOCOL.parse(given_text)
        except ProtocolError as error:
            assert str(error)


def test_instructions_name_every_tool():
    assert "send order city note" in PROTOCOL.instructions() and PROTOCOL.name == "word_call"
