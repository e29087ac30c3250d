"""The tree: what it merges, what it refuses, what it answers, how it is cut and exported."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rtmc.errors import CreditError
from agentgym_rtmc.trainer.credit import ESTIMATORS, RolloutTree, estimate
from agentgym_rtmc.trainer.credit.numbering import number, number_pairs

from . import literal
from .batches import batches, fewer, tree_of

OURS = {n for n, entry in ESTIMATORS.items() if n != "gae" and entry.function.__module__.startswith("agentgym_rtmc")}
TWO = {"states": [["s0", "s1"], ["s0"]], "actions": [["a", "b"], ["c"]], "rewards": [[0, 1], [0]]}


def random_ids(groups, episodes, turns, seed=0, keys=40, ragged=True):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, turns + 1, groups * episodes) if ragged else np.full(groups * episodes, turns)
    steps = int(lengths.sum())
    rewards = rng.choice([0.0, 0.0, 1.0, -0.5], steps)
    return {
        "states": rng.integers(0, keys, steps),
        "actions": rng.integers(0, 3, steps),
        "rewards": rewards,
        "lengths": lengths,
        "groups": np.repeat(np.arange(groups), episodes),
        "coarser": [rng.integers(0, 3, steps)],
        "valid": rng.random(groups * episodes) < 0.9,
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"states": [], "actions": [], "rewards": []}, "no episodes"),
        ({"actions": [["a"], ["c"]]}, "actions of episode 0 has 1 turns, states has 2"),
        ({"rewards": [[0, 1]]}, "rewards has 1 episodes where states has 2"),
        ({"rewards": [[0, float("nan")], [0]]}, "nan in episode 0, turn 1"),
        ({"rewards": [[0, float("inf")], [0]]}, "inf in episode 0, turn 1"),
        ({"rewards": [[0, "x"], [0]]}, "rewards must be numbers"),
        ({"states": [["s0", ["s1"]], ["s0"]]}, "hashable"),
        (
            {"states": [["s0", "s1"], []], "actions": [["a", "b"], []], "rewards": [[0, 1], []]},
            "episode 1 has no turns",
        ),
        ({"valid": [True]}, "one boolean for each of the 2 episodes"),
        ({"valid": [1, 0]}, "one boolean for each"),
        ({"groups": ["g"]}, "groups names 1 episodes, there are 2"),
        ({"coarser": [[["x"], ["x"]]]}, r"coarser\[0\] of episode 0 has 1 turns"),
        ({"observations": [["x", "y"]]}, "observations has 1 episodes"),
        ({"token_counts": [[1, -1], [3]]}, "token_counts must not be negative"),
    ],
)
def test_unusable_input_is_refused_with_the_reason(change, message):
    with pytest.raises(CreditError, match=message):
        RolloutTree.from_keys(**TWO | change)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([[0.5]], [[1]], [[1.0]]), "states must be integers"),
        (([[1, 2]], [[1]], [[1.0]]), "actions of episode 0"),
        (([1, 2], [1, 2], [1.0, 0.0]), "one sequence per episode"),
    ],
)
def test_integer_input_is_checked(arguments, message):
    with pytest.raises(CreditError, match=message):
        RolloutTree.from_ids(*arguments)


def test_flat_integer_input_is_checked():
    with pytest.raises(CreditError, match="states has 2 steps where lengths add up to 3"):
        RolloutTree.from_ids([1, 2], [1, 2], [0.0, 1.0], lengths=[1, 2])
    with pytest.raises(CreditError, match="rewards has shape"):
        RolloutTree.from_ids([1, 2, 3], [1, 2, 3], [0.0, 1.0], lengths=[1, 2])


def test_token_input_is_checked():
    with pytest.raises(CreditError, match="token_ids must lie in"):
        RolloutTree.from_tokens([[-1]], [[1]], [0.0])
    with pytest.raises(CreditError, match="sampled_masks of episode 0"):
        RolloutTree.from_tokens([[1, 2]], [[1]], [0.0])


def test_an_invalid_episode_may_be_empty_or_hold_no_numbers():
    tree = RolloutTree.from_keys(
        [[], ["s"], ["s"], ["s"]],
        [[], ["a"], ["b"], ["a"]],
        [[], [1], [0], [float("nan")]],
        valid=[False, True, True, False],
    )
    found = estimate("grpo", tree)
    assert [len(row) for row in found] == [0, 1, 1, 1]
    assert found[1][0] > 0 > found[2][0] and found[3][0] == 0.0
    nothing = RolloutTree.from_keys([[]], [[]], [[]], valid=[False])
    for name in OURS:
        assert [row.tolist() for row in estimate(name, nothing)] == [[]]


def test_keys_and_integers_make_the_same_tree():
    for wide in (1, 10**15 + 7):
        given = random_ids(5, 6, 9)
        flat = RolloutTree.from_ids(**given | {"states": given["states"] * wide, "actions": given["actions"] * -wide})
        cut = np.cumsum(given["lengths"])[:-1]
        rows = {
            name: [part.tolist() for part in np.split(given[name], cut)] for name in ("states", "actions", "rewards")
        }
        coarser = [[part.tolist() for part in np.split(given["coarser"][0], cut)]]
        keyed = RolloutTree.from_keys(
            **rows, coarser=coarser, valid=given["valid"].tolist(), groups=given["groups"].tolist()
        )
        for name in ("rtmc", "backoff", "tempo_step", "closure"):
            for one, other in zip(estimate(name, flat), estimate(name, keyed), strict=True):
                np.testing.assert_allclose(one, other, atol=1e-9)


def test_a_batch_larger_than_a_chunk_equals_its_groups_one_by_one():
    given = random_ids(300, 8, 60)
    tree = RolloutTree.from_ids(**given)
    assert tree.step_count > 65536 and len(list(tree.chunks())) > 1
    ends = np.cumsum(given["lengths"])
    for name in sorted(OURS - {"reinforce_pp"}):
        together = estimate(name, tree)
        for group in (0, 130, 299):
            episodes = slice(group * 8, group * 8 + 8)
            steps = slice(int(ends[group * 8] - given["lengths"][group * 8]), int(ends[group * 8 + 7]))
            alone = RolloutTree.from_ids(
                *(given[key][steps] for key in ("states", "actions", "rewards")),
                lengths=given["lengths"][episodes],
                valid=given["valid"][episodes],
                coarser=[given["coarser"][0][steps]],
            )
            for one, other in zip(together[episodes], estimate(name, alone), strict=True):
                np.testing.assert_allclose(one, other, atol=1e-12)


def test_tokens_in_chunks_equal_their_groups_one_by_one():
    rng = np.random.default_rng(0)
    sequences = [rng.integers(0, 2, rng.integers(1, 30)) for _ in range(1200)]
    masks = [rng.random(len(sequence)) < 0.7 for sequence in sequences]
    rewards, groups = rng.choice([0.0, 0.5, 1.0], 1200), np.repeat(np.arange(300), 4)
    tree = RolloutTree.from_tokens(sequences, masks, rewards, groups=groups.tolist())
    assert len(list(tree.chunks())) > 1
    together = estimate("tempo", tree)
    for group in (0, 130, 299):
        of = slice(group * 4, group * 4 + 4)
        alone = estimate("tempo", RolloutTree.from_tokens(sequences[of], masks[of], rewards[of]))
        for one, other in zip(together[of], alone, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-12)


def test_small_chunks_are_trees_of_their_own():
    tree = RolloutTree.from_ids(**random_ids(9, 4, 7))
    whole = tree.company()
    parts = list(tree.chunks(30))
    assert len(parts) > 3 and parts[0][0].start == 0 and parts[-1][0].stop == tree.step_count
    for steps, part in parts:
        assert (part.company() == whole[steps]).all()
        assert part.view.to_json(1.0)["groups"][0]["states"]


@fewer
@given(batch=batches())
def test_counts_and_values_by_key(batch):
    tree, _ = tree_of(batch)
    for index, group in enumerate(batch):
        runs = literal.valid_of(group)
        q, n, v = literal.statistics(runs, 0.9)
        for (s, a), value in q.items():
            assert tree.q(s, a, group=index, gamma=0.9) == pytest.approx(value, abs=1e-9)
            assert tree.visits(s, a, group=index) == sum((s, a) in literal.first_visits(run, 1.0) for run in runs)
        for s in n:
            assert tree.visits(s, group=index) == n[s]
            assert tree.value(s, group=index, gamma=0.9) == pytest.approx(v[s], abs=1e-9)
            children = Counter()
            for run in runs:
                for t, (state, action) in enumerate(zip(run.states, run.actions, strict=True)):
                    children[action, [*run.states, None][t + 1]] += state == s
            seen = tree.children(s, group=index)
            assert {(a, x): k for a, nodes in seen.items() for x, k in nodes.items()} == +children
            offset = sum(map(len, batch[:index]))
            through = [offset + i for i, run in enumerate(group) if run.valid and s in run.states]
            assert tree.episodes(s, group=index) == through


@given(batch=batches())
def test_company(batch):
    tree, _ = tree_of(batch)
    expected = []
    for group in batch:
        for run in group:
            others = [other for other in literal.valid_of(group) if other is not run]
            expected.append([run.valid and any(s in other.states for other in others) for s in run.states])
    assert [row.tolist() for row in tree.split(tree.company())] == expected
    valid = [
        met
        for row, run in zip(expected, [run for group in batch for run in group], strict=True)
        if run.valid
        for met in row
    ]
    assert tree.company_share() == pytest.approx(np.mean(valid) if valid else 0.0)


def test_unknown_keys_are_named():
    tree = RolloutTree.from_keys(**TWO, groups=["one", "two"])
    with pytest.raises(CreditError, match="name the group"):
        tree.visits("s0")
    with pytest.raises(CreditError, match="no episode of group 'two' met state 's1'"):
        tree.visits("s1", group="two")
    with pytest.raises(CreditError, match="no episode took action 'c'"):
        tree.q("s0", "c", group="one")


def test_json_and_networkx_tell_the_same():
    networkx = pytest.importorskip("networkx")
    tree = RolloutTree.from_keys(
        [["s", "t", "s"], ["s", "u"], ["s"]], [["a", "b", "c"], ["a", "b"], ["a"]], [[0, 0, 1], [0, 0.5], [9]],
        valid=[True, True, False], groups=["g", "g", "g"],
    )  # fmt: skip
    told = json.loads(json.dumps(tree.to_json(gamma=0.5)))
    states = {state["key"]: state for state in told["groups"][0]["states"]}
    assert states["s"]["visits"] == 3 and states["s"]["value"] == pytest.approx((0.25 + 0.25 + 1) / 3)
    graph = tree.to_networkx(gamma=0.5)
    assert isinstance(graph, networkx.MultiDiGraph)
    assert set(graph.nodes) == {("g", "s"), ("g", "t"), ("g", "u"), ("g", None)}
    assert graph.number_of_edges() == len(told["groups"][0]["edges"]) == 5
    assert sum(edge["visits"] for edge in told["groups"][0]["edges"]) == 5
    assert graph.nodes["g", "s"]["value"] == states["s"]["value"]


def test_company_of_tokens():
    """Observation tokens are nobody's steps, and a sequence also meets the prefix it ends with."""
    tree = RolloutTree.from_tokens([[5, 1, 6], [5, 1], [5, 2, 6], [9]], [[1, 0, 1], [1, 0], [1, 0, 1], [1]], [0.0] * 4)
    company = [row.tolist() for row in tree.split(tree.company())]
    assert company == [[True, True, True], [True, True], [True, True, False], [True]]
    assert tree.company_share() == pytest.approx(5 / 6)


