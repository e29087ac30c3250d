"""Building a rollout tree: check the input, lay the episodes out group by group, number the keys.

Invariants: everything wrong with the input is refused here, with a CreditError naming the argument and the episode,
so that estimators need no checks of their own. Keys are numbered in chunks of whole groups: beyond the finished arrays
the work needs memory for one chunk only.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentgym_rtmc.errors import CreditError
from agentgym_rtmc.trainer.credit.numbering import Bools, Floats, Ints, Level, Numbering, intern, number, number_pairs
from agentgym_rtmc.trainer.credit.tree import CHUNK_STEPS, RolloutTree, group_ranges
from agentgym_rtmc.trainer.credit.view import KeyNames

if TYPE_CHECKING:
    from agentgym_rtmc.episodes import Episode, EpisodeGroup
    from agentgym_rtmc.signatures.base import Signature


@dataclass(frozen=True, eq=False)
class Layout:
    """Where the episodes go. `steps` maps a step to its place in the input; None when they already lie by group."""

    lengths: Ints
    group: Ints
    valid: Bools
    order: Ints
    steps: Ints | None
    labels: list[Hashable]

    def place(self, per_step: NDArray[Any]) -> NDArray[Any]:
        """Reorder an array over steps from the order of the input to that of the tree."""
        return per_step if self.steps is None else per_step[self.steps]


def layout(lengths: Ints, valid: ArrayLike | None, groups: ArrayLike | Sequence[Hashable] | None) -> Layout:
    """Check the arguments given per episode and order the episodes by group, groups by first appearance."""
    episodes = len(lengths)
    if not episodes:
        raise CreditError("there are no episodes; give at least one (two valid ones in a group for any credit)")
    flags = np.ones(episodes, np.bool_) if valid is None else np.asarray(valid)
    if flags.dtype != np.bool_ or flags.shape != (episodes,):
        raise CreditError(f"valid needs one boolean for each of the {episodes} episodes, got {valid!r}")
    empty = np.flatnonzero(flags & (lengths == 0))
    if len(empty):
        raise CreditError(f"episode {empty[0]} has no turns; leave it out or mark it False in valid")
    if groups is None:
        return Layout(lengths, np.zeros(episodes, np.int64), flags, np.arange(episodes), None, [None])
    plain: list[Hashable] = groups.tolist() if isinstance(groups, np.ndarray) else list(groups)  # type: ignore[arg-type]
    if len(plain) != episodes:
        raise CreditError(f"groups names {len(plain)} episodes, there are {episodes}")
    labels = list(dict.fromkeys(plain))
    rank = {label: index for index, label in enumerate(labels)}
    group = np.fromiter(map(rank.__getitem__, plain), dtype=np.int64, count=episodes)
    if np.all(group[1:] >= group[:-1]):
        return Layout(lengths, group, flags, np.arange(episodes), None, labels)
    order = np.argsort(group, kind="stable")
    starts = (np.cumsum(lengths) - lengths)[order]
    lengths = lengths[order]
    steps = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
    return Layout(lengths, group[order], flags[order], order, steps, labels)


def _parts(where: Layout) -> Iterator[tuple[slice, range]]:
    """Ranges of steps and of groups to be numbered together, leaving out what has no steps."""
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(where.lengths)])
    for low, high in group_ranges(where.group, where.lengths, CHUNK_STEPS):
        begin, end = starts[np.searchsorted(where.group, [low, high])].tolist()
        if end > begin:
            yield slice(begin, end), range(low, high)


def _joined(parents: list[Ints]) -> Ints:
    return np.concatenate(parents) if parents else np.empty(0, np.int64)


def level(where: Layout, episode: Ints, states: Ints, actions: Ints) -> Level:
    """Number the states of one key level and their pairs with the actions. Shapes: all (steps,)."""
    steps = len(states)
    state, pair, first = np.empty(steps, np.int64), np.empty(steps, np.int64), np.empty(steps, np.bool_)
    groups_of: list[Ints] = []
    states_of: list[Ints] = []
    state_offset = pair_offset = 0
    for part, groups in _parts(where):
        group = where.group[episode[part]] - groups.start
        state[part], group_of, pair[part], state_of, first[part] = number_pairs(
            group, states[part], actions[part], episode[part]
        )
        state[part] += state_offset
        pair[part] += pair_offset
        groups_of.append(group_of + groups.start)
        states_of.append(state_of + state_offset)
        state_offset += len(group_of)
        pair_offset += len(state_of)
    group_of, state_of = _joined(groups_of), _joined(states_of)
    base = np.searchsorted(group_of, np.arange(int(where.group[-1]) + 2))
    return Level(
        Numbering(state, group_of, base, episode),
        Numbering(pair, state_of, np.searchsorted(state_of, base), episode, first),
    )


def nodes(where: Layout, episode: Ints, keys: Ints, within: Numbering | None = None) -> Numbering:
    """Number keys within groups, or within the nodes of another numbering. Shapes: (steps,)."""
    ids = np.empty(len(keys), np.int64)
    parents: list[Ints] = []
    offset = 0
    for part, groups in _parts(where):
        start = groups.start if within is None else int(within.base[groups.start])
        major = where.group[episode[part]] if within is None else within.ids[part]
        ids[part], parent = number(major - start, keys[part])
        ids[part] += offset
        parents.append(parent + start)
        offset += len(parent)
    parent_of = _joined(parents)
    bounds = np.arange(int(where.group[-1]) + 2) if within is None else within.base
    return Numbering(ids, parent_of, np.searchsorted(parent_of, bounds), episode)


def usable_rewards(where: Layout, flat: Floats, episode: Ints) -> Floats:
    """Place the rewards and refuse non-finite ones, except in invalid episodes, where they become 0."""
    placed = where.place(flat)
    finite = np.isfinite(placed)
    if finite.all():
        return placed
    valid = where.valid[episode]
    broken = np.flatnonzero(~finite & valid)
    if len(broken):
        first = int(episode[broken[0]])
        turn = int(broken[0] - (np.cumsum(where.lengths) - where.lengths)[first])
        value = placed[broken[0]]
        raise CreditError(f"rewards: {value} in episode {where.order[first]}, turn {turn}; rewards must be finite")
    return np.where(finite, placed, 0.0)


def _grow(
    where: Layout,
    states: Sequence[Ints],
    actions: Ints,
    rewards: Floats,
    observations: Ints | None,
    token_counts: Floats | None,
    names: KeyNames,
) -> RolloutTree:
    episode = np.repeat(np.arange(len(where.lengths)), where.lengths)
    counts = None if token_counts is None else where.place(token_counts)
    if counts is not None and not np.all(counts >= 0):
        raise CreditError("token_counts must not be negative")
    checked = usable_rewards(where, rewards, episode)
    chosen = where.place(actions)
    return RolloutTree(
        lengths=where.lengths,
        group=where.group,
        valid=where.valid,
        order=where.order,
        rewards=checked,
        levels=tuple(level(where, episode, where.place(keys), chosen) for keys in states),
        observation=None if observations is None else nodes(where, episode, where.place(observations)),
        token_counts=counts,
        names=names,
    )


def turn_counts(name: str, episodes: Sequence[Any], expected: Ints | None = None) -> Ints:
    """Turns per episode, compared with what another argument said."""
    try:
        lengths = np.fromiter(map(len, episodes), dtype=np.int64)
    except TypeError as error:
        raise CreditError(f"{name} needs one sequence per episode: {error}") from error
    if expected is None:
        return lengths
    if len(lengths) != len(expected):
        raise CreditError(f"{name} has {len(lengths)} episodes where states has {len(expected)}")
    wrong = np.flatnonzero(lengths != expected)
    if len(wrong):
        which = wrong[0]
        raise CreditError(f"{name} of episode {which} has {lengths[which]} turns, states has {expected[which]}")
    return lengths


def flat_floats(name: str, episodes: Sequence[Any], count: int) -> Floats:
    """One flat float array out of one sequence per episode, `count` numbers in all."""
    try:
        if all(isinstance(episode, np.ndarray) for episode in episodes):
            return np.concatenate([*episodes, np.empty(0)]).astype(np.float64, copy=False)
        return np.fromiter(chain.from_iterable(episodes), dtype=np.float64, count=count)
    except (TypeError, ValueError) as error:
        raise CreditError(f"{name} must be numbers, one per turn: {error}") from error


def from_keys(
    states: Sequence[Sequence[Hashable]],
    actions: Sequence[Sequence[Hashable]],
    rewards: Sequence[Sequence[float]],
    valid: Sequence[bool] | None,
    groups: Sequence[Hashable] | None,
    coarser: Sequence[Sequence[Sequence[Hashable]]],
    observations: Sequence[Sequence[Hashable]] | None,
    token_counts: Sequence[Sequence[int]] | None,
) -> RolloutTree:
    """See `RolloutTree.from_keys`."""
    lengths = turn_counts("states", states)
    where = layout(lengths, valid, groups)
    steps = int(lengths.sum())
    named = [("actions", actions), *((f"coarser[{index}]", keys) for index, keys in enumerate(coarser))]
    if observations is not None:
        named.append(("observations", observations))
    flat: dict[str, list[Hashable]] = {"states": list(chain.from_iterable(states))}
    for name, episodes in named:
        turn_counts(name, episodes, lengths)
        flat[name] = list(chain.from_iterable(episodes))
    turn_counts("rewards", rewards, lengths)
    if token_counts is not None:
        turn_counts("token_counts", token_counts, lengths)
    ids = {name: intern(keys, steps) for name, keys in flat.items()}
    return _grow(
        where,
        [ids["states"], *(ids[f"coarser[{index}]"] for index in range(len(coarser)))],
        ids["actions"],
        flat_floats("rewards", rewards, steps),
        ids.get("observations"),
        None if token_counts is None else flat_floats("token_counts", token_counts, steps),
        KeyNames(flat["states"], flat["actions"], where.labels, where.steps, flat.get("observations")),
    )


def flat_ids(name: str, given: Any, lengths: Ints | None, flat: bool) -> Ints:
    """One flat integer array out of flat or per-episode input."""
    if not flat:
        turn_counts(name, given, lengths)
        given = np.concatenate([np.asarray(part) for part in given if len(part)] or [np.empty(0, np.int64)])
    array = np.asarray(given)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise CreditError(f"{name} must be integers of shape (steps,); from_keys takes keys of any kind")
    if lengths is not None and len(array) != lengths.sum():
        raise CreditError(f"{name} has {len(array)} steps where lengths add up to {lengths.sum()}")
    return array.astype(np.int64, copy=False)


def from_ids(
    states: Any,
    actions: Any,
    rewards: Any,
    lengths: ArrayLike | None,
    valid: ArrayLike | None,
    groups: ArrayLike | None,
    coarser: Sequence[Any],
    observations: Any,
    token_counts: Any,
) -> RolloutTree:
    """See `RolloutTree.from_ids`."""
    flat = lengths is not None
    sizes = np.asarray(lengths, dtype=np.int64) if flat else turn_counts("states", states)
    if sizes.ndim != 1 or np.any(sizes < 0):
        raise CreditError("lengths needs one non-negative number of turns per episode")
    where = layout(sizes, valid, groups)

    def floats(name: str, given: Any) -> Floats:
        if not flat:
            turn_counts(name, given, sizes)
            return flat_floats(name, given, int(sizes.sum()))
        array = np.asarray(given, dtype=np.float64)
        if array.shape != (sizes.sum(),):
            raise CreditError(f"{name} has shape {array.shape} where lengths add up to {sizes.sum()}")
        return array

    fine, chosen = flat_ids("states", states, sizes, flat), flat_ids("actions", actions, sizes, flat)
    seen = None if observations is None else flat_ids("observations", observations, sizes, flat)
    return _grow(
        where,
        [fine, *(flat_ids(f"coarser[{index}]", keys, sizes, flat) for index, keys in enumerate(coarser))],
        chosen,
        floats("rewards", rewards),
        seen,
        None if token_counts is None else floats("token_counts", token_counts),
        KeyNames(fine, chosen, where.labels, where.steps, seen),
    )


def check_group_names(groups: Sequence[EpisodeGroup]) -> None:
    """Refuse two groups of one name, which would silently become one."""
    if len({group.id for group in groups}) < len(groups):
        raise CreditError("two groups have one id; merge their episodes into one group or rename one")


def from_groups(
    groups: Sequence[EpisodeGroup], signature: Signature[Any], coarser: Sequence[Signature[Any]]
) -> RolloutTree:
    """See `RolloutTree.from_groups`."""
    from agentgym_rtmc.signatures.base import episode_keys
    from agentgym_rtmc.signatures.compose import levels_of

    check_group_names(groups)
    episodes: list[Episode] = [episode for group in groups for episode in group.episodes]
    finest, *others = levels_of(signature)
    keys = [episode_keys(finest, episode) for episode in episodes]
    with_ids = all(turn.token_ids is not None for episode in episodes for turn in episode.turns)
    return from_keys(
        states=[k.states for k in keys],
        actions=[k.actions for k in keys],
        rewards=[[turn.reward for turn in episode.turns] for episode in episodes],
        valid=[episode.valid and bool(episode.turns) for episode in episodes],
        groups=[group.id for group in groups for _ in group.episodes],
        coarser=[[episode_keys(level, episode).states for episode in episodes] for level in (*others, *coarser)],
        observations=[
            [episode.opening.observation, *(turn.observation for turn in episode.turns)][: len(episode.turns)]
            for episode in episodes
        ],
        token_counts=[[len(turn.token_ids or ()) for turn in e.turns] for e in episodes] if with_ids else None,
    )
