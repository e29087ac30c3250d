"""Token-level credit from the transcripts of real rollouts to the tokens that are trained, and through one update."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
from command_line import CommandLine

from agentgym_rtmc.episode_file import read_episodes
from agentgym_rtmc.episodes import Episode, EpisodeGroup, Opening, Turn, group_episodes
from agentgym_rtmc.signatures import make_signature
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.config import CreditConfig
from agentgym_rtmc.trainer.credit import Credit, estimator
from agentgym_rtmc.trainer.credit_step import CreditedBatch, assign_credit

Start = Callable[..., CommandLine]


def credit(groups: Sequence[EpisodeGroup], name: str = "tempo", *, mask_length: bool = True) -> CreditedBatch:
    config = CreditConfig(estimator=name)
    return assign_credit(groups, make_signature("observation"), config, None, mask_length=mask_length)


def turn(context: Sequence[int], sampled: Sequence[int], reward: float = 0.0, **more: Any) -> Turn:
    return Turn(
        text=str(sampled),
        observation="",
        reward=reward,
        context_ids=tuple(context),
        token_ids=tuple(sampled),
        logprobs=(-0.5,) * len(sampled),
        **more,
    )


def episode(name: str, turns: Sequence[Turn], **more: Any) -> Episode:
    opening = Opening(task=Task(id="t"), observation="o")
    return Episode(id=name, group="g", opening=opening, turns=tuple(turns), **more)


def walked(members: Sequence[Episode]) -> dict[tuple[str, int, int], float]:
    """Tempo by definition: (episode, turn, token of the turn) -> advantage, looking prefixes up as tuples."""
    live = [one for one in members if one.valid]
    returns = {one.id: one.total_reward for one in live}
    mean, scale = fmean(returns.values()), stdev(returns.values()) + 1e-6
    whole = {one.id: tuple(i for t in one.turns for i in (*t.context_ids, *t.token_ids)) for one in live}

    def value(prefix: tuple[int, ...]) -> float:
        return fmean(returns[one.id] for one in live if whole[one.id][: len(prefix)] == prefix)

    found = {}
    for one in live:
        behind: tuple[int, ...] = ()
        for index, part in enumerate(one.turns):
            behind += part.context_ids
            for place, token in enumerate(part.token_ids):
                ended = (index, place) == (len(one.turns) - 1, len(part.token_ids) - 1)
                after = returns[one.id] if ended else value((*behind, token))
                found[one.id, index, place] = (returns[one.id] - mean + after - value(behind)) / scale
                behind += (token,)
    return found


def given(batch: CreditedBatch, episodes: Sequence[Episode]) -> dict[tuple[str, int, int], float]:
    """What the rows train: (episode, turn, token of the turn) -> advantage. Checks ids on the way."""
    found = {}
    for row in batch.rows:
        one = episodes[row.episode]
        for index in sorted(set(row.turn[row.sampled_mask].tolist())):
            places = np.flatnonzero(row.turn == index)
            assert row.ids[places].tolist() == list(one.turns[index].token_ids)
            for place, position in enumerate(places.tolist()):
                found[one.id, index, place] = float(row.advantages[position])
    return found


def test_every_advantage_stands_on_its_own_token() -> None:
    """Turns of several tokens, unlike observations, a fork, a cut turn and dead episodes."""
    prompt = (1, 2)
    members = [
        episode("a", [turn(prompt, (10, 11, 12)), turn((3,), (13, 14), 1.0)]),
        episode("b", [turn(prompt, (10, 11, 15)), turn((3,), (13, 14), 0.0)]),
        episode("dead", [turn(prompt, (10,))], valid=False, error="machine"),
        episode("c", [turn(prompt, (10, 11, 12)), turn((4, 4), (13, 16), 0.5)]),
        episode("fork", [turn(prompt, (10, 11, 12)), turn((*prompt, 9), (13, 17), 0.0, forked=True)]),
        episode("cut", [turn(prompt, (10, 18), finish_reason="length"), turn((3,), (13,), 1.0)]),
        episode("none", [], valid=False, error="machine"),
    ]
    group = EpisodeGroup(id="g", episodes=tuple(members))
    batch = credit([group])
    expected = walked(members)
    found = given(batch, members)
    assert found.keys() == {key for key in expected if key[:2] != ("cut", 0)}
    assert found == pytest.approx({key: expected[key] for key in found}, abs=1e-6)
    first = [found["a", 0, place] for place in range(3)]
    assert first[0] != first[1] and first[1] != first[2], "the group splits at the second and at the third token"
    assert [len(row) for row in batch.rows if members[row.episode].id == "fork"] == [5, 5]
    assert batch.counts.episodes_invalid == 2 and batch.counts.tokens_masked == 2
    assert batch.figures["credit_environment_change"] > 0  # unlike observations after one and the same past
    # all second turns are alone: their pasts differ in what was said or seen
    assert batch.figures["company_share"] == pytest.approx(1 - 9 / 23)
    kept = credit([group], mask_length=False)
    assert given(kept, members) == pytest.approx(expected, abs=1e-6)


@estimator("test_token_places", level="token")
def token_places(tree: Any) -> Credit:
    """The position of each token in its episode. Shape: (steps,)."""
    return Credit(tree.turn.astype(float))


def test_any_estimator_can_be_one_of_tokens() -> None:
    members = [episode("a", [turn((1, 2), (5, 6)), turn((3,), (7,), 1.0)]), episode("b", [turn((1, 2), (8,))])]
    rows = credit([EpisodeGroup(id="g", episodes=tuple(members))], "test_token_places").rows
    assert [row.advantages.tolist() for row in rows] == [[0, 0, 2, 3, 0, 5], [0, 0, 2]]


def test_one_update_of_the_embedded_model_with_credit_by_tokens(command_line: Start, workplace: Path) -> None:
    changes = ["run.name=tempo", "credit.estimator=tempo", "loop.updates=1", "evaluation.every=0"]
    changes += ["loop.groups=6", "rollout.group_size=8", "learner.learning_rate=1e-2", "env.options={max_turns=2}"]
    done = command_line("train", "tiny.toml", *changes, "--json")
    assert done.wait() == 0, done.err
    folder = workplace / json.loads(done.out)["folder"]
    groups = group_episodes(read_episodes(folder / "episodes.jsonl").episodes)
    episodes = [one for group in groups for one in group.episodes]
    batch = credit(groups)
    expected = {key: value for group in groups for key, value in walked(group.episodes).items()}
    found = given(batch, episodes)
    assert found == pytest.approx({key: expected[key] for key in found}, abs=1e-5)
    lost = [expected[key] for key in expected.keys() - found.keys()]
    assert not np.any(lost), "only rows without any credit are left out"

    # Within one turn the advantage changes where, and only where, the token leaves others behind (or ends the episode).
    varied = [
        (one, index)
        for one in episodes
        for index in range(len(one.turns))
        if len({round(found.get((one.id, index, place), 0.0), 4) for place in range(len(one.turns[index].token_ids))})
        > 1
    ]
    assert len(varied) > 10

    # The learner was given exactly these: the size it reports, before a step that moved the weights.
    (metrics,) = (json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines())
    assert metrics["advantage_rms"] == pytest.approx(np.sqrt(np.mean(np.square(list(found.values())))), rel=1e-5)
    assert metrics["tokens_trained"] == len(found) and metrics["steps"] == 1 and metrics["grad_norm"] > 0
    assert metrics["credit_policy_change"] == pytest.approx(batch.figures["credit_policy_change"])


def test_what_an_estimator_remembers_is_resumed(command_line: Start, workplace: Path) -> None:
    def run(*arguments: str) -> Path:
        done = command_line("train", *arguments, "--json")
        assert done.wait() == 0, done.err
        return workplace / json.loads(done.out)["folder"]

    def credited(folder: Path) -> list[dict[str, float]]:
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [{name: row[name] for name in row if name.startswith(("credit_", "advantage_"))} for row in rows]

    changes = ["tiny.toml", "credit.estimator=adaptive", "evaluation.every=0", "loop.groups=8", "rollout.group_size=8"]
    whole = credited(run(*changes, "run.name=remembers", "loop.updates=3"))
    stopped = run(*changes, "run.name=remembers-in-parts", "loop.updates=2")
    assert credited(run("--resume", str(stopped), "loop.updates=3")) == whole
    signals = [row["credit_split_signal"] for row in whole]
    assert signals[0] == 0.0 < signals[2], "from earlier batches only"
