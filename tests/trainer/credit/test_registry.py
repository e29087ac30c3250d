"""Names, parameters, chunks, memory and an estimator of one's own."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from agentgym_rtmc.errors import CreditError, RegistrationError
from agentgym_rtmc.trainer.credit import ESTIMATORS, Credit, RolloutTree, estimate, estimator, find_estimator

TREE = RolloutTree.from_keys([["s", "t"], ["s"]], [["a", "b"], ["c"]], [[0, 1], [0]])

FAMILY = {
    "grpo", "dr_grpo", "rloo", "reinforce_pp", "gae", "gigpo", "rtmc", "tempo", "tempo_step", "closure", "backoff",
    "adaptive",
}  # fmt: skip


def test_the_whole_family_is_there():
    assert set(ESTIMATORS) >= FAMILY
    assert all(entry.summary for entry in ESTIMATORS.values())


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("rtmcc", {}, "no estimator 'rtmcc'; did you mean 'rtmc'"),
        ("rtmc", {"gama": 1.0}, "no parameter 'gama'; did you mean 'gamma'"),
        ("grpo", {"gamma": 1.0}, "no parameter 'gamma'"),
        ("gae", {}, "needs values"),
        ("rtmc", {"gamma": 0.0}, r"gamma .* lies in \(0, 1\], got 0.0"),
        ("rtmc", {"gamma": 1.1}, "gamma"),
        ("rtmc", {"gamma": math.nan}, "gamma must be a finite number"),
        ("rtmc", {"gamma": "1"}, "gamma must be a finite number"),
        ("rtmc", {"prior_strength": -1.0}, "prior_strength must not be negative"),
        ("rtmc", {"prior": "discount"}, "did you mean 'discounted'"),
        ("gigpo", {"normalization": "std"}, "normalization"),
        ("gigpo", {"anchors": "similar", "similarity": 2}, "similarity lies in"),
        ("closure", {"beta": 0}, "beta"),
        ("closure", {"step_weight": -1}, "step_weight"),
        ("backoff", {"levels": 2}, "the tree has 1 levels"),
        ("backoff", {"q_strength": -2}, "q_strength"),
        ("tempo_step", {"weight": -1}, "weight"),
        ("adaptive", {"decay": 1.5}, "decay"),
        ("gae", {"values": [[0.0], [0.0]]}, "differs from episode 0 on"),
        ("gae", {"values": [[0.0, math.nan], [0.0]]}, "finite"),
        ("gae", {"values": [[0.0, 0.0], [0.0]], "lambda_": 2.0}, "lambda_"),
        ("gae", {"values": [[0.0, 0.0], [0.0]], "bootstrap": [0.0]}, "bootstrap"),
    ],
)
def test_wrong_names_and_parameters_are_refused_with_the_reason(name, parameters, message):
    with pytest.raises(CreditError, match=message):
        estimate(name, TREE, **parameters)


@pytest.mark.parametrize(
    ("name", "parameters"), [("rtmc", {"prior": "success_rate"}), ("closure", {"form": "published"})]
)
def test_published_forms_refuse_other_rewards(name, parameters):
    tree = RolloutTree.from_keys([["s"], ["s"]], [["a"], ["b"]], [[2.0], [0.0]])
    with pytest.raises(CreditError, match=r"in \[0, 1\]"):
        estimate(name, tree, **parameters)


def test_similar_anchors_need_text():
    tree = RolloutTree.from_ids([[1], [2]], [[1], [2]], [[0.0], [1.0]])
    with pytest.raises(CreditError, match="compares texts"):
        estimate("gigpo", tree, anchors="similar")


def test_a_broken_memory_is_refused():
    with pytest.raises(CreditError, match="memory"):
        estimate("adaptive", TREE, memory={"between": math.nan})


def test_overflow_is_refused_instead_of_returned():
    tree = RolloutTree.from_ids([range(4000), range(9)], [range(4000), range(9)], [[0.0] * 4000, [0.0] * 8 + [1.0]])
    with np.errstate(all="ignore"), pytest.raises(CreditError, match="not finite"):
        estimate("rtmc", tree, gamma=0.5)


def test_memory_survives_json_and_is_used():
    first = estimate("adaptive", TREE)
    assert estimate("grpo", TREE, memory=first.memory).memory is None  # ignored by those without one
    batch = RolloutTree.from_keys([["s", "t"], ["s", "u"]] * 4, [["a", "b"], ["c", "b"]] * 4, [[0, 1], [0, 0]] * 4)
    memory = None
    for _ in range(12):
        found = estimate("adaptive", batch, memory=memory)
        memory = json.loads(json.dumps(found.memory))
    assert found.report["step_weight"] > 3
    assert found[0][0] > found[0][1]


@estimator("test_last_turn_only", scope="group")
def last_turn_only(tree, *, scale=1.0):
    """All credit to the last turn. Shape: (steps,)."""
    return np.where(tree.left == 1, scale * np.repeat(tree.episode_returns, tree.lengths), 0.0)


def unregistered(tree, *, scale=1.0):
    """Found by module and name."""
    return Credit(np.full(tree.step_count, scale), report={"seen": tree.step_count})


def test_a_critic_credits_a_lone_episode_and_comparison_does_not():
    lone = RolloutTree.from_keys([["s", "t"], ["s"]], [["a", "b"], ["c"]], [[0, 1], [math.nan]], valid=[True, False])
    found = estimate("gae", lone, values=[[0.5, 0.5], [math.nan]], gamma=1.0, lambda_=0.5)
    assert [row.tolist() for row in found] == [[0.25, 0.5], [0.0]]
    assert found.rms == pytest.approx(math.sqrt((0.25**2 + 0.5**2) / 2))
    assert {n for n in FAMILY if not ESTIMATORS[n].needs_company} == {"gae"}
    assert {n for n in FAMILY if ESTIMATORS[n].level == "token"} == {"tempo"}


def test_an_estimator_of_ones_own_by_decorator():
    assert [row.tolist() for row in estimate("test_last_turn_only", TREE, scale=2.0)] == [[0.0, 2.0], [0.0]]
    with pytest.raises(RegistrationError, match="already registered"):
        estimator("test_last_turn_only")(unregistered)


def test_an_estimator_of_ones_own_by_module_and_name(tmp_path, monkeypatch):
    (tmp_path / "my_credit.py").write_text(
        "import numpy as np\n"
        "def halves(tree, *, scale=0.5):\n    'Halves.'\n    return np.full(tree.step_count, scale)\n"
        "def short(tree):\n    return np.zeros(1)\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert [row.tolist() for row in estimate("my_credit:halves", TREE)] == [[0.5, 0.5], [0.5]]
    assert find_estimator("my_credit:halves").scope == "batch"
    with pytest.raises(CreditError, match="shape"):
        estimate("my_credit:short", TREE)
    with pytest.raises(CreditError, match="not a function"):
        estimate("my_credit:number", TREE)
    with pytest.raises(CreditError, match="no parameter 'scales'; did you mean 'scale'"):
        estimate("my_credit:halves", TREE, scales=1)


def test_the_scale_is_reported():
    assert estimate("dr_grpo", TREE).rms == pytest.approx(0.5)
    scaled = estimate("dr_grpo", TREE, rms=2.0)
    assert scaled.rms == pytest.approx(2.0) and scaled[1][0] == pytest.approx(-2.0)
    flat = RolloutTree.from_keys([["s"], ["s"]], [["a"], ["b"]], [[1], [1]])
    assert estimate("dr_grpo", flat, rms=1.0).rms == 0.0
    with pytest.raises(CreditError, match="erase all credit"):
        estimate("dr_grpo", TREE, rms=0.0)
