"""How well a signature does on real episodes: how often its keys meet, how much they mix, how fast they are made.

Definitions, over the episodes of groups of two or more (invalid ones left out):
- A turn has *company* if another episode of its group has a turn with the same key; `others` is the mean number of
  such episodes.
- A turn is *constant* if its key says nothing by nature: nothing could be parsed, a submission, a call without any
  argument, a bare `git status` or `git diff`. Constant turns are in no denominator, though a state key is of course
  formed from them. Commands without effect (`echo`, which some agents talk with) are counted unless `effects_only`:
  as raw text they hardly ever meet, as canonical commands they always do.
- `alias_outcome`: of pairs of turns (of two episodes) with one key, the mean squared difference of their episodes'
  returns, divided by the same after shuffling the keys within each group. 1: the key says nothing of the outcome.
  Episodes whose outcome nobody recorded are left out of it.
- `alias_next`: of such pairs, the share whose next observations (normalised) differ, divided by the same after
  shuffling. For a state key the pairs have one state and one action, for an action key one action.

Invariants: the shuffle has a fixed seed; no file is read and nothing printed here.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.signatures.base import Signature, episode_keys
from agentgym_rtmc.signatures.digests import bounded
from agentgym_rtmc.signatures.observation import normalised
from agentgym_rtmc.signatures.shell_commands import forget_commands
from agentgym_rtmc.signatures.tools import read_call

SHUFFLES = 20
BARE = frozenset({"git status", "git diff"})


class RawSignature:
    """The yardstick: an action is its raw text, a state the raw text of the last action."""

    def start(self, opening: Opening) -> str:
        """Return the state before any action."""
        return "start"

    def action_key(self, turn: Turn) -> str:
        """Return the raw text of the commands, or of the calls."""
        texts = [
            str(call.arguments["command"]) if set(call.arguments) == {"command"} else call.model_dump_json()
            for call in turn.calls
        ]
        return bounded("\n".join(texts) or turn.text, 400)

    def advance(self, state: str, turn: Turn) -> str:
        """Remember the turn's text."""
        return self.action_key(turn)

    def state_key(self, state: str) -> str:
        """Return the last action's text."""
        return state


@dataclass(frozen=True)
class Measured:
    """One row: the keys of one kind (`state` or `action`) that a signature makes. Shares are of counted turns.

    `by_turn` and `others_by_turn` are company and others by turn index, the last entry taking the rest; None where no
    turn of that index is counted.
    """

    signature: str
    kind: str
    turns: int
    company: float
    others: float
    distinct: int
    alias_outcome: float | None
    alias_next: float | None
    keys_per_second: float
    by_turn: tuple[float | None, ...]
    others_by_turn: tuple[float | None, ...]

    def row(self) -> dict[str, Any]:
        """The row of a table, without the curves."""
        return {name: value for name, value in vars(self).items() if not name.endswith("by_turn")}


def is_constant(turn: Turn, effects_only: bool = False) -> bool:
    """Whether the turn's key says nothing by nature; see the definitions above."""
    if not turn.calls:
        return True
    if all(not call.arguments for call in turn.calls):
        return True
    operations = [operation for call in turn.calls for operation in read_call(call)]
    if any(operation.category == "finish" for operation in operations):
        return True
    return all(op.line.text in BARE or (effects_only and op.idle) for op in operations)


def in_groups(episodes: Sequence[Episode]) -> list[Episode]:
    """The valid episodes of groups of two or more."""
    valid = [episode for episode in episodes if episode.valid and episode.turns]
    sizes = Counter(episode.group for episode in valid)
    return [episode for episode in valid if sizes[episode.group] > 1]


def measure(
    signatures: Mapping[str, Signature[Any]],
    episodes: Sequence[Episode],
    *,
    effects_only: bool = False,
    unlabelled: Collection[str] = (),
    seed: int = 0,
    buckets: int = 20,
) -> list[Measured]:
    """Measure signatures; two rows each. The raw text of actions is always measured too, first.

    `unlabelled`: ids of episodes whose outcome is unknown; `buckets`: the length of the curves by turn index.
    """
    grouped = in_groups(episodes)
    counted = [[not is_constant(turn, effects_only) for turn in episode.turns] for episode in grouped]
    following = [[normalised(turn.observation) for turn in episode.turns] for episode in grouped]
    rows: list[Measured] = []
    for name, signature in {"raw": RawSignature(), **signatures}.items():
        forget_commands()
        start = time.process_time()
        keys = [episode_keys(signature, episode) for episode in grouped]
        seconds = max(1e-9, time.process_time() - start)
        speed = sum(len(k.states) for k in keys) / seconds
        table = _Table(grouped, counted, following, frozenset(unlabelled), seed, buckets)
        actions: list[Sequence[Hashable]] = [k.actions for k in keys]
        pairs: list[Sequence[Hashable]] = [list(zip(k.states, k.actions, strict=True)) for k in keys]
        rows.append(table.row(name, "action", actions, actions, speed))
        rows.append(table.row(name, "state", [k.states for k in keys], pairs, speed))
    return rows


