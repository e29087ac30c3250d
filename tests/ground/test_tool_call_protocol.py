"""Tool calls in tags: what open models emit is read, everything else is refused with its place."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_rtmc.calls import Call, TextProtocol
from agentgym_rtmc.calls.shell import ShellProtocol
from agentgym_rtmc.calls.tool_call import ToolCallProtocol
from agentgym_rtmc.errors import ProtocolError

PROTOCOL = ToolCallProtocol()
LOOK = Call(name="look", arguments={"n": 3, "path": "a b"})
BODY = '{"name": "look", "arguments": {"n": 3, "path": "a b"}}'


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n{BODY}\n</tool_call>",
        f"<tool_call>{BODY}</tool_call>",
        f"I look first.\n<tool_call>{BODY}</tool_call>\nAnd then I think.",
        f"<tool_call>\n{BODY}\n",
        f"<tool_call>\n{BODY}\n</tool_",
        f"<tool_call>\n```json\n{BODY}\n```\n</tool_call>",
        f"<tool_call>\n```\n{BODY}\n```",
        f"<tool_call>[{BODY}]</tool_call>",
        f"<think>I might <tool_call>maybe</tool_call>.</think>\n<tool_call>{BODY}</tool_call>",
        BODY,
        f"  {BODY}\n",
        f"```json\n{BODY}\n```",
        '<tool_call>{"name": "look", "parameters": {"n": 3, "path": "a b"}}</tool_call>',
        '<tool_call>{"arguments": {"n": 3, "path": "a b"}, "name": "look", "id": "c1"}</tool_call>',
        '<tool_call>{"name": "look", "arguments": "{\\"n\\": 3, \\"path\\": \\"a b\\"}"}</tool_call>',
        '<tool_call>{"type": "function", "function": ' + BODY + "}</tool_call>",
        "<tool_call>{'name': 'look', 'arguments': {'n': 3, 'path': 'a b'}}</tool_call>",
        '<tool_call>{"name": "look", "arguments": {"n": 3, "path": "a b",},}</tool_call>',
        '<tool_call>\r\n{"name": "look",\r\n "arguments": {"n": 3, "path": "a b"}}\r\n</tool_call>\r\n',
    ],
)
def test_what_is_read(text: str) -> None:
    assert PROTOCOL.parse(text) == (LOOK,)


def test_several_calls_keep_their_order() -> None:
    text = "\n".join(f'<tool_call>{{"name": "t{i}"}}</tool_call>' for i in range(3))
    assert [call.name for call in PROTOCOL.parse(text)] == ["t0", "t1", "t2"]


def test_a_missing_closing_tag_before_the_next_call() -> None:
    assert PROTOCOL.parse(f"<tool_call>{BODY}\n<tool_call>{BODY}</tool_call>") == (LOOK, LOOK)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("{'name': 'x', 'arguments': {'a': True, 'b': None,}}", {"a": True, "b": None}),
        ('{"name": "x", "arguments": {"a": [1, 2,], "b": ",}"},}', {"a": [1, 2], "b": ",}"}),
        ('{"name": "x", "arguments": {"a": true, "b": [null,],}}', {"a": True, "b": [None]}),
        ('{"name": "x", "arguments": {"a": "two\nlines"}}', {"a": "two\nlines"}),
        ('{"name": "x", "arguments": {"a": "</tool_call>"}}', {"a": "</tool_call>"}),
        ('{"name": "x", "arguments": ""}', {}),
        ('{"name": "x", "arguments": null}', {}),
        ('{"name": "x"}', {}),
    ],
)
def test_loose_json(written: str, value: dict[str, object]) -> None:
    (call,) = PROTOCOL.parse(f"<tool_call>{written}</tool_call>")
    assert call.arguments == value


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no tool call; write <tool_call>"),
        ("I would look around.", "no tool call"),
        ('{"name": "look"} is what I would say', "no tool call"),
        ("<tool_call></tool_call>", "the tool call at line 1 column 12 is empty"),
        ("look\n  <tool_call>", "the tool call at line 2 column 14 is empty"),
        ('<tool_call>\n{"name": "look", "arguments": {"a" 3}}\n</tool_call>', "':' delimiter at line 2 column 36"),
        ('<tool_call>{"name": "look"', "not valid JSON: Expecting ',' delimiter at line 1 column 27"),
        (f"<tool_call>{BODY}}}</tool_call>", "text follows the JSON object at line 1 column 66, before </tool_call>"),
        (f"{BODY}</tool_call>", "</tool_call> at line 1 column 55 has no <tool_call> before it"),
        ("<tool_call>3</tool_call>", "line 1 column 1 is a JSON number, not an object"),
        ("<tool_call>[[]]</tool_call>", "is a JSON array, not an object"),
        ('<tool_call>{"arguments": {}}</tool_call>', 'has no "name"'),
        ('<tool_call>{"name": 3}</tool_call>', 'has no "name"'),
        ('<tool_call>{"name": "x", "argumets": {}}</tool_call>', "unknown key 'argumets'; did you mean 'arguments'"),
        ('<tool_call>{"name": "x", "arguments": [1]}</tool_call>', "are a JSON array, not an object"),
        ('<tool_call>{"name": "x", "arguments": "go north"}</tool_call>', "are a string, and that is not JSON"),
        ('<tool_call>{"name": "x", "arguments": {"a": NaN}}</tool_call>', "NaN is not JSON"),
        ('<tool_call>{"name": "x", "arguments": {"a": 1e999}}</tool_call>', "inf is not JSON; use a finite"),
        ('<tool_call>{"name": "x", "arguments": {"a": "\\ud800"}}</tool_call>', "holds a lone surrogate"),
        ('<tool_call>{"name": "x", "arguments": {"\\ud800": 1}}</tool_call>', "holds a lone surrogate"),
        ("<tool_call>{'name': 'x', 'arguments': {1: 2}}</tool_call>", "not plain JSON"),
        ("<tool_call>{'name': 'x', 'arguments': {'a': {3}}}</tool_call>", "not plain JSON"),
        ("<tool_call>__import__('os').getcwd()</tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "x", "arguments": {"a": ' + "[" * 100 + "]" * 100 + "}}</tool_call>", "64 deep"),
        ("<tool_call>" + "[" * 50_000, "not (valid|readable) JSON"),
        ("<tool_call>" + "-" * 50_000 + "1</tool_call>", "not valid JSON"),
        ('<tool_call>{"name": "x", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>", "not readable JSON"),
        ("<tool_call>" * 20, "JSON|empty"),
        ('<tool_call>{"name": "x"}</tool_call>' * 17, "17 tool calls in one turn, the limit is 16"),
        ("<tool_call>" + " " * 70_000, "the limit is 64000"),
        (f"<think>perhaps <tool_call>{BODY}</tool_call>", "never closed"),
    ],
)
def test_what_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        PROTOCOL.parse(text)


def test_complaints_stay_short_whatever_is_sent() -> None:
    for body in ('{"name": "x", "%s": 1}', '{"name": "x", "arguments": {}, "arguments": "%s"}', '{"name": "%s" 1}'):
        with pytest.raises(ProtocolError) as caught:
            PROTOCOL.parse(f"<tool_call>{body.replace('%s', 'y' * 20_000)}</tool_call>")
        assert len(str(caught.value)) < 400


def test_the_instructions_show_a_call_that_parses() -> None:
    assert PROTOCOL.parse(PROTOCOL.instructions().partition("like")[2]) == (
        Call(name="tool_name", arguments={"argument": "value"}),
    )


def test_both_protocols_keep_the_contract() -> None:
    protocols: list[TextProtocol] = [PROTOCOL, ShellProtocol()]
    for protocol in protocols:
        assert protocol.name
        assert all(protocol.stop)


TAGS = ["<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>", "```", '"', "\\", "\n", "{", "}"]
TEXTS = st.one_of(st.text(), st.lists(st.sampled_from(TAGS)).map("".join))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
CALLS = st.builds(
    Call, name=TEXTS.filter(lambda name: bool(name.strip())), arguments=st.dictionaries(TEXTS, JSON, max_size=4)
)


@settings(max_examples=60)
@given(st.lists(CALLS, min_size=1, max_size=3))
def test_round_trip(calls: list[Call]) -> None:
    assert PROTOCOL.parse("\n".join(map(PROTOCOL.render, calls))) == tuple(calls)


@given(CALLS)
def test_a_rendered_call_holds_no_stop_string_or_tag_of_its_own(call: Call) -> None:
    text = PROTOCOL.render(call)
    assert PROTOCOL.stop[0] not in text
    assert text.count("<tool_call>") == text.count("</tool_call>") == 1


@given(CALLS)
def test_plain_json_is_read_as_a_careless_model_would_write_it(call: Call) -> None:
    loose = repr(call.model_dump())
    assert PROTOCOL.parse(f"<tool_call>{json.dumps(call.model_dump())}")[0] == call
    if "<" not in loose and "`" not in loose:
        assert PROTOCOL.parse(f"<tool_call>{loose}</tool_call>")[0] == call


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
@given(TEXTS, CALLS, st.data())
def test_whatever_is_sent_is_read_or_refused(text: str, call: Call, data: st.DataObject) -> None:
    whole = PROTOCOL.render(call)
    at = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(at, len(whole)))
    for sent in (text, f"<tool_call>{text}", whole[:at] + text + whole[end:]):
        try:
            assert PROTOCOL.parse(sent)
        except ProtocolError as error:
            assert 0 < len(str(error)) < 2000
