"""Every estimator agrees with its literal reference to 1e-9, whatever the batch and the order of its runs."""

from __future__ import annotations

from dataclasses import replace
from difflib import SequenceMatcher
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rtmc.trainer.credit import RolloutTree, estimate

from . import literal
from .batches import advantages, assert_close, batches, tree_of

shuffles = st.integers(0, 1000).map(Random)
gammas = st.sampled_from([1.0, 0.99, 0.5])


def by_group(reference, batch, **parameters):
    return [row for group in batch for row in reference(group, **parameters)]


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
@given(batch=batches(), shuffle=shuffles)
def test_outcome_estimators(name, batch, shuffle):
    assert_close(advantages(name, batch, shuffle=shuffle), by_group(getattr(literal, name), batch))


@given(batch=batches(), shuffle=shuffles, counted=st.booleans())
def test_reinforce_pp(batch, shuffle, counted):
    """Whitened over turns, or over the sampled tokens where they are counted."""
    if not counted:
        batch = [[replace(run, tokens=()) for run in group] for group in batch]
    tree, order = tree_of(batch, shuffle=shuffle)
    if counted:
        flat = [run for group in batch for run in group]
        counts = [np.array(flat[i].tokens, dtype=float) for i in order]
        tree = replace(tree, token_counts=tree.join(counts))
    rows = dict(zip(order, estimate("reinforce_pp", tree), strict=True))
    assert_close([rows[i] for i in range(len(order))], literal.reinforce_pp(batch))


@given(batch=batches(), shuffle=shuffles, gamma=gammas, lambda_=st.sampled_from([0.0, 0.5, 1.0]), last=st.booleans())
def test_gae(batch, shuffle, gamma, lambda_, last):
    flat = [run for group in batch for run in group]
    tree, order = tree_of(batch, shuffle=shuffle)
    bootstrap = [0.5 * last * (i % 3) for i in range(len(flat))]
    found = estimate(
        "gae",
        tree,
        values=[flat[i].values for i in order],
        bootstrap=[bootstrap[i] for i in order],
        gamma=gamma,
        lambda_=lambda_,
    )
    rows = dict(zip(order, found, strict=True))
    expected, start = [], 0
    for group in batch:
        expected += literal.gae(group, gamma, lambda_, bootstrap[start : start + len(group)])
        start += len(group)
    assert_close([rows[i] for i in range(len(flat))], expected)


@given(
    batch=batches(),
    shuffle=shuffles,
    gamma=gammas,
    prior=st.sampled_from(["return_to_go", "discounted"]),
    prior_strength=st.sampled_from([0.0, 2.0, 7.5]),
    leave_one_out=st.booleans(),
    normalize=st.booleans(),
    skip_zero_variance=st.booleans(),
)
def test_rtmc(batch, shuffle, **parameters):
    found = advantages("rtmc", batch, shuffle=shuffle, **parameters)
    assert_close(found, by_group(literal.rtmc, batch, **parameters))


@given(batch=batches("binary"), shuffle=shuffles, leave_one_out=st.booleans())
def test_rtmc_as_published(batch, shuffle, leave_one_out):
    parameters = {"prior": "success_rate", "leave_one_out": leave_one_out}
    found = advantages("rtmc", batch, shuffle=shuffle, **parameters)
    assert_close(found, by_group(literal.rtmc, batch, **parameters))


@given(
    batch=batches(),
    shuffle=shuffles,
    gamma=gammas,
    step_weight=st.sampled_from([0.0, 1.0, 2.5]),
    normalization=st.sampled_from(["mean_norm", "mean_std_norm"]),
    baseline=st.sampled_from(["episode", "released"]),
)
def test_gigpo(batch, shuffle, **parameters):
    found = advantages("gigpo", batch, shuffle=shuffle, **parameters)
    assert_close(found, by_group(literal.gigpo, batch, **parameters))


words = st.lists(st.sampled_from(["ab", "cd", "abcd"]), min_size=8, max_size=12).map(" ".join)


@given(batch=batches("terminal", max_groups=2), texts=st.lists(words, min_size=1, max_size=5), data=st.data())
def test_gigpo_with_similar_anchors(batch, texts, data):
    batch = [group[:4] for group in batch]
    seen = {id(run): [data.draw(st.sampled_from(texts)) for _ in run.states] for group in batch for run in group}
    tree, _ = tree_of(batch, observations=[seen[id(run)] for group in batch for run in group])
    found = estimate("gigpo", tree, anchors="similar", similarity=0.8)
    expected = []
    for group in batch:
        heads, cluster = [], {}
        for run in literal.valid_of(group):
            for text in seen[id(run)]:
                if text not in cluster:
                    close = [head for head in heads if SequenceMatcher(None, head, text).ratio() >= 0.8]
                    cluster[text] = close[0] if close else text
                    heads += [] if close else [text]
        expected += literal.gigpo(group, anchor=lambda run, t, c=cluster: c[seen[id(run)][t]])
    assert_close(found, expected)


