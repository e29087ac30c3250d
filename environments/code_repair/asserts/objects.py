"""Values that travel between the process of the tests and the process of the program, as JSON. Runs inside sandboxes.

Invariants: standard library only. What arrives is made of exact built-in types and of instances of classes that the
receiver has itself: never an object of the sender's own making, so no `__eq__`, `__hash__` or `__bool__` of it can take
part in a comparison. Values of subclasses of built-in types travel as the built-in values they are (a `Counter` as a
dict). Iterators travel as the items they give.

Objects that have an identity (lists, dicts, sets, instances) stand in a table and are referred to by number, so that
shared and circular structures arrive as they were. An answer begins with the table of the question: the receiver then
fills its own objects anew, as if the function had been called in its own process.

    {"values": [...],
     "objects": [["list", [...]], ["set", [...]], ["dict", [[key, value], ...]], ["module.Class", [[name, value], ...]],
                 ...]}

A value is None, bool, int, str, {"ref": number}, {"float": text}, {"bytes": hex}, {"tuple": [...]},
{"frozenset": [...]} or {"iterator": [...]}.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

MAX_DEPTH = 40
"""Of tuples in tuples; lists, dicts and instances may be nested as deep as they like."""
MAX_VALUES = 100_000
_FULL = slice(None)


class UnsendableError(Exception):
    """A value cannot travel, or what arrived is none."""


class Packer:
    """Writes values; `known` are the objects that the receiver has already, in the order of their numbers.

    `classes`: class -> the name under which the receiver knows it.
    """

    def __init__(self, classes: Mapping[type, str], known: Sequence[Any] = ()) -> None:
        self._classes = classes
        self._objects = list(known)
        self._numbers = {id(thing): number for number, thing in enumerate(self._objects)}
        self._count = 0

    def pack(self, values: Sequence[Any]) -> dict[str, Any]:
        """Return the message for some values. Raises UnsendableError."""
        packed = [self._value(value) for value in values]
        contents: list[Any] = []
        while len(contents) < len(self._objects):  # looking into one may find more
            contents.append(self._content(self._objects[len(contents)]))
        return {"objects": contents, "values": packed}

    @property
    def objects(self) -> list[Any]:
        """All objects with a number so far."""
        return self._objects

    def _value(self, value: Any, depth: int = 0) -> Any:
        self._count += 1
        if depth > MAX_DEPTH or self._count > MAX_VALUES:
            raise UnsendableError("nested too deep, or too much")
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if isinstance(value, (list, dict, set)) or kind in self._classes:
            return {"ref": self._number(value)}
        if isinstance(value, int):
            return int.__pos__(value)
        if isinstance(value, str):
            return str.__getitem__(value, _FULL)
        if isinstance(value, float):
            return {"float": float.__repr__(value)}
        if isinstance(value, bytes):
            return {"bytes": bytes.hex(value)}
        if isinstance(value, tuple):
            return {"tuple": [self._value(item, depth + 1) for item in tuple.__iter__(value)]}
        if isinstance(value, frozenset):
            return {"frozenset": [self._value(item, depth + 1) for item in frozenset.__iter__(value)]}
        if hasattr(kind, "__next__"):
            return {"iterator": self._drained(value, depth)}
        raise UnsendableError(f"a {kind.__name__} is not plain data")

    def _drained(self, iterator: Any, depth: int) -> list[Any]:
        items = []
        for item in iterator:
            items.append(self._value(item, depth + 1))
        return items

    def _number(self, thing: Any) -> int:
        if id(thing) not in self._numbers:
            self._numbers[id(thing)] = len(self._objects)
            self._objects.append(thing)  # which also keeps the id its own
        return self._numbers[id(thing)]

    def _content(self, thing: Any) -> list[Any]:
        if isinstance(thing, list):
            return ["list", [self._value(item) for item in list.__iter__(thing)]]
        if isinstance(thing, dict):
            return ["dict", [[self._value(key), self._value(item)] for key, item in dict.items(thing)]]
        if isinstance(thing, set):
            return ["set", sorted((self._value(item) for item in set.__iter__(thing)), key=repr)]
        name = self._classes.get(type(thing))
        if name is None:
            raise UnsendableError(f"a {type(thing).__name__} is not plain data")
        attributes = object.__getattribute__(thing, "__dict__")
        return [name, [[self._value(key), self._value(item)] for key, item in attributes.items()]]


def unpack(message: Any, classes: Mapping[str, type], known: Sequence[Any] = ()) -> tuple[list[Any], list[Any]]:
    """Return the values of a message and all its objects; `known` ones are filled anew.

    Raises UnsendableError, whatever JSON an untrusted sender wrote; then known objects may be filled in part.
    """
    try:
        contents = message["objects"]
        if len(contents) < len(known):
            raise UnsendableError("known objects are missing")
        reader = _Reader(contents, classes, known)
        reader.fill()
        return [reader.value(value) for value in message["values"]], reader.objects
    except UnsendableError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise UnsendableError(f"not a message: {type(error).__name__}: {error}") from error


class _Reader:
    def __init__(self, contents: Any, classes: Mapping[str, type], known: Sequence[Any]) -> None:
        self._contents = contents
        self.objects = list(known)
        for number, (kind, _) in enumerate(contents):
            if number >= len(known):
                self.objects.append(_empty(kind, classes))
            elif not _is_kind(known[number], kind, classes):
                raise UnsendableError(f"object {number} is no {kind}")

    def fill(self) -> None:
        # What is hashed may depend on attributes: instances first.
        todo = sorted(zip(self.objects, self._contents, strict=True), key=lambda pair: pair[1][0] in ("dict", "set"))
        for thing, (kind, content) in todo:
            if kind == "list":
                thing[:] = [self.value(item) for item in content]
            elif kind == "set":
                items = [self.value(item) for item in content]
                thing.clear()
                thing.update(items)
            else:
                pairs = [(self.value(key), self.value(item)) for key, item in content]
                target = thing if kind == "dict" else thing.__dict__
                if kind != "dict" and not all(type(name) is str for name, _ in pairs):
                    raise UnsendableError("an attribute's name is no text")
                target.clear()
                target.update(pairs)

    def value(self, value: Any, depth: int = 0) -> Any:
        if depth > MAX_DEPTH:
            raise UnsendableError("nested too deep")
        if not isinstance(value, dict):
            if value is None or type(value) in (bool, int, str):
                return value
            raise UnsendableError(f"{value!r} is no value"[:200])
        [(kind, content)] = value.items()
        if kind == "ref":
            if type(content) is not int or content < 0:
                raise UnsendableError(f"{content!r} is no number of an object"[:200])
            return self.objects[content]
        if kind == "float" and type(content) is str and len(content) <= 40:
            return float(content)
        if kind == "bytes" and type(content) is str:
            return bytes.fromhex(content)
        if kind in ("tuple", "frozenset", "iterator"):
            items = [self.value(item, depth + 1) for item in content]
            return {"tuple": tuple, "frozenset": frozenset, "iterator": iter}[kind](items)  # type: ignore[operator]
        raise UnsendableError(f"{kind!r} is no kind of value"[:200])


def _empty(kind: Any, classes: Mapping[str, type]) -> Any:
    if kind in ("list", "dict", "set"):
        return {"list": list, "dict": dict, "set": set}[kind]()
    return object.__new__(classes[kind])


def _is_kind(thing: Any, kind: Any, classes: Mapping[str, type]) -> bool:
    plain = {"list": list, "dict": dict, "set": set}
    return isinstance(thing, plain[kind]) if kind in plain else type(thing) is classes.get(kind)


def classes_of(module: Any) -> dict[str, type]:
    """Return the classes that a module defines itself, by `module.Class`."""
    return {
        f"{module.__name__}.{name}": thing
        for name, thing in vars(module).items()
        if isinstance(thing, type) and thing.__module__ == module.__name__
    }
