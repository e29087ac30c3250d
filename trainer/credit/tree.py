"""The rollout tree: a batch of grouped episodes with their states merged, as flat integer arrays.

Letters: `steps` all steps of all episodes one after the other, `episodes`, `groups`, `states` the distinct state keys
of each group, `pairs` the distinct (state, action) keys of each group. A step is an agent's turn, or a token.
Invariants:
- Episodes lie group by group (stable in the order given), so each group is one range of episodes, steps, states and
  pairs. `order` maps back, and everything per episode that leaves the tree is in the order given.
- States of different groups are different nodes. Nothing is shared between groups.
- A tree is never changed. An episode with `valid=False` keeps its place and takes part in no statistic.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agentgym_rtmc.trainer.credit.numbering import Bools, Floats, Ints, Level, Numbering, sums
from agentgym_rtmc.trainer.credit.view import KeyNames, TreeView

if TYPE_CHECKING:
    from agentgym_rtmc.episodes import EpisodeGroup
    from agentgym_rtmc.signatures.base import Signature

CHUNK_STEPS = 1 << 13
"""Steps worked on at once (whole groups, so possibly more): arrays stay in the caches and off fresh memory pages."""


@dataclass(frozen=True, eq=False)
class RolloutTree:
    """Merged episodes. Build one with `from_keys`, `from_ids`, `from_tokens` or `from_groups`.

    lengths, group, valid, order: (episodes,). rewards: (steps,). levels: states and (state, action) pairs from fine
    to coarse; the first gives *the* `state` and `pairs`. observation: the observations that the steps answered, if
    given. token_counts: (steps,) sampled tokens of each step, if given. sampled: (steps,) false for the tokens that
    the policy did not sample (token trees only). final: (episodes,) the state after the last step (token trees only;
    elsewhere an episode's end is no state).

    >>> tree = RolloutTree.from_keys([["s0", "s1"], ["s0"]], [["a", "b"], ["c"]], [[0, 1], [0]])
    >>> tree.visits("s0"), tree.value("s0"), tree.q("s0", "a"), tree.children("s0")
    (2, 0.5, 1.0, {'a': {'s1': 1}, 'c': {None: 1}})
    >>> tree.company().tolist()
    [True, False, True]
    """

    lengths: Ints
    group: Ints
    valid: Bools
    order: Ints
    rewards: Floats
    levels: tuple[Level, ...]
    observation: Numbering | None = None
    token_counts: Floats | None = None
    sampled: Bools | None = None
    final: Ints | None = None
    names: KeyNames | None = None

    @classmethod
    def from_keys(
        cls,
        states: Sequence[Sequence[Hashable]],
        actions: Sequence[Sequence[Hashable]],
        rewards: Sequence[Sequence[float]],
        *,
        valid: Sequence[bool] | None = None,
        groups: Sequence[Hashable] | None = None,
        coarser: Sequence[Sequence[Sequence[Hashable]]] = (),
        observations: Sequence[Sequence[Hashable]] | None = None,
        token_counts: Sequence[Sequence[int]] | None = None,
    ) -> RolloutTree:
        """Merge episodes given by hashable keys, one inner sequence per episode, one entry per turn.

        `groups` names the group of each episode (default: all in one), so a whole batch is one call. `coarser` holds
        more state keys, from fine to coarse, each shaped like `states`. An episode that is valid has at least one
        turn. Raises CreditError naming the argument and the episode for ragged, empty or non-finite input.
        """
        from agentgym_rtmc.trainer.credit import assemble

        return assemble.from_keys(states, actions, rewards, valid, groups, coarser, observations, token_counts)

    @classmethod
    def from_ids(
        cls,
        states: ArrayLike | Sequence[ArrayLike],
        actions: ArrayLike | Sequence[ArrayLike],
        rewards: ArrayLike | Sequence[ArrayLike],
        *,
        lengths: ArrayLike | None = None,
        valid: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        coarser: Sequence[Any] = (),
        observations: ArrayLike | Sequence[ArrayLike] | None = None,
        token_counts: ArrayLike | Sequence[ArrayLike] | None = None,
    ) -> RolloutTree:
        """Merge episodes given by integer keys, the fast way in.

        Either one integer array per episode, or flat arrays of shape (steps,) with `lengths` (episodes,).
        Any 64-bit integers will do; small ones are fastest. The rest is as in `from_keys`.
        """
        from agentgym_rtmc.trainer.credit import assemble

        return assemble.from_ids(states, actions, rewards, lengths, valid, groups, coarser, observations, token_counts)

    @classmethod
    def from_tokens(
        cls,
        token_ids: Sequence[ArrayLike],
        sampled_masks: Sequence[ArrayLike],
        rewards: ArrayLike | Sequence[ArrayLike],
        *,
        valid: Sequence[bool] | None = None,
        groups: Sequence[Hashable] | None = None,
    ) -> RolloutTree:
        """Merge token sequences by their prefixes; a step is a token, its state the whole sequence before it.

        `token_ids` holds one sequence per episode over all its turns, observation tokens included; the mask is true
        where the policy sampled the token. `rewards` is one number per episode (paid on the last sampled token) or one
        array per episode with a reward per token. Advantages of tokens that were not sampled are 0.
        """
        from agentgym_rtmc.trainer.credit import prefixes

        return prefixes.from_tokens(token_ids, sampled_masks, rewards, valid, groups)

    @classmethod
    def from_groups(
        cls, groups: Sequence[EpisodeGroup], signature: Signature[Any], coarser: Sequence[Signature[Any]] = ()
    ) -> RolloutTree:
        """Merge our own episodes, keyed by a signature (and coarser ones); episodes lie in the order of the groups.

        A `chain` of signatures brings its coarser levels along.
        An episode without turns made no decision and counts as invalid. Observations and token counts come along.
        """
        from agentgym_rtmc.trainer.credit import assemble

        return assemble.from_groups(groups, signature, coarser)

    @classmethod
    def from_group_tokens(cls, groups: Sequence[EpisodeGroup]) -> RolloutTree:
        """Merge our own episodes by the exact tokens of their transcripts, in the order of the groups.

        The sequence of an episode is, turn by turn, its `context_ids` and then its sampled `token_ids`; where a chat
        template forked, the new prompt follows what was there. Each turn's reward is paid on its last token. Raises
        CreditError where a valid episode has no token ids.
        """
        from agentgym_rtmc.trainer.credit import prefixes

        return prefixes.from_group_tokens(groups)

    # -- sizes and positions ------------------------------------------------------------------------------------------

    @property
    def step_count(self) -> int:
        """Number of steps."""
        return len(self.rewards)

    @property
    def episode_count(self) -> int:
        """Number of episodes, invalid ones included."""
        return len(self.lengths)

    @property
    def group_count(self) -> int:
        """Number of groups."""
        return int(self.group[-1]) + 1

    @property
    def state(self) -> Numbering:
        """The states, of the finest level."""
        return self.levels[0].states

    @property
    def pairs(self) -> Numbering:
        """The (state, action) pairs, of the finest level; `pairs.parent` is the state."""
        return self.levels[0].pairs

    @cached_property
    def starts(self) -> Ints:
        """First step of each episode, and the number of steps at the end. Shape: (episodes + 1,)."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])

    @property
    def episode(self) -> Ints:
        """Episode of each step. Shape: (steps,)."""
        return self.state.episode

    @cached_property
    def left(self) -> Ints:
        """Steps from this one to the episode's last, inclusive. Shape: (steps,)."""
        return np.repeat(self.starts[1:], self.lengths) - np.arange(self.step_count)

    @cached_property
    def turn(self) -> Ints:
        """Index of each step in its episode, from 0. Shape: (steps,)."""
        return np.arange(self.step_count) - np.repeat(self.starts[:-1], self.lengths)

    @cached_property
    def after(self) -> Ints:
        """State after each step; -1 (or `final`) after the last of an episode. Shape: (steps,)."""
        after = np.empty(self.step_count, np.int64)
        after[:-1] = self.state.ids[1:]
        held = self.lengths > 0
        after[self.starts[1:][held] - 1] = -1 if self.final is None else self.final[held]
        return after

    # -- who counts ---------------------------------------------------------------------------------------------------

    @cached_property
    def live_count(self) -> Ints:
        """Valid episodes of each group that has at least two, else 0. Shape: (groups,)."""
        count = np.bincount(self.group[self.valid], minlength=self.group_count)
        return np.where(count >= 2, count, 0)

    @cached_property
    def live(self) -> Bools:
        """Episodes that take part in statistics: valid, in a group with two valid ones. Shape: (episodes,)."""
        return self.valid & (self.live_count > 0)[self.group]

    @cached_property
    def all_live(self) -> bool:
        """Whether every episode takes part, the common case."""
        return bool(self.live.all())

    @cached_property
    def live_steps(self) -> Bools:
        """Steps of live episodes. Shape: (steps,)."""
        return np.repeat(self.live, self.lengths)

    @cached_property
    def credited(self) -> Bools:
        """Steps that may get credit: of live episodes, and sampled by the policy. Shape: (steps,)."""
        return self.live_steps if self.sampled is None else self.live_steps & self.sampled

    @cached_property
    def taken(self) -> Bools:
        """Steps that the policy took in valid episodes, whatever their company. Shape: (steps,)."""
        valid = np.repeat(self.valid, self.lengths)
        return valid if self.sampled is None else valid & self.sampled

    @cached_property
    def episode_returns(self) -> Floats:
        """R, the undiscounted sum of each episode's rewards. Shape: (episodes,)."""
        return sums(self.episode, self.rewards, self.episode_count)

    def company(self) -> Bools:
        """Whether another valid episode of the group met the state of each step. Shape: (steps,).

        Steps of invalid episodes have none. Steps lie in the tree's order; `split` gives them back per episode. A
        token sequence also meets the prefix it ends with.
        """
        company = np.repeat(self.valid, self.lengths)
        for steps, part in self.chunks():
            valid, state = company[steps], part.state
            visitors = np.bincount(state.ids[state.first & valid], minlength=state.count)
            if part.final is not None:
                visitors += np.bincount(part.final[part.valid], minlength=state.count)
            valid &= (visitors >= 2)[state.ids]
        return company

    def company_share(self) -> float:
        """Share of the steps that the policy took in valid episodes that have company; 0.0 without any."""
        total = int(np.count_nonzero(self.taken))
        return float(np.count_nonzero(self.company() & self.taken)) / total if total else 0.0

    # -- parts --------------------------------------------------------------------------------------------------------

    def split(self, per_step: NDArray[Any]) -> list[NDArray[Any]]:
        """Cut an array over steps into one array per episode, in the order the episodes were given."""
        pieces: list[NDArray[Any]] = [per_step[:0]] * self.episode_count
        starts = self.starts.tolist()
        for position, given in enumerate(self.order.tolist()):
            pieces[given] = per_step[starts[position] : starts[position + 1]]
        return pieces

    def join(self, per_episode: Sequence[ArrayLike]) -> Floats:
        """The reverse of `split`: one array per episode, in the order given, to one array over steps."""
        return np.concatenate([np.asarray(per_episode[given], dtype=np.float64) for given in self.order])

    def chunks(self, steps: int = CHUNK_STEPS) -> Iterator[tuple[slice, RolloutTree]]:
        """Yield consecutive parts of whole groups, each a tree of its own, with their range of steps."""
        for low, high in group_ranges(self.group, self.lengths, steps):
            part = self if high - low == self.group_count else self._part(low, high)
            episode = int(np.searchsorted(self.group, low))
            start = int(self.starts[episode])
            yield slice(start, start + part.step_count), part

    def _part(self, low: int, high: int) -> RolloutTree:
        first, last = (int(x) for x in np.searchsorted(self.group, [low, high]))
        episodes, groups = slice(first, last), slice(low, high)
        steps = slice(int(self.starts[first]), int(self.starts[last]))
        episode = self.episode[steps] - first
        return RolloutTree(
            lengths=self.lengths[episodes],
            group=self.group[episodes] - low,
            valid=self.valid[episodes],
            order=np.arange(last - first),
            rewards=self.rewards[steps],
            levels=tuple(level.part(steps, groups, episode) for level in self.levels),
            observation=None if self.observation is None else self.observation.part(steps, groups, low, episode),
            token_counts=None if self.token_counts is None else self.token_counts[steps],
            sampled=None if self.sampled is None else self.sampled[steps],
            final=None if self.final is None else self.final[episodes] - self.state.base[low],
            names=None if self.names is None else self.names.part(steps, groups),
        )

    # -- questions by key ---------------------------------------------------------------------------------------------

    @cached_property
    def view(self) -> TreeView:
        """The tree by key instead of by number."""
        return TreeView(self)

    def visits(self, state: Hashable, action: Hashable = None, *, group: Hashable = None) -> int:
        """N(s, a), the valid episodes that take an action at a state; without an action N(s), their sum."""
        return self.view.visits(state, action, group)

    def value(self, state: Hashable, *, group: Hashable = None, gamma: float = 1.0) -> float:
        """V(s), the mean over its actions of Q(s, a), weighted by N(s, a)."""
        return self.view.value(state, group, gamma)

    def q(self, state: Hashable, action: Hashable, *, group: Hashable = None, gamma: float = 1.0) -> float:
        """Q(s, a), the mean return after an episode's first visit of the pair."""
        return self.view.q(state, action, group, gamma)

    def children(self, state: Hashable, *, group: Hashable = None) -> Mapping[Hashable, Mapping[Hashable, int]]:
        """For each action taken at a state, the next states and how often (every visit); None is an episode's end."""
        return self.view.children(state, group)

    def episodes(self, state: Hashable, *, group: Hashable = None) -> list[int]:
        """Indices, in the order given, of the valid episodes that pass through a state."""
        return self.view.episodes(state, group)

    def to_json(self, gamma: float = 1.0) -> dict[str, Any]:
        """Nodes (visits, V) and edges (visits, Q) of every group as plain JSON values."""
        return self.view.to_json(gamma)

    def to_networkx(self, gamma: float = 1.0) -> Any:
        """The same as a `networkx.MultiDiGraph`: nodes `(group, state)`, one edge for each (action, next state)."""
        return self.view.to_networkx(gamma)


def group_ranges(group: Ints, lengths: Ints, steps: int) -> list[tuple[int, int]]:
    """Ranges of consecutive groups with about `steps` steps each; a group is never cut."""
    per_group = np.bincount(group, weights=lengths).astype(np.int64)
    ranges, low, size = [], 0, 0
    for index, more in enumerate(per_group.tolist()):
        if size and size + more > steps:
            ranges.append((low, index))
            low, size = index, 0
        size += more
    ranges.append((low, len(per_group)))
    return ranges