def test_the_texts_of_invalid_episodes_head_no_cluster():
    """The first text resembles the second but not the third; those two resemble each other."""
    texts = [["Xbcdefghij"], ["abcdefghij"], ["abcdefgh12"]]
    for first, expected in ((True, [1 / 3, 1 / 3, -2 / 3]), (False, [0.0, 1.0, -1.0])):
        tree = RolloutTree.from_keys(
            texts, [["a"]] * 3, [[1.0], [1.0], [0.0]], observations=texts, valid=[first, True, True]
        )
        found = estimate("gigpo", tree, anchors="similar", similarity=0.75, gamma=1.0)
        np.testing.assert_allclose(found.flat, expected)


@given(batch=batches(), shuffle=shuffles, weight=st.sampled_from([0.0, 1.0, 3.0]), normalize=st.booleans())
def test_tempo_step(batch, shuffle, **parameters):
    found = advantages("tempo_step", batch, shuffle=shuffle, **parameters)
    assert_close(found, by_group(literal.tempo_step, batch, **parameters))


tokens = st.lists(st.sampled_from([1, 2, 300]), min_size=1, max_size=8)


@given(
    groups=st.lists(
        st.lists(
            st.tuples(
                tokens, st.lists(st.booleans(), min_size=8, max_size=8), st.sampled_from([0, 1, -0.5]), st.booleans()
            ),
            min_size=1,
            max_size=6,
        ),
        min_size=1,
        max_size=3,
    ),
    normalize=st.booleans(),
)
def test_tempo(groups, normalize):
    flat = [entry for group in groups for entry in group]
    tree = RolloutTree.from_tokens(
        [entry[0] for entry in flat],
        [entry[1][: len(entry[0])] for entry in flat],
        [float(entry[2]) for entry in flat],
        valid=[entry[3] for entry in flat],
        groups=[index for index, group in enumerate(groups) for _ in group],
    )
    expected = []
    for group in groups:
        columns = list(zip(*group, strict=True))
        masks = [mask[: len(ids)] for ids, mask in zip(columns[0], columns[1], strict=True)]
        expected += literal.tempo(columns[0], masks, columns[2], columns[3], normalize)
    assert_close(estimate("tempo", tree, normalize=normalize), expected)


@given(
    batch=batches("binary"),
    shuffle=shuffles,
    beta=st.sampled_from([0.5, 0.9, 0.98]),
    form=st.sampled_from(["general", "published"]),
)
def test_closure_on_outcomes(batch, shuffle, **parameters):
    found = advantages("closure", batch, shuffle=shuffle, **parameters)
    assert_close(found, by_group(literal.closure, batch, **parameters))


@given(
    batch=batches(), shuffle=shuffles, beta=st.sampled_from([0.5, 0.9, 0.98]), step_weight=st.sampled_from([0.0, 5.0])
)
def test_closure_on_any_rewards(batch, shuffle, **parameters):
    found = advantages("closure", batch, shuffle=shuffle, **parameters)
    assert_close(found, by_group(literal.closure, batch, **parameters))


@given(
    batch=batches(),
    shuffle=shuffles,
    gamma=gammas,
    strength=st.sampled_from([0.0, 2.0]),
    q_strength=st.sampled_from([0.0, 1.5]),
    used=st.integers(0, 3),
    leave_one_out=st.booleans(),
    variance_gate=st.booleans(),
)
def test_backoff(batch, shuffle, used, **parameters):
    tree, order = tree_of(batch, shuffle=shuffle, levels=2)
    rows = dict(zip(order, estimate("backoff", tree, levels=used, **parameters), strict=True))
    expected = by_group(literal.backoff, batch, levels=used, **parameters)
    assert_close([rows[i] for i in range(len(order))], expected)


@given(
    batch=batches(),
    shuffle=shuffles,
    gamma=st.sampled_from([0.9, 0.5]),
    strength=st.sampled_from([0.0, 2.0]),
    q_strength=st.sampled_from([0.0, 1.5]),
    used=st.integers(0, 3),
    leave_one_out=st.booleans(),
    variance_gate=st.booleans(),
)
def test_backoff_with_closed_values(batch, shuffle, used, **parameters):
    parameters["values"] = "closure"
    tree, order = tree_of(batch, shuffle=shuffle, levels=2)
    rows = dict(zip(order, estimate("backoff", tree, levels=used, **parameters), strict=True))
    expected = by_group(literal.backoff, batch, levels=used, **parameters)
    assert_close([rows[i] for i in range(len(order))], expected)


@given(
    batch=batches(), shuffle=shuffles, sums=st.sampled_from([(0.0, 0.0), (1.0, 0.7), (50.0, 3.0)]), ladder=st.booleans()
)
def test_adaptive(batch, shuffle, sums, ladder):
    tree, order = tree_of(batch, shuffle=shuffle, levels=1)
    term = "ladder" if ladder else "return"
    found = estimate("adaptive", tree, memory={"between": sums[0], "within": sums[1]}, outcome_term=term)
    rows = dict(zip(order, found, strict=True))
    expected, carried = literal.adaptive(batch, *sums, outcome_term=term, levels=2)
    assert_close([rows[i] for i in range(len(order))], expected)
    assert found.memory == pytest.approx(carried, abs=1e-9)
