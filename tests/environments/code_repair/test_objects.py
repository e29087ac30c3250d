"""Values between tests and program: what arrives, what is shared, and that nothing of the sender's making does."""

import collections
import enum
import json
import math
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rtmc.environments.code_repair.asserts.objects import Packer, UnsendableError, classes_of, unpack


class Node:
    """A class that both sides have."""

    def __init__(self, value=None, after=None):
        self.value = value
        self.after = after


NAMES = {Node: "node.Node"}
CLASSES = {"node.Node": Node}


def sent(*values, known=()):
    """What arrives, through real JSON; `known` pairs of the sender's and the receiver's objects."""
    ours, theirs = zip(*known, strict=True) if known else ((), ())
    message = json.loads(json.dumps(Packer(NAMES, ours).pack(values)))
    return unpack(message, CLASSES, theirs)[0]


hashable = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
values = st.recursive(
    hashable,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.sets(hashable, max_size=3)
    ),
    max_leaves=20,
)


def kinds(value):
    """The value with the types of everything in it."""
    if isinstance(value, list | tuple):
        return type(value), [kinds(item) for item in value]
    if isinstance(value, dict):
        return dict, [(kinds(key), kinds(item)) for key, item in value.items()]
    return type(value), value


@given(values)
def test_plain_values_arrive_as_they_are(value):
    [arrived] = sent(value)
    assert arrived == value and kinds(arrived) == kinds(value)


def test_floats_that_are_no_numbers_arrive():
    nan, inf, zero = sent(math.nan, -math.inf, -0.0)
    assert math.isnan(nan) and inf == -math.inf and math.copysign(1, zero) == -1


def test_what_is_shared_or_circular_stays_so():
    inner = [1]
    chain = Node(1, Node(2))
    chain.after.after = chain
    one, two, ring, [again] = sent(inner, {"x": inner}, chain, [chain])
    assert two["x"] is one and again is ring
    assert ring.value == 1 and ring.after.value == 2 and ring.after.after is ring


def test_very_long_chains_arrive():
    chain = None
    for number in range(5000):
        chain = Node(number, chain)
    [arrived] = sent(chain)
    count = 0
    while arrived:
        count, arrived = count + 1, arrived.after
    assert count == 5000


def test_nodes_as_keys():
    one, two = Node("a"), Node("b")
    table, first = sent({(one, two): 3, one: 4}, one)
    [pair] = [key for key in table if isinstance(key, tuple)]
    assert pair[0] is first and table[pair] == 3 and table[first] == 4


def test_known_objects_are_filled_anew():
    """As if the call had been made in the receiver's own process: its own lists and nodes change, and stay its own."""
    packer = Packer(NAMES)
    numbers, node = [3, 1, 2], Node(5)
    question = json.loads(json.dumps(packer.pack([numbers, node])))
    (theirs, theirnode), objects = unpack(question, CLASSES)
    theirs.sort()
    theirnode.after = Node(6, theirnode)
    answer = json.loads(json.dumps(Packer(NAMES, objects).pack([theirnode.after])))
    [new], _ = unpack(answer, CLASSES, packer.objects)
    assert numbers == [1, 2, 3] and node.after is new and new.after is node and new.value == 6


class Lie(int):
    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    __hash__ = int.__hash__


class LyingList(list):
    def __eq__(self, other):
        return True

    def __iter__(self):
        return iter([9])

    __hash__ = None


class LyingText(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


Colour = enum.IntEnum("Colour", "RED GREEN")
Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "arrives"),
    [
        (Lie(3), 3),
        (LyingList([1, 2]), [1, 2]),
        (LyingText("abc"), "abc"),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (collections.OrderedDict(a=1), {"a": 1}),
        (collections.defaultdict(int, a=1), {"a": 1}),
        (Colour.GREEN, 2),
        (Point(1, 2), (1, 2)),
        (True, True),
        (type("F", (float,), {"__eq__": lambda *a: True, "__hash__": float.__hash__})(0.5), 0.5),
        (type("S", (set,), {"__eq__": lambda *a: True, "__hash__": None})([1]), {1}),
        (type("D", (dict,), {"items": lambda self: [], "__hash__": None})(a=1), {"a": 1}),
    ],
)
def test_subclasses_arrive_as_the_built_in_value_they_hold(value, arrives):
    [arrived] = sent(value)
    plain = {bool, int, float, str, list, tuple, dict, set}
    assert type(arrived) in plain and type(arrived) is type(arrives) and arrived == arrives
    assert type(arrived).__eq__ is type(arrives).__eq__


