"""Settings: one TOML file plus dotted overrides, validated by pydantic.

Invariants: settings are frozen once made; an unknown key is an error that names the nearest valid one; every error
names where the value came from, its dotted key and the value; `dump_toml` writes what `load_settings` reads back equal.
"""

from __future__ import annotations

import json
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, time
from enum import Enum
from pathlib import Path, PurePath
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.fields import FieldInfo

from agentgym_rtmc.errors import ConfigError, nearest


class Settings(BaseModel):
    """Base of every configuration class. A field that may be None defaults to None: TOML has no word for it."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, coerce_numbers_to_str=True)


M = TypeVar("M", bound=Settings)
_MISSING = object()


def load_settings(model: type[M], path: str | Path | None = None, overrides: Sequence[str] = ()) -> M:
    """Read a TOML file (None: all defaults) and put overrides such as `learner.lr=3e-4` over it.

    An override's value is TOML (`3`, `true`, `[1, 2]`, `"text"`); what is not TOML is taken as text; nothing after
    the `=` returns the key to its default. Raises ConfigError.
    """
    values = {} if path is None else _read(Path(path))
    sources: dict[tuple[str, ...], str] = {}
    for override in overrides:
        keys, value = parse_override(override)
        _put(values, keys, value, override)
        sources[keys] = f"override {override!r}"
    try:
        return model.model_validate(values)
    except ValidationError as error:
        complaints = [_complain(model, dict(one), path, sources) for one in error.errors(include_url=False)]
        # One line, however much is wrong.
        more = f"; and {len(complaints) - 5} more" if len(complaints) > 5 else ""
        raise ConfigError("; ".join(complaints[:5]) + more) from error


def dump_toml(settings: Settings) -> str:
    """Write all settings, defaults included, as TOML with each field's description as a comment.

    Raises ConfigError for a None where the default is another value.
    """
    return "\n".join(_dump_model(settings, ())).strip() + "\n"


# -- reading ------------------------------------------------------------------------------------------------------


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error


def parse_override(override: str) -> tuple[tuple[str, ...], Any]:
    """Split `a.b=3` into (("a", "b"), 3). Raises ConfigError for what has no such form."""
    key, equals, raw = override.partition("=")
    try:
        tree: Any = tomllib.loads(f"{key} = 0") if equals else {}
    except tomllib.TOMLDecodeError:
        tree = {}
    keys: list[str] = []
    while isinstance(tree, dict) and len(tree) == 1:
        ((name, tree),) = tree.items()
        keys.append(name)
    if not keys or tree != 0:
        raise ConfigError(f"override {override!r} is not of the form key.subkey=value")
    return tuple(keys), _parse_value(raw.strip())


def _parse_value(raw: str) -> Any:
    if not raw:
        return _MISSING
    try:
        parsed = tomllib.loads(f"value = {raw}")
    except tomllib.TOMLDecodeError:
        return raw
    value = parsed.pop("value")
    # "1\nb = 2" is no value, and a date is more likely a name that looks like one.
    return raw if parsed or isinstance(value, datetime | date | time) else value


def _put(values: dict[str, Any], keys: tuple[str, ...], value: Any, override: str) -> None:
    for depth, key in enumerate(keys[:-1], 1):
        inner = values.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(
                f"override {override!r}: {'.'.join(keys[:depth])} is {inner!r} and has no keys of its own"
            )
        values = inner
    if value is _MISSING:
        values.pop(keys[-1], None)
    else:
        values[keys[-1]] = value


def _complain(
    model: type[BaseModel], error: dict[str, Any], path: str | Path | None, sources: Mapping[tuple[str, ...], str]
) -> str:
    place = tuple(map(str, error["loc"]))
    origin = _origin(place, path, sources)
    key = ".".join(place)
    if error["type"] == "extra_forbidden":
        known = {name for owner in _models_at(model, place[:-1]) for name in owner.model_fields}
        return f"{origin}: unknown key {key!r}{nearest(place[-1], known)}"
    if error["type"] == "missing":
        return f"{origin}: {key!r} is missing"
    message = error["msg"].removeprefix("Input ").removeprefix("Value error, ")
    given = repr(error["input"])
    given = given if len(given) <= 80 else f"{given[:77]}..."
    # An error of a whole section (two settings that exclude each other) explains itself.
    what = f"{key!r} " if key else ""
    return f"{origin}: {what}{message}" + ("" if isinstance(error["input"], dict | BaseModel) else f", got {given}")


def _origin(place: tuple[str, ...], path: str | Path | None, sources: Mapping[tuple[str, ...], str]) -> str:
    """Say where a value came from; a whole section may come from the file and from overrides."""
    for keys, text in sources.items():
        if keys == place[: len(keys)]:
            return text
    inside = [text for keys, text in sources.items() if place == keys[: len(place)]]
    return " with ".join([*([str(path)] if path is not None else []), *inside]) or "configuration"


def _models_at(model: type[BaseModel], place: Sequence[str]) -> list[type[BaseModel]]:
    """The models whose keys may stand at a place; segments that are no field (a union's tag, an index) are passed."""
    models = [model]
    for segment in place:
        fields = [owner.model_fields[segment] for owner in models if segment in owner.model_fields]
        models = [inner for field in fields for inner in _models_in(field.annotation)] or models
    return models


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in typing.get_args(annotation):
        yield from _models_in(argument)


# -- writing ------------------------------------------------------------------------------------------------------


def _dump_model(model: BaseModel, place: tuple[str, ...]) -> Iterator[str]:
    plain: dict[str, Any] = model.model_dump()
    fields = type(model).model_fields
    # TOML wants a table's own values before its sub-tables.
    tables = {name: inner for name in fields if isinstance(inner := getattr(model, name), BaseModel)}
    for name, field in fields.items():
        if name not in tables:
            yield from _dump_field(name, plain[name], field, place)
    for name, inner in tables.items():
        path = (*place, name)
        yield f"\n[{'.'.join(map(_dump_key, path))}]{_comment(fields[name])}"
        yield from _dump_model(inner, path)


def _dump_field(name: str, value: Any, field: FieldInfo, place: tuple[str, ...]) -> Iterator[str]:
    if value is None:
        if field.get_default(call_default_factory=True, validated_data={}) is not None:
            key = ".".join((*place, name))
            raise ConfigError(f"{key} is None, which TOML cannot say; let its default be None or give 'off' a value")
        yield f"# {_dump_key(name)} is not set{_comment(field)}"
    else:
        yield f"{_dump_key(name)} = {_dump_value(value, '.'.join((*place, name)))}{_comment(field)}"


def _comment(field: FieldInfo) -> str:
    return f"  # {' '.join(field.description.split())}" if field.description else ""


def _dump_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _dump_string(key)


def _dump_string(text: str) -> str:
    # TOML's basic strings are JSON's, save that DEL must be escaped.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _dump_value(value: Any, where: str) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | PurePath):
        return _dump_string(str(value))
    if isinstance(value, list | tuple):
        return f"[{', '.join(_dump_value(member, where) for member in value)}]"
    if isinstance(value, dict):
        pairs = (f"{_dump_key(key)} = {_dump_value(member, f'{where}.{key}')}" for key, member in value.items())
        return f"{{ {', '.join(pairs)} }}" if value else "{}"
    raise ConfigError(f"{where} holds {value!r}, which TOML cannot say")
