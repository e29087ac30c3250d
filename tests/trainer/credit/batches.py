"""Hypothesis strategies for batches of groups, and how a batch enters the code under test."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from agentgym_rtmc.trainer.credit import RolloutTree, estimate

from .literal import Run

fewer = settings(max_examples=max(10, settings().max_examples // 5))
"""For properties checked once per estimator; agreement with the references gets the whole profile."""

rewards = st.one_of(st.sampled_from([0.0, 1.0, -1.0, 0.5, 0.1, 0.3]), st.floats(-3, 3, width=16).map(float))


@st.composite
def runs(draw, kind, keys):
    length = draw(st.integers(1, 6))
    states = draw(st.lists(st.sampled_from(keys), min_size=length, max_size=length))
    actions = draw(st.lists(st.sampled_from("ab"), min_size=length, max_size=length))
    if kind == "steps":
        paid = draw(st.lists(rewards, min_size=length, max_size=length))
    else:
        paid = [0.0] * (length - 1) + [draw(st.sampled_from([0.0, 1.0]) if kind == "binary" else rewards)]
    coarser = ([draw(st.sampled_from("XY")) for _ in states], ["*" for _ in states])
    values = draw(st.lists(st.sampled_from([0.0, 0.25, 0.5, -1.0, 2.0]), min_size=length, max_size=length))
    tokens = draw(st.lists(st.integers(0, 4), min_size=length, max_size=length))
    valid = draw(st.sampled_from([True] * 5 + [False]))
    return Run(states, actions, paid, valid, coarser, tuple(values), tuple(tokens))


@st.composite
def batches(draw, kind=None, max_groups=3):
    """Lists of groups: repeats, singletons, invalid runs, ties, lonely groups, step and negative rewards."""
    kind = kind or draw(st.sampled_from(["binary", "terminal", "steps"]))
    keys = draw(st.sampled_from(["s", "st", "stuvw", "abcdefghijklmnopqrst"]))
    return draw(st.lists(st.lists(runs(kind, keys), min_size=1, max_size=7), min_size=1, max_size=max_groups))


def tree_of(batch, *, shuffle=None, levels=0, **more):
    """The tree of a batch and the order of its runs; `shuffle` is a random.Random that interleaves the groups."""
    flat = [(index, run) for index, group in enumerate(batch) for run in group]
    order = list(range(len(flat)))
    if shuffle is not None:
        shuffle.shuffle(order)
    mixed = [flat[i] for i in order]
    tree = RolloutTree.from_keys(
        [run.states for _, run in mixed],
        [run.actions for _, run in mixed],
        [run.rewards for _, run in mixed],
        valid=[run.valid for _, run in mixed],
        groups=[index for index, _ in mixed],
        coarser=[[run.coarser[level] for _, run in mixed] for level in range(levels)],
        **more,
    )
    return tree, order


def advantages(name, batch, *, shuffle=None, **parameters):
    """Estimated advantages as nested lists, one per run, in the order of the batch."""
    tree, order = tree_of(batch, shuffle=shuffle)
    found = estimate(name, tree, **parameters)
    rows = [None] * len(order)
    for position, row in zip(order, found, strict=True):
        rows[position] = row.tolist()
    return rows


def assert_close(found, expected, tolerance=1e-9):
    """Agreement to 1e-9, relative to the largest expected value where that is above 1."""
    assert len(found) == len(expected)
    scale = max([1.0, *(abs(x) for row in expected for x in row)])
    for row, reference in zip(found, expected, strict=True):
        np.testing.assert_allclose(row, reference, rtol=0, atol=tolerance * scale)
