"""Token trees: prefixes instead of state keys.

Invariants: a step is a token (observation tokens included), its state the whole sequence before it; two tokens share a
state exactly when their sequences agree up to there. Prefixes are numbered without hashing any: sorted as bytes,
neighbours share exactly the nodes up to their longest common prefix.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from agentgym_rtmc.errors import CreditError
from agentgym_rtmc.trainer.credit.assemble import (
    Layout,
    check_group_names,
    flat_floats,
    flat_ids,
    layout,
    nodes,
    turn_counts,
    usable_rewards,
)
from agentgym_rtmc.trainer.credit.numbering import Bools, Floats, Ints, Level, Numbering
from agentgym_rtmc.trainer.credit.tree import RolloutTree
from agentgym_rtmc.trainer.credit.view import KeyNames

if TYPE_CHECKING:
    from agentgym_rtmc.episodes import Episode, EpisodeGroup


def from_tokens(
    token_ids: Sequence[ArrayLike],
    sampled_masks: Sequence[ArrayLike],
    rewards: ArrayLike | Sequence[ArrayLike],
    valid: Sequence[bool] | None,
    groups: Sequence[Hashable] | None,
) -> RolloutTree:
    """See `RolloutTree.from_tokens`."""
    sizes = turn_counts("token_ids", token_ids)
    where = layout(sizes, valid, groups)
    turn_counts("sampled_masks", sampled_masks, sizes)
    tokens = where.place(flat_ids("token_ids", token_ids, sizes, flat=False))
    if len(tokens) and not 0 <= tokens.min() <= tokens.max() < 1 << 32:
        raise CreditError("token_ids must lie in [0, 2**32)")
    masks = [np.asarray(mask, dtype=np.bool_) for mask in sampled_masks]
    sampled = where.place(np.concatenate(masks))
    if len(rewards) and np.ndim(rewards[0]) == 0:  # type: ignore[arg-type,index]
        rewards = _paid_at_the_end(np.asarray(rewards, dtype=np.float64), masks)
    turn_counts("rewards", rewards, sizes)  # type: ignore[arg-type]
    flat_rewards = flat_floats("rewards", rewards, int(sizes.sum()))  # type: ignore[arg-type]
    ids, final, base = _prefixes(tokens, where)
    episode = np.repeat(np.arange(len(where.lengths)), where.lengths)
    parent = np.repeat(np.arange(len(base) - 1), np.diff(base))
    prefixes = Numbering(ids, parent, base, episode, np.ones(len(ids), np.bool_))
    return RolloutTree(
        lengths=where.lengths,
        group=where.group,
        valid=where.valid,
        order=where.order,
        rewards=usable_rewards(where, flat_rewards, episode),
        levels=(Level(prefixes, nodes(where, episode, tokens, within=prefixes)),),
        token_counts=sampled.astype(np.float64),
        sampled=sampled,
        final=final,
        names=KeyNames(ids, tokens, where.labels, None, None),
    )


def _paid_at_the_end(per_episode: Floats, masks: Sequence[Bools]) -> list[Floats]:
    if len(per_episode) != len(masks):
        raise CreditError(f"rewards has {len(per_episode)} episodes where token_ids has {len(masks)}")
    paid = []
    for reward, mask in zip(per_episode.tolist(), masks, strict=True):
        row = np.zeros(len(mask))
        if len(mask):
            sampled = np.flatnonzero(mask)
            row[sampled[-1] if len(sampled) else -1] = reward
        paid.append(row)
    return paid


def _prefixes(tokens: Ints, where: Layout) -> tuple[Ints, Ints, Ints]:
    """Number the prefixes: before each token (steps,), at each episode's end (episodes,), first of each group."""
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(where.lengths)]).tolist()
    ids, final = np.empty(len(tokens), np.int64), np.empty(len(where.lengths), np.int64)
    base, fresh = [0], 0
    members = np.searchsorted(where.group, np.arange(int(where.group[-1]) + 2)).tolist()
    for low, high in pairwise(members):
        pieces = {index: tokens[starts[index] : starts[index + 1]] for index in range(low, high)}
        before: tuple[Ints, Ints] | None = None
        for index in sorted(pieces, key=lambda i: pieces[i].astype(np.uint32).tobytes()):
            piece = pieces[index]
            shared = 0 if before is None else 1 + _common_prefix(before[0], piece)
            nodes = np.arange(fresh - shared, fresh - shared + len(piece) + 1)
            if before is not None:
                nodes[:shared] = before[1][:shared]
            fresh = max(fresh, int(nodes[-1]) + 1)
            ids[starts[index] : starts[index + 1]] = nodes[:-1]
            final[index] = nodes[-1]
            before = (piece, nodes)
        base.append(fresh)
    return ids, final, np.asarray(base)


def _common_prefix(one: Ints, other: Ints) -> int:
    length = min(len(one), len(other))
    differ = one[:length] != other[:length]
    return int(differ.argmax()) if differ.any() else length


def from_group_tokens(groups: Sequence[EpisodeGroup]) -> RolloutTree:
    """See `RolloutTree.from_group_tokens`."""
    check_group_names(groups)
    episodes = [episode for group in groups for episode in group.episodes]
    columns = [_transcript(episode) for episode in episodes]
    return from_tokens(
        [ids for ids, _, _ in columns],
        [mask for _, mask, _ in columns],
        [paid for _, _, paid in columns],
        valid=[episode.valid and len(ids) > 0 for episode, (ids, _, _) in zip(episodes, columns, strict=True)],
        groups=[group.id for group in groups for _ in group.episodes],
    )


def _transcript(episode: Episode) -> tuple[Ints, Bools, Floats]:
    ids: list[int] = []
    mask: list[bool] = []
    paid: list[float] = []
    for index, turn in enumerate(episode.turns):
        context, sampled = turn.context_ids or (), turn.token_ids
        if sampled is None or not (ids or context or sampled):
            if episode.valid:
                raise CreditError(
                    f"turn {index} of episode {episode.id!r} has no token ids, of which a token tree is made; use "
                    "from_groups and an estimator of turns (tempo_step for tempo)"
                )
            break
        ids += [*context, *sampled]
        mask += [False] * len(context) + [True] * len(sampled)
        paid += [0.0] * (len(context) + len(sampled))
        paid[-1] += turn.reward
    return np.asarray(ids, np.int64), np.asarray(mask, np.bool_), np.asarray(paid, np.float64)
