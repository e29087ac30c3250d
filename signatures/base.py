"""What a signature is: a fold over an episode that names states and actions.

Invariants: a signature is pure and linear. It sees the opening and the turns, never an environment object, so it also
runs on imported trajectories. The state key before turn `t` depends only on the opening and turns `0 … t-1`, the
action key of turn `t` only on that turn. Keys are strings; equal keys mean "comparable" within a group of episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar, cast

from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.errors import RegistrationError, SignatureError, nearest
from agentgym_rtmc.registration import load
from agentgym_rtmc.signatures.digests import bounded

S = TypeVar("S")


class Signature(Protocol[S]):
    """The plug-in surface: four pure methods. The state `S` is any value of the signature's own."""

    def start(self, opening: Opening) -> S:
        """Return the state before the first turn."""
        ...

    def action_key(self, turn: Turn) -> str:
        """Name what the agent did in a turn."""
        ...

    def advance(self, state: S, turn: Turn) -> S:
        """Return the state after a turn; the given state is left unchanged."""
        ...

    def state_key(self, state: S) -> str:
        """Name a state."""
        ...


HistoryKey = Callable[[Opening, Sequence[Turn]], str]
"""A plain function of the history, accepted wherever a signature is: (opening, turns so far) -> state key."""


@dataclass(frozen=True)
class EpisodeKeys:
    """Keys of one episode. Shapes: `states` and `actions` (turns,); `states[t]` is what was known before turn t."""

    states: tuple[str, ...]
    actions: tuple[str, ...]


@dataclass(frozen=True)
class _History:
    opening: Opening
    turns: tuple[Turn, ...] = ()


class FunctionSignature(Generic[S]):
    """Makes a signature of a plain history function; actions are named by their parsed calls, else by their text."""

    def __init__(self, function: HistoryKey) -> None:
        self._function = function

    def start(self, opening: Opening) -> _History:
        """Return the empty history."""
        return _History(opening)

    def action_key(self, turn: Turn) -> str:
        """Name the turn by its calls in canonical JSON, or by its text when nothing could be parsed."""
        return bounded("\n".join(call.model_dump_json() for call in turn.calls) or turn.text.strip(), 1000)

    def advance(self, state: _History, turn: Turn) -> _History:
        """Append the turn."""
        return _History(state.opening, (*state.turns, turn))

    def state_key(self, state: _History) -> str:
        """Ask the function."""
        return self._function(state.opening, state.turns)


_REGISTRY: dict[str, str | Callable[..., Any]] = {}


def register_signature(name: str, factory: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a signature class (or factory, or history function) under a name.

    As a decorator: `@register_signature("mine")`. With `factory="module:name"` the entry is lazy and nothing is
    imported. Registering another object under a known name raises RegistrationError.
    """

    def add(value: str | Callable[..., Any]) -> None:
        if name in _REGISTRY and _REGISTRY[name] != value:
            raise RegistrationError(f"a signature named {name!r} is already registered")
        _REGISTRY[name] = value

    def decorate(target: Callable[..., Any]) -> Callable[..., Any]:
        add(target)
        return target

    if factory is not None:
        add(factory)
    return decorate


def registered_signatures() -> list[str]:
    """Names of all registered signatures, sorted."""
    return sorted(_REGISTRY)


def describe_signatures() -> list[dict[str, str]]:
    """Name and first line of every registered signature (imports them)."""
    rows = []
    for name in registered_signatures():
        target = _REGISTRY[name]
        factory = load(target) if isinstance(target, str) else target
        rows.append({"name": name, "summary": (getattr(factory, "__doc__", None) or "").strip().split("\n")[0]})
    return rows


def make_signature(name: str, **parameters: Any) -> Signature[Any]:
    """Build a signature from a registered name or `module:name`.

    Names joined by `+` are composed: `"edits + test_outcomes"`. The target may be a signature class or factory (called
    with `parameters`), or a plain history function `(opening, turns) -> key` when it takes exactly those two arguments
    and no parameters are given.
    """
    if "+" in name:
        if parameters:
            raise RegistrationError(f"{name!r} takes no parameters; use the name 'compose' with a table for each part")
        return make_signature("compose", parts=[part.strip() for part in name.split("+")])
    if name not in _REGISTRY and ":" not in name:
        raise RegistrationError(
            f"no signature {name!r}{nearest(name, _REGISTRY)}; or name your own as 'module:function'"
        )
    target = _REGISTRY.get(name, name)
    factory = load(target) if isinstance(target, str) else target
    if _is_history_function(factory) and not parameters:
        return FunctionSignature[Any](factory)
    try:
        made = factory(**parameters)
    except TypeError as error:
        raise RegistrationError(f"signature {name!r}: {error}") from error
    missing = [m for m in ("start", "action_key", "advance", "state_key") if not callable(getattr(made, m, None))]
    if missing:
        raise RegistrationError(f"signature {name!r} made a {type(made).__name__} without {', '.join(missing)}")
    return cast("Signature[Any]", made)


def _is_history_function(target: Any) -> bool:
    code = getattr(target, "__code__", None)
    return code is not None and code.co_argcount == 2 and not getattr(target, "__defaults__", None)


def episode_keys(signature: Signature[Any], episode: Episode) -> EpisodeKeys:
    """Run the fold over one episode. Raises SignatureError naming the episode and turn that broke it."""
    who = type(signature).__name__
    states: list[str] = []
    actions: list[str] = []
    try:
        state = signature.start(episode.opening)
        for turn in episode.turns:
            states.append(signature.state_key(state))
            actions.append(signature.action_key(turn))
            state = signature.advance(state, turn)
    except Exception as error:
        where = f"{who} failed near turn {len(states)} of episode {episode.id!r}"
        raise SignatureError(f"{where}: {type(error).__name__}: {error}") from error
    for keys in (states, actions):
        for index, key in enumerate(keys):
            if not isinstance(key, str):
                raise SignatureError(f"{who} returned {type(key).__name__}, not str, at turn {index}")
    return EpisodeKeys(tuple(states), tuple(actions))
