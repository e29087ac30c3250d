"""Our own episodes enter the tree: by a signature's keys, by coarser ones, and by the tokens of their transcripts."""

from __future__ import annotations

import numpy as np
import pytest

from agentgym_rtmc.episodes import Episode, EpisodeGroup, Opening, Turn
from agentgym_rtmc.errors import CreditError
from agentgym_rtmc.signatures.base import FunctionSignature
from agentgym_rtmc.signatures.compose import Chain
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.credit import RolloutTree, estimate

FINE = FunctionSignature(lambda opening, turns: "/".join(turn.text for turn in turns))
COARSE = FunctionSignature(lambda opening, turns: str(len(turns)))


def episode(name, group, texts, reward, *, valid=True, tokens=True):
    turns = tuple(
        Turn(
            text=text,
            observation=f"saw {text}",
            reward=reward if index == len(texts) - 1 else 0.0,
            context_ids=(1, 2) if tokens else None,
            token_ids=tuple(map(ord, text)) if tokens else None,
        )
        for index, text in enumerate(texts)
    )
    opening = Opening(task=Task(id=group), observation="begin")
    return Episode(id=name, group=group, opening=opening, turns=turns, valid=valid, terminated=valid)


def groups(**more):
    first = episode("a", "g", ["x", "yz"], 1.0, **more), episode("b", "g", ["x", "w"], 0.0, **more)
    second = (
        episode("c", "h", ["x"], 0.0, **more),
        episode("d", "h", ["x", "y"], 0.5, **more),
        episode("e", "h", [], 0.0, valid=False, **more),
    )
    return [EpisodeGroup(id="g", episodes=first), EpisodeGroup(id="h", episodes=second)]


def test_keys_rewards_observations_and_counts():
    tree = RolloutTree.from_groups(groups(), FINE, [COARSE])
    assert [row.tolist() for row in tree.split(tree.rewards)] == [[0, 1], [0, 0], [0], [0, 0.5], []]
    assert tree.visits("x", group="g") == 2 and tree.visits("", "x", group="h") == 2
    assert len(tree.levels) == 2 and tree.levels[1].states.count == 4
    assert tree.token_counts.tolist() == [1, 2, 1, 1, 1, 1, 1]
    assert [tree.names.of(tree.names.observations, step) for step in (0, 1, 2)] == ["begin", "saw x", "begin"]
    assert [len(row) for row in estimate("backoff", tree)] == [2, 2, 1, 2, 0]
    assert RolloutTree.from_groups(groups(tokens=False), FINE).token_counts is None


def test_a_chain_of_signatures_brings_its_coarser_levels():
    def state_parents(tree):
        return [level.states.ids.tolist() for level in tree.levels]

    chain = Chain([FINE, COARSE])
    tree = RolloutTree.from_groups(groups(), chain)
    assert state_parents(tree) == state_parents(RolloutTree.from_groups(groups(), FINE, [COARSE]))
    assert len(RolloutTree.from_groups(groups(), chain, [COARSE]).levels) == 3


def test_an_episode_without_turns_counts_as_invalid():
    start = [EpisodeGroup(id="g", episodes=(*groups()[0].episodes, episode("f", "g", [], 0.0)))]
    found = estimate("dr_grpo", RolloutTree.from_groups(start, FINE))
    assert [row.tolist() for row in found] == [[0.5, 0.5], [-0.5, -0.5], []]


def test_two_groups_of_one_name_are_refused():
    for build in (lambda given: RolloutTree.from_groups(given, FINE), RolloutTree.from_group_tokens):
        with pytest.raises(CreditError, match="two groups have one id"):
            build([groups()[0]] * 2)


def test_a_turn_without_sampled_tokens_is_paid_on_what_it_read():
    """Nothing was said, so nothing is credited; the reward still counts."""
    opening = Opening(task=Task(id="g"), observation="begin")
    said = Turn(text="x", observation="", reward=0.25, context_ids=(1, 2), token_ids=(7,))
    silent = Turn(text="", observation="", reward=0.5, context_ids=(3,), token_ids=(), finish_reason="length")
    first = Episode(id="a", group="g", opening=opening, turns=(said, silent), terminated=True)
    second = Episode(id="b", group="g", opening=opening, turns=(said, silent, silent), terminated=True)
    tree = RolloutTree.from_group_tokens([EpisodeGroup(id="g", episodes=(first, second))])
    assert tree.episode_returns.tolist() == [0.75, 1.25]
    assert [row.tolist() for row in estimate("tempo", tree, normalize=False).sampled()] == [[-0.5], [0.5]]


def test_transcripts():
    tree = RolloutTree.from_group_tokens(groups())
    assert [row.tolist() for row in tree.split(tree.sampled)][:2] == [
        [False, False, True, False, False, True, True],
        [False, False, True, False, False, True],
    ]
    found = estimate("tempo", tree, normalize=False)
    np.testing.assert_allclose(found[0], [0, 0, 0.5, 0, 0, 1.0, 0.5])
    np.testing.assert_allclose(found[1], [0, 0, -0.5, 0, 0, -1.0])
    # c ends where d hears more: what that changes for d (from the mean of both to its own return) is nobody's token
    assert found.report["environment_change"] == pytest.approx(0.25)
    with pytest.raises(CreditError, match="turn 0 of episode 'a' has no token ids"):
        RolloutTree.from_group_tokens(groups(tokens=False))


def test_what_the_environment_decides_goes_to_no_token():
    rows = [[5, 8, 6], [5, 9, 6]]
    tree = RolloutTree.from_tokens(rows, [[1, 0, 1]] * 2, [1.0, 0.0])
    found = estimate("tempo", tree, normalize=False)
    np.testing.assert_allclose(found[0], [0.5, 0.0, 0.5])
    assert found.report == {"policy_change": 0.0, "environment_change": 1.0}


def test_after_the_last_sampled_token_nothing_changes_any_more():
    """What is heard at the end parts the two, but the value there was each one's own return already."""
    tree = RolloutTree.from_tokens([[5, 6, 8], [5, 6, 9]], [[1, 1, 0]] * 2, [1.0, 0.0])
    found = estimate("tempo", tree, normalize=False)
    np.testing.assert_allclose(found.flat, [0.5, 1.0, 0.0, -0.5, -1.0, 0.0])
    assert found.report == {"policy_change": 1.0, "environment_change": 0.0}
