"""On enumerable processes: unbiased where claimed, consistent where claimed, and pointing the right way."""

from __future__ import annotations

import numpy as np
import pytest

from agentgym_rtmc.trainer.credit import estimate
from agentgym_rtmc.trainer.credit.processes import PROCESSES

MERGING = ("corridor", "tree", "stepwise")


def means_by_pair(process, sample, values, counted):
    """For each (state, action) met in 100 groups: mean over its visits, and the standard error over groups.

    Every visit weighs the same (groups that take an action rarely are not typical); visits of a group are dependent,
    so the error is that of a ratio of two group totals.
    """
    size = process.policy.size
    group = sample.tree.group[sample.tree.episode]
    cell = group * size + sample.state * 2 + sample.action
    total = np.bincount(cell[counted], values[counted], minlength=(group[-1] + 1) * size).reshape(-1, size)
    count = np.bincount(cell[counted], minlength=(group[-1] + 1) * size).reshape(-1, size)
    result = []
    for column in np.flatnonzero((count > 0).sum(axis=0) > 100):
        mean = total[:, column].sum() / count[:, column].sum()
        residual = total[:, column] - mean * count[:, column]
        result.append((column, mean, residual.std(ddof=1) / count[:, column].mean() / np.sqrt(len(residual))))
    return result


@pytest.mark.parametrize("name", PROCESSES)
def test_exact_values_agree_with_play(name):
    process = PROCESSES[name]()
    truth = process.truth()
    sample = process.sample(np.random.default_rng(1), 20_000, 1)
    returns = sample.tree.episode_returns
    assert truth.v[0] == pytest.approx(returns.mean(), abs=4 * returns.std() / 20_000**0.5)
    visits = np.bincount(sample.state, minlength=len(truth.v)) / 20_000
    np.testing.assert_allclose(visits, truth.visits, atol=0.03)
    np.testing.assert_allclose((process.policy * truth.advantage).sum(axis=1), 0.0, atol=1e-12)


@pytest.mark.parametrize("name", MERGING)
@pytest.mark.parametrize("method", ["rtmc", "backoff"])
def test_leave_one_out_is_unbiased_where_there_is_company(name, method):
    process = PROCESSES[name]()
    sample = process.sample(np.random.default_rng(2), 6000, 8)
    alone = {"rtmc": {"prior_strength": 0.0}, "backoff": {"strength": 0.0, "levels": 1}}[method]
    found = estimate(method, sample.tree, gamma=1.0, leave_one_out=True, skip_zero_variance=False, **alone)
    checked = means_by_pair(process, sample, found.flat, sample.tree.company())
    assert len(checked) > 10
    truth = process.truth().advantage.ravel()
    off = [(pair, mean, truth[pair], error) for pair, mean, error in checked if abs(mean - truth[pair]) > 3 * error]
    assert not off


def test_without_leave_one_out_the_own_return_shrinks_what_is_measured():
    process = PROCESSES["corridor"]()
    sample = process.sample(np.random.default_rng(2), 6000, 8)
    truth = process.truth().advantage.ravel()
    slopes = []
    for leave_one_out in (False, True):
        parameters = {"gamma": 1.0, "prior_strength": 0.0, "skip_zero_variance": False, "leave_one_out": leave_one_out}
        found = estimate("rtmc", sample.tree, **parameters)
        checked = means_by_pair(process, sample, found.flat, sample.tree.company())
        products = [(mean * truth[pair], truth[pair] ** 2) for pair, mean, _ in checked]
        slopes.append(sum(p for p, _ in products) / sum(s for _, s in products))
    assert slopes[0] < 0.85 and slopes[1] == pytest.approx(1.0, abs=0.03)


@pytest.mark.parametrize("name", MERGING)
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_tree_estimators_are_consistent(name, gamma):
    process = PROCESSES[name]()
    truth = process.truth(gamma)
    errors = []
    for episodes in (200, 20_000):
        sample = process.sample(np.random.default_rng(3), 1, episodes)
        true = truth.advantage[sample.state, sample.action]
        for method in ("rtmc", "backoff"):
            found = estimate(method, sample.tree, gamma=gamma).flat
            errors.append(float(np.sqrt(np.mean((found - true) ** 2))))
    assert max(errors[2:]) < 0.035
    assert errors[2] < 0.5 * errors[0] and errors[3] < 0.5 * errors[1]


@pytest.mark.parametrize("name", ["corridor", "detour", "tree"])
def test_closed_values_are_consistent(name):
    from agentgym_rtmc.trainer.credit.closure import closed_values

    process = PROCESSES[name]()
    sample = process.sample(np.random.default_rng(4), 1, 20_000)
    tree = sample.tree
    value = closed_values(tree, tree.rewards, 0.98)
    for node in range(tree.state.count):
        state = sample.state[np.argmax(tree.state.ids == node)]
        if (tree.state.ids == node).sum() > 500:
            assert value[node] == pytest.approx(process.truth(0.98).v[state], abs=0.03)


@pytest.mark.parametrize("name", ["corridor", "tree", "stepwise", "detour"])
@pytest.mark.parametrize(
    "method", ["grpo", "rloo", "rtmc", "gigpo", "tempo_step", "closure", "backoff", "adaptive", "reinforce_pp"]
)
def test_the_expected_gradient_points_the_right_way(name, method):
    process = PROCESSES[name]()
    sample = process.sample(np.random.default_rng(5), 3000, 8)
    found = estimate(method, sample.tree).flat
    estimated = np.zeros_like(process.policy)
    np.add.at(estimated, (sample.state, sample.action), found)
    by_state = np.bincount(sample.state, found, minlength=len(process.policy))
    estimated -= process.policy * by_state[:, None]
    true = process.truth().gradient(process.policy)
    cosine = float((estimated * true).sum() / np.linalg.norm(estimated) / np.linalg.norm(true))
    assert cosine > 0.9
