"""Properties that every estimator has, and identities between them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rtmc.trainer.credit import ESTIMATORS, RolloutTree, estimate

from .batches import advantages, assert_close, batches, fewer, tree_of

ALL = sorted(
    n for n, entry in ESTIMATORS.items() if n != "gae" and entry.function.__module__.startswith("agentgym_rtmc")
)
LOCAL = sorted(set(ALL) - {"reinforce_pp"})  # a group's advantages depend on nothing outside it
MEMORY = {"between": 30.0, "within": 2.0}


def run_all(name, batch, shuffle=None):
    """With a memory that switches the step term of `adaptive` on."""
    tree, order = tree_of(batch, shuffle=shuffle, levels=2)
    rows = dict(zip(order, estimate(name, tree, memory=MEMORY), strict=True))
    return [rows[i].tolist() for i in range(len(order))]


def changed(batch, **change):
    return [[replace(run, **{key: make(run) for key, make in change.items()}) for run in group] for group in batch]


@pytest.mark.parametrize("name", ALL)
@fewer
@given(batch=batches(), shuffle=st.integers(0, 1000).map(Random))
def test_the_order_of_episodes_does_not_matter(name, batch, shuffle):
    assert_close(run_all(name, batch, shuffle), run_all(name, batch))


@pytest.mark.parametrize("name", ALL)
@fewer
@given(batch=batches())
def test_the_names_of_keys_do_not_matter(name, batch):
    renamed = changed(
        batch,
        states=lambda run: [("renamed", ord(s) * 7919 % 1009) for s in run.states],
        actions=lambda run: [-ord(a) for a in run.actions],
        coarser=lambda run: tuple([f"{key} again" for key in level] for level in run.coarser),
    )
    assert_close(run_all(name, renamed), run_all(name, batch))


@pytest.mark.parametrize("name", ALL)
@fewer
@given(batch=batches(), junk=st.sampled_from([0.0, 5.0, float("nan")]))
def test_invalid_episodes_change_nothing(name, batch, junk):
    def rewards(run):
        return run.rewards if run.valid else [junk] * len(run.rewards)

    with_junk = run_all(name, changed(batch, rewards=rewards))
    alone = [[run for run in group if run.valid] for group in batch]
    kept = iter(run_all(name, alone) if any(alone) else [])
    for run, row in zip([run for group in batch for run in group], with_junk, strict=True):
        assert_close([row], [next(kept)] if run.valid else [[0.0] * len(run.rewards)])


@pytest.mark.parametrize("name", ALL)
@fewer
@given(batch=batches(max_groups=1))
def test_one_valid_episode_gets_zeros(name, batch):
    first, *others = batch[0]
    lonely = [[replace(first, valid=True), *(replace(run, valid=False) for run in others)]]
    assert all(value == 0.0 for row in run_all(name, lonely) for value in row)


@pytest.mark.parametrize("name", ALL)
@fewer
@given(batch=batches(), reward=st.sampled_from([0.0, 1.0, -0.3]))
def test_equal_outcomes_teach_nothing(name, batch, reward):
    equal = changed(batch, rewards=lambda run: [0.0] * (len(run.rewards) - 1) + [reward])
    parameters = {"beta": 1.0} if name == "closure" else {"gamma": 1.0} if name == "gigpo" else {}
    tree, _ = tree_of(equal, levels=2)
    found = estimate(name, tree, memory=MEMORY, **parameters)
    assert max(abs(value) for row in found for value in row) < 1e-9


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("grpo", {}), ("dr_grpo", {}), ("rloo", {}), ("reinforce_pp", {}), ("tempo_step", {}), ("adaptive", {}),
        ("rtmc", {"gamma": 1.0}), ("rtmc", {"gamma": 1.0, "leave_one_out": True, "normalize": True}),
        ("rtmc", {"gamma": 0.9, "prior_strength": 0.0, "lengths": True}),
        ("backoff", {"gamma": 1.0}), ("backoff", {"gamma": 1.0, "q_strength": 1.0}),
        ("gigpo", {"gamma": 1.0}), ("closure", {"beta": 1.0}),
    ],
)  # fmt: skip
@fewer
@given(batch=batches("terminal"), shift=st.sampled_from([1.0, -2.5]))
def test_a_constant_added_to_every_outcome_changes_nothing(name, parameters, batch, shift):
    """With discounting only where all episodes are equally long, since the constant is discounted with the rest."""
    parameters = dict(parameters)
    if parameters.pop("lengths", False):
        batch = changed(
            batch,
            states=lambda run: [*run.states[:1], *range(5)],
            actions=lambda run: (run.actions * 6)[:6],
            rewards=lambda run: [0.0] * 5 + [run.total],
            coarser=lambda run: (["x"] * 6, ["y"] * 6),
        )
    shifted = changed(batch, rewards=lambda run: [*run.rewards[:-1], run.rewards[-1] + shift])
    rows = []
    for variant in (batch, shifted):
        tree, _ = tree_of(variant, levels=2)
        rows.append([row.tolist() for row in estimate(name, tree, memory=MEMORY, **parameters)])
    assert_close(rows[1], rows[0], 1e-7)


@pytest.mark.parametrize("name", LOCAL)
@fewer
@given(batch=batches())
def test_groups_do_not_touch_each_other(name, batch):
    together = run_all(name, batch)
    assert_close(together, [row for group in batch for row in run_all(name, [group])])


@fewer
@given(batch=batches(), gamma=st.sampled_from([1.0, 0.9]), strength=st.sampled_from([0.0, 2.0]))
def test_backoff_with_one_level_and_all_extras_off_is_rtmc(batch, gamma, strength):
    found = advantages("backoff", batch, gamma=gamma, strength=strength, leave_one_out=False, levels=1)
    assert_close(found, advantages("rtmc", batch, gamma=gamma, prior_strength=strength))


@fewer
@given(batch=batches())
def test_backoff_without_levels_is_the_group_centred_return(batch):
    found = advantages("backoff", batch, gamma=1.0, leave_one_out=False, levels=0, skip_zero_variance=False)
    if all(r == 0 for group in batch for run in group for r in run.rewards[:-1]):
        assert_close(found, advantages("dr_grpo", batch))
    else:  # with step rewards the turns behind are no longer at stake: equal at the first turn
        assert_close([row[:1] for row in found], [row[:1] for row in advantages("dr_grpo", batch)])


@fewer
@given(batch=batches())
def test_adaptive_starts_as_grpo(batch):
    assert_close(advantages("adaptive", batch), advantages("grpo", batch))


def test_equal_returns_earned_at_different_times_teach_adaptive_nothing():
    """At t one has its reward behind it, the other before it, so the ladder sees a difference."""
    tree = RolloutTree.from_keys([["s", "t"], ["t", "s"]], [["a", "b"], ["c", "b"]], [[1, 0], [0, 1]])
    found = estimate("adaptive", tree, memory=MEMORY, outcome_term="ladder")
    assert found.flat.tolist() == [0.0] * 4
    assert estimate("backoff", tree, gamma=1.0, skip_zero_variance=False).flat.any()


@pytest.mark.parametrize(("difference", "skipped"), [(1e-6, 0), (1e-14, 1)])
def test_returns_are_equal_only_up_to_rounding(difference, skipped):
    tree = RolloutTree.from_keys([["s"], ["s"]], [["a"], ["b"]], [[1.0], [1.0 + difference]])
    assert estimate("rtmc", tree).report == {"groups_skipped": skipped}


def test_without_prior_and_without_others_there_is_nothing_to_compare_with():
    tree = RolloutTree.from_keys([["s", "t"], ["s", "u"]], [["a", "b"], ["c", "b"]], [[0, 1], [0, 0.5]])
    found = estimate("rtmc", tree, prior_strength=0.0, leave_one_out=True, gamma=1.0)
    assert [row.tolist() for row in found] == [[0.5, 0.0], [-0.5, 0.0]]


@fewer
@given(batch=batches())
def test_tempo_step_without_weight_is_grpo(batch):
    assert_close(advantages("tempo_step", batch, weight=0.0), advantages("grpo", batch))


@fewer
@given(batch=batches("terminal"), strength=st.sampled_from([0.0, 1.0, 2.0, 8.0]), gamma=st.sampled_from([1.0, 0.9]))
def test_rtmc_on_singletons_is_a_scaled_group_baseline(batch, strength, gamma):
    names = iter(range(10**6))
    batch = changed(batch, states=lambda run: [next(names) for _ in run.states], valid=lambda run: True)
    found = advantages("rtmc", batch, prior_strength=strength, gamma=gamma, skip_zero_variance=False)
    for group in batch:
        starts = [gamma ** (len(run.rewards) - 1) * run.rewards[-1] for run in group]
        for run, start in zip(group, starts, strict=True):
            row, scale = found.pop(0), strength / (1 + strength)
            if len(group) > 1:
                expected = [scale * (start - np.mean(starts)) / gamma**t for t in range(len(run.rewards))]
                np.testing.assert_allclose(row, expected, atol=1e-9)


@fewer
@given(batch=batches("steps"), strength=st.sampled_from([0.5, 2.0]))
def test_rtmc_closed_form(batch, strength):
    """A = (Q - V) + n0 / (N(s) + n0) (V - V0), here with the constant prior."""
    tree, _ = tree_of(batch)
    plain = {"gamma": 0.9, "prior": "discounted", "skip_zero_variance": False}
    bare = estimate("rtmc", tree, prior_strength=0.0, **plain).flat
    smooth = estimate("rtmc", tree, prior_strength=strength, **plain).flat
    heavy = estimate("rtmc", tree, prior_strength=1e12, **plain).flat  # Q - V0
    visits = np.array(
        [
            tree.visits(s, group=g) if run.valid else 1
            for g, group in enumerate(batch)
            for run in group
            for s in run.states
        ]
    )
    np.testing.assert_allclose(smooth, bare + strength / (visits + strength) * (heavy - bare), atol=1e-6)


def test_step_rewards_and_the_constant_prior_punish_the_better_episode():
    """Why the default prior is the return-to-go: 30 turns, a reward every third turn, 10 sub-goals against 5."""
    rewards = [[float(t % 3 == 2) for t in range(30)], [float(t % 3 == 2 and t < 15) for t in range(30)]]
    tree = RolloutTree.from_keys([range(30), range(30, 60)], [[0] * 30] * 2, rewards)
    better = {prior: estimate("rtmc", tree, gamma=0.99, prior=prior)[0] for prior in ("discounted", "return_to_go")}
    assert better["discounted"][-1] < -3
    assert better["return_to_go"].min() > 0


def test_the_published_prior_punishes_unanimous_success():
    tree = RolloutTree.from_keys([range(30), range(100, 130)], [[0] * 30] * 2, [[0.0] * 29 + [1.0]] * 2)
    found = estimate("rtmc", tree, prior="success_rate", skip_zero_variance=False)
    assert found.flat.max() <= 1e-12 and found[0][0] == pytest.approx(2 / 3 * (0.99**29 - 1))
    assert estimate("rtmc", tree).report["groups_skipped"] == 1
