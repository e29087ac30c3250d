"""A rollout tree by key: visits, V, Q, children, episodes through a state, JSON and networkx.

Invariants: for people and pictures, not for estimators (which read the arrays). Counts and returns are first-visit
per episode and over valid episodes only; `children` counts every visit. V(s) = sum_a N(s,a) Q(s,a) / N(s).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from agentgym_rtmc.errors import CreditError, DependencyError
from agentgym_rtmc.trainer.credit.numbering import Floats, Ints
from agentgym_rtmc.trainer.credit.returns import returns_to_go

if TYPE_CHECKING:
    from agentgym_rtmc.trainer.credit.tree import RolloutTree


@dataclass(frozen=True, eq=False)
class KeyNames:
    """What the keys were called. `states`, `actions`, `observations`: (steps,) in the order of the input;
    `steps` maps a step of the tree to that order (None: the same) after adding `start`, where a part of a tree begins.
    `groups`: label of each group."""

    states: Sequence[Hashable] | Ints
    actions: Sequence[Hashable] | Ints
    groups: Sequence[Hashable]
    steps: Ints | None
    observations: Sequence[Hashable] | Ints | None = None
    start: int = 0

    def of(self, keys: Sequence[Hashable] | Ints, step: int) -> Hashable:
        """The key that a step of the tree was given."""
        position = step + self.start
        key = keys[position if self.steps is None else int(self.steps[position])]
        return key.item() if isinstance(key, np.generic) else key

    def part(self, steps: slice, groups: slice) -> KeyNames:
        """The names for a range of whole groups."""
        return replace(self, groups=self.groups[groups], start=self.start + steps.start)


def representatives(ids: Ints, count: int) -> Ints:
    """The first step that visits each node; -1 if none does. Shapes: (steps,) -> (nodes,)."""
    steps = np.full(count, -1)
    steps[ids[::-1]] = np.arange(len(ids))[::-1]
    return steps


class TreeView:
    """Answers questions asked by key. Built once per tree; per-gamma values are kept."""

    def __init__(self, tree: RolloutTree) -> None:
        if tree.names is None:
            raise CreditError("this tree was built without its keys; build it with from_keys, from_ids or from_groups")
        self._tree, self._names = tree, tree.names
        self._valid = np.repeat(tree.valid, tree.lengths)
        pairs, state = tree.pairs, tree.state
        counted = pairs.first & self._valid
        self._n = np.bincount(pairs.ids[counted], minlength=pairs.count)
        self._n_state = np.bincount(pairs.parent, weights=self._n, minlength=state.count).astype(np.int64)
        names = self._names
        self._state_keys = [
            names.of(names.states, step) if step >= 0 else None
            for step in representatives(state.ids, state.count).tolist()
        ]
        self._action_keys = [names.of(names.actions, step) for step in representatives(pairs.ids, pairs.count).tolist()]
        self._groups = {label: index for index, label in enumerate(names.groups)}
        self._nodes = dict(zip(zip(state.parent.tolist(), self._state_keys, strict=True), count(), strict=False))
        self._pairs = dict(zip(zip(pairs.parent.tolist(), self._action_keys, strict=True), count(), strict=False))
        self._values = lru_cache(maxsize=4)(self._compute)

    def _compute(self, gamma: float) -> tuple[Floats, Floats]:
        tree, pairs = self._tree, self._tree.pairs
        counted = pairs.first & self._valid
        gains = returns_to_go(tree, gamma)[counted]
        total = np.bincount(pairs.ids[counted], weights=gains, minlength=pairs.count)
        state_total = np.bincount(pairs.parent, weights=total, minlength=tree.state.count)
        with np.errstate(invalid="ignore"):
            return state_total / self._n_state, total / self._n

    def _node(self, state: Hashable, group: Hashable) -> int:
        if group is None and len(self._groups) == 1:
            index = 0
        elif group in self._groups:
            index = self._groups[group]
        else:
            raise CreditError(f"name the group of state {state!r}: group= one of {list(self._groups)[:8]}")
        node = self._nodes.get((index, state))
        if node is None:
            raise CreditError(f"no episode of group {self._names.groups[index]!r} met state {state!r}")
        return node

    def _pair(self, state: Hashable, action: Hashable, group: Hashable) -> int:
        pair = self._pairs.get((self._node(state, group), action))
        if pair is None:
            raise CreditError(f"no episode took action {action!r} at state {state!r}")
        return pair

    def visits(self, state: Hashable, action: Hashable, group: Hashable) -> int:
        """N(s), or N(s, a)."""
        if action is None:
            return int(self._n_state[self._node(state, group)])
        return int(self._n[self._pair(state, action, group)])

    def value(self, state: Hashable, group: Hashable, gamma: float) -> float:
        """V(s); nan where only invalid episodes went."""
        return float(self._values(gamma)[0][self._node(state, group)])

    def q(self, state: Hashable, action: Hashable, group: Hashable, gamma: float) -> float:
        """Q(s, a); nan where only invalid episodes went."""
        return float(self._values(gamma)[1][self._pair(state, action, group)])

    def _edges(self, node: int) -> dict[int, dict[int, int]]:
        """Pair -> next state (-1: the end) -> visits."""
        tree = self._tree
        steps = np.flatnonzero((tree.state.ids == node) & self._valid)
        edges: dict[int, dict[int, int]] = {}
        for pair, after in zip(tree.pairs.ids[steps].tolist(), tree.after[steps].tolist(), strict=True):
            following = edges.setdefault(pair, {})
            following[after] = following.get(after, 0) + 1
        return edges

    def children(self, state: Hashable, group: Hashable) -> Mapping[Hashable, Mapping[Hashable, int]]:
        """Action -> next state -> visits."""
        return {
            self._action_keys[pair]: {self._state_keys[a] if a >= 0 else None: n for a, n in following.items()}
            for pair, following in self._edges(self._node(state, group)).items()
        }

    def episodes(self, state: Hashable, group: Hashable) -> list[int]:
        """Input indices of the valid episodes through a state, ascending."""
        tree = self._tree
        steps = (tree.state.ids == self._node(state, group)) & self._valid
        return sorted(set(tree.order[tree.episode[steps]].tolist()))

    def to_json(self, gamma: float) -> dict[str, Any]:
        """One entry per group with its states and its edges; numbers are node numbers, `to: null` is the end."""
        tree = self._tree
        value, q = (array.tolist() for array in self._values(gamma))
        steps = np.flatnonzero(self._valid)
        triples, visits = np.unique(
            np.stack([tree.state.ids[steps], tree.pairs.ids[steps], tree.after[steps]]), axis=1, return_counts=True
        )
        groups: list[dict[str, Any]] = [
            {"group": _plain(label), "states": [], "edges": []} for label in self._names.groups
        ]
        for node, group in enumerate(tree.state.parent.tolist()):
            if self._n_state[node]:
                entry = {"id": node, "key": _plain(self._state_keys[node])}
                groups[group]["states"].append({**entry, "visits": int(self._n_state[node]), "value": value[node]})
        for (node, pair, after), visited in zip(triples.T.tolist(), visits.tolist(), strict=True):
            edge = {"from": node, "to": after if after >= 0 else None, "action": _plain(self._action_keys[pair])}
            group = int(tree.state.parent[node])
            groups[group]["edges"].append({**edge, "visits": visited, "episodes": int(self._n[pair]), "q": q[pair]})
        return {"gamma": gamma, "groups": groups}

    def to_networkx(self, gamma: float) -> Any:
        """A `networkx.MultiDiGraph`: nodes (group, state key), with key None for the end; edges say what was done."""
        try:
            import networkx  # type: ignore[import-untyped]
        except ModuleNotFoundError as error:
            raise DependencyError("to_networkx needs networkx: pip install networkx") from error
        graph = networkx.MultiDiGraph()
        for group, label in zip(self.to_json(gamma)["groups"], self._names.groups, strict=True):
            keys = {None: None, **{state["id"]: self._state_keys[state["id"]] for state in group["states"]}}
            for state in group["states"]:
                graph.add_node((label, keys[state["id"]]), visits=state["visits"], value=state["value"])
            for edge in group["edges"]:
                rest = {name: edge[name] for name in ("action", "visits", "episodes", "q")}
                graph.add_edge((label, keys[edge["from"]]), (label, keys.get(edge["to"])), **rest)
        return graph


def _plain(key: Hashable) -> str | int | float | None:
    return key if key is None or isinstance(key, str | int | float) else repr(key)