def test_iterators_arrive_as_what_they_give():
    squares, pairs = sent((n * n for n in range(4)), zip([1, 2], "ab", strict=True))
    assert list(squares) == [0, 1, 4, 9] and list(pairs) == [(1, "a"), (2, "b")]


class Any:
    def __eq__(self, other):
        return True

    __hash__ = None


def endless():
    while True:
        yield 1


def deep():
    value = ()
    for _ in range(200):
        value = (value,)
    return value


@pytest.mark.parametrize("value", [Any(), [Any()], {"a": Any()}, object(), len, print, deep(), endless(), range(3), 1j])
def test_what_is_no_plain_data_does_not_travel(value):
    with pytest.raises(UnsendableError):
        sent(value)


MALFORMED = [
    None, 3, "x", [], {}, {"objects": []}, {"values": []}, {"objects": 3, "values": []},
    {"objects": [], "values": [{"ref": 0}]}, {"objects": [["list", []]], "values": [{"ref": -1}]},
    {"objects": [["list", []]], "values": [{"ref": True}]}, {"objects": [["list", []]], "values": [{"ref": 9}]},
    {"objects": [["list", 3]], "values": []}, {"objects": [["dict", [[1]]]], "values": []},
    {"objects": [["dict", [[{"ref": 0}, 1]]]], "values": []}, {"objects": [["set", [{"ref": 0}]]], "values": []},
    {"objects": [["builtins.object", []]], "values": []}, {"objects": [["type", []]], "values": []},
    {"objects": [["node.Node", [[1, 2]]]], "values": []}, {"objects": [[["list"], []]], "values": []},
    {"objects": [["node.Node", [["a", {"ref": 5}]]]], "values": []}, {"objects": [["list", [[1]]]], "values": []},
    {"objects": [], "values": [1.5]}, {"objects": [], "values": [[1]]}, {"objects": [], "values": [{}]},
    {"objects": [], "values": [{"float": "x"}]}, {"objects": [], "values": [{"float": "1" * 50}]},
    {"objects": [], "values": [{"float": 3}]}, {"objects": [], "values": [{"bytes": "zz"}]},
    {"objects": [], "values": [{"tuple": 3}]}, {"objects": [], "values": [{"frozenset": [{"tuple": [{"ref": 0}]}]}]},
    {"objects": [], "values": [{"lambda": "x"}]}, {"objects": [], "values": [{"tuple": [], "ref": 0}]},
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MALFORMED)))
def test_whatever_an_untrusted_sender_writes_is_refused(number):
    with pytest.raises(UnsendableError):
        unpack(MALFORMED[number], CLASSES)


def test_depth_of_what_arrives_is_limited():
    value = 1
    for _ in range(900):
        value = {"tuple": [value]}
    with pytest.raises(UnsendableError):
        unpack({"objects": [], "values": [value]}, CLASSES)


def test_known_objects_keep_their_kind():
    with pytest.raises(UnsendableError, match="object 0"):
        unpack({"objects": [["dict", []]], "values": []}, CLASSES, [[1]])
    with pytest.raises(UnsendableError, match="missing"):
        unpack({"objects": [], "values": []}, CLASSES, [[1]])


def test_attributes_cannot_change_what_an_instance_is():
    message = {"objects": [["node.Node", [["__class__", 3], ["value", 1], ["__eq__", True]]]], "values": [{"ref": 0}]}
    [arrived], _ = unpack(message, CLASSES)
    assert type(arrived) is Node and arrived != Node() and arrived.value == 1


def test_classes_of_a_module_are_its_own():
    module = types.ModuleType("shapes")
    exec("from collections import Counter\nclass Square:\n    pass\nalias = int", module.__dict__)
    assert list(classes_of(module)) == ["shapes.Square"]