class _Table:
    """The counted turns of all groups, and what is computed from one key for each of them."""

    def __init__(
        self,
        episodes: Sequence[Episode],
        counted: Sequence[Sequence[bool]],
        following: Sequence[Sequence[str]],
        unlabelled: frozenset[str],
        seed: int,
        buckets: int,
    ) -> None:
        self._episodes = episodes
        self._counted = counted
        self._seed = seed
        self._buckets = buckets
        # Shape of all arrays: (counted turns,)
        returns = [[e.total_reward] * len(e.turns) for e in episodes]
        self._returns = np.asarray(_flat(returns, counted), dtype=np.float64)
        labelled = [[e.id not in unlabelled] * len(e.turns) for e in episodes]
        self._labelled = np.asarray(_flat(labelled, counted), dtype=np.bool_)
        self._next = _numbers(_flat(following, counted))
        self._group = _numbers(_flat([[e.group] * len(e.turns) for e in episodes], counted))
        self._episode = np.asarray(_flat([[i] * len(e.turns) for i, e in enumerate(episodes)], counted), dtype=np.int64)
        self._index = np.asarray(_flat([range(len(e.turns)) for e in episodes], counted), dtype=np.int64)

    def row(
        self,
        name: str,
        kind: str,
        keys: Sequence[Sequence[Hashable]],
        joint: Sequence[Sequence[Hashable]],
        speed: float,
    ) -> Measured:
        """Compute one row; `joint` holds the keys under which next observations are compared."""
        others = self._others(keys)
        company = others > 0
        flat = _numbers([*zip(self._group.tolist(), _flat(keys, self._counted), strict=True)])
        both = _numbers([*zip(self._group.tolist(), _flat(joint, self._counted), strict=True)])
        known = np.flatnonzero(self._labelled)
        return Measured(
            name,
            kind,
            len(others),
            float(company.mean()) if len(others) else 0.0,
            float(others.mean()) if len(others) else 0.0,
            int(flat.max()) + 1 if len(flat) else 0,
            self._ratio(flat[known], self._group[known], lambda ids: _spread(ids, self._returns[known])),
            self._ratio(both, self._group, lambda ids: _mismatch(ids, self._next)),
            speed,
            self._curve(company),
            self._curve(others),
        )

    def _curve(self, values: np.ndarray[Any, Any]) -> tuple[float | None, ...]:
        index = np.minimum(self._index, self._buckets - 1)
        buckets = range(int(index.max()) + 1 if len(index) else 0)
        return tuple(float(values[index == b].mean()) if (index == b).any() else None for b in buckets)

    def _others(self, keys: Sequence[Sequence[Hashable]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """How many other episodes of the group have each turn's key."""
        holders: dict[tuple[str, Hashable], set[int]] = defaultdict(set)
        for number, (episode, values, counted) in enumerate(zip(self._episodes, keys, self._counted, strict=True)):
            for value, kept in zip(values, counted, strict=True):
                if kept:
                    holders[episode.group, value].add(number)
        shared = [
            [len(holders[episode.group, value]) - 1 for value in values]
            for episode, values in zip(self._episodes, keys, strict=True)
        ]
        return np.asarray(_flat(shared, self._counted), dtype=np.int64)

    def _ratio(
        self,
        ids: np.ndarray[Any, np.dtype[np.int64]],
        group: np.ndarray[Any, np.dtype[np.int64]],
        statistic: Callable[[np.ndarray[Any, np.dtype[np.int64]]], float | None],
    ) -> float | None:
        """A statistic of the keys over its mean after shuffling them within groups."""
        observed = statistic(ids)
        if observed is None:
            return None
        rng = np.random.default_rng(self._seed)
        order = np.argsort(group, kind="stable")
        bounds = np.flatnonzero(np.diff(group[order])) + 1
        chance: list[float] = []
        for _ in range(SHUFFLES):
            shuffled = ids.copy()
            for members in np.split(order, bounds):
                shuffled[members] = ids[rng.permutation(members)]
            value = statistic(shuffled)
            if value is not None:
                chance.append(value)
        mean = float(np.mean(chance)) if chance else 0.0
        return float(observed / mean) if mean > 0 else None


def _flat(values: Sequence[Sequence[Any]], counted: Sequence[Sequence[bool]]) -> list[Any]:
    return [v for row, keep in zip(values, counted, strict=True) for v, kept in zip(row, keep, strict=True) if kept]


def _numbers(values: Sequence[Hashable]) -> np.ndarray[Any, np.dtype[np.int64]]:
    known: dict[Hashable, int] = {}
    return np.asarray([known.setdefault(value, len(known)) for value in values], dtype=np.int64)


def _spread(ids: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> float | None:
    """Mean squared difference of the values of two turns with one key: twice the pooled variance within keys."""
    if not len(ids):
        return None
    counts = np.bincount(ids)
    sums, squares = np.bincount(ids, values), np.bincount(ids, values**2)
    several = counts > 1
    if not several.any():
        return None
    inside = (squares[several] - sums[several] ** 2 / counts[several]).sum()
    return float(2 * inside / (counts[several] - 1).sum())


def _mismatch(ids: np.ndarray[Any, Any], categories: np.ndarray[Any, Any]) -> float | None:
    """Share of the pairs of turns with one key whose categories differ, each key weighed by its turns beyond one."""
    if not len(ids):
        return None
    counts = np.bincount(ids)
    both, joint = np.unique(np.stack([ids, categories]), axis=1, return_counts=True)
    same = np.bincount(both[0], joint.astype(np.float64) ** 2, minlength=len(counts))
    several = counts > 1
    if not several.any():
        return None
    n = counts[several].astype(np.float64)
    differing = 1 - (same[several] - n) / (n * (n - 1))
    return float((differing * (n - 1)).sum() / (n - 1).sum())