def test_the_reward_of_a_token_sequence_is_paid_on_its_last_sampled_token():
    tree = RolloutTree.from_tokens([[5, 1, 6, 2], [5, 1], []], [[1, 0, 1, 0], [0, 0], []], [0.5, 0.25, 1.0],
                                   valid=[True, True, False])  # fmt: skip
    assert [row.tolist() for row in tree.split(tree.rewards)] == [[0, 0, 0.5, 0], [0, 0.25], []]


def test_prefixes_of_tokens():
    tree = RolloutTree.from_tokens([[5, 6], [5], [5, 7], [6, 6]], [[1, 1], [1], [1, 1], [1, 1]], [0.0] * 4)
    rows = [row.tolist() for row in tree.split(tree.state.ids)]
    assert rows[0] == rows[2] and rows[0][0] == rows[1][0] == rows[3][0] and rows[3][1] != rows[0][1]
    final = tree.final.tolist()
    assert final[1] == rows[0][1] and len(set(final)) == 4


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-(2**62), 2**62), st.integers(-3, 3)), min_size=1, max_size=30)
)
def test_numbers_are_dense_and_stable(keys):
    group, state, action = (np.array(column) for column in zip(*keys, strict=True))
    episode = np.arange(len(keys)) // 3
    states, group_of, pairs, state_of, first = number_pairs(group, state, action, episode)
    assert [(group_of[s]) for s in states] == group.tolist()
    table = {}
    for step, key in enumerate(zip(group.tolist(), state.tolist(), strict=True)):
        assert table.setdefault(key, states[step]) == states[step]
    assert sorted(table.values()) == list(range(len(group_of))) and [*group_of] == sorted(group_of)
    assert (state_of[pairs] == states).all() and [*state_of] == sorted(state_of)
    assert len({*zip(states.tolist(), action.tolist(), strict=True)}) == len(state_of) == pairs.max() + 1
    seen = set()
    for step, pair in enumerate(pairs.tolist()):
        assert first[step] == ((episode[step], pair) not in seen)
        seen.add((episode[step], pair))
    ids, parent = number(group, state)
    assert (ids == states).all() and (parent == group_of).all()
