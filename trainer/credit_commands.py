"""The command `credit`: advantages for the turns of recorded episodes of any known format, and whether they will pay.

Invariants: nothing is left out without being counted and, where it has a place, located. Groups are tasks.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.tables import show_json, show_table

SHOWN_PROBLEMS = 10


def credit(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="episodes.jsonl, .traj, .traj.json, chat or step rows")
    ],
    estimator: Annotated[str, typer.Option("--estimator", "-e", help="name, or module:function")] = "rtmc",
    signature: Annotated[str, typer.Option("--signature", "-s", help="name, or module:name")] = "operations",
    parameter: Annotated[
        list[str] | None, typer.Option("--param", "-p", metavar="KEY=VALUE", help="of the estimator, e.g. gamma=0.95")
    ] = None,
    signature_parameter: Annotated[
        list[str] | None, typer.Option("--signature-param", metavar="KEY=VALUE", help="e.g. level=file")
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(help="episodes, steps, swe-agent, mini-swe-agent or chat; told from the content if left out"),
    ] = None,
    outcomes: Annotated[
        Path | None, typer.Option(help="JSON of outcomes by file, file name or task id, or an evaluation report")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="where to write: .jsonl, .csv or .parquet")] = Path(
        "advantages.jsonl"
    ),
    turns: Annotated[
        int, typer.Option(min=0, help="turns with the most and the least credit to show for each group")
    ] = 1,
    permutations: Annotated[int, typer.Option(min=1, help="shuffles of the test of the split signal")] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
) -> None:
    """Assign credit to every turn of recorded episodes and say whether step credit will pay on them."""
    from agentgym_rtmc.episodes import group_episodes
    from agentgym_rtmc.importers.recorded import read_outcomes, read_recorded
    from agentgym_rtmc.signatures import make_signature
    from agentgym_rtmc.trainer.credit import RolloutTree, estimate, find_estimator
    from agentgym_rtmc.trainer.credit.diagnosis import diagnose
    from agentgym_rtmc.trainer.credit_files import check_target, write_turns

    check_target(out)
    parameters = read_parameters(parameter or (), "--param")
    chosen = find_estimator(estimator)
    chosen.check(parameters)
    keys = make_signature(signature, **read_parameters(signature_parameter or (), "--signature-param"))
    recorded = read_recorded(files, format=format, outcomes=None if outcomes is None else read_outcomes(outcomes))
    if not recorded.episodes:
        places = "; ".join(f"{problem.where}: {problem.reason}" for problem in recorded.problems[:3])
        unknown = (
            f"{len(recorded.unlabelled)} without a recorded outcome (give --outcomes)" if recorded.unlabelled else ""
        )
        raise ConfigError(
            f"no episode with a known outcome in {counted(len(files), 'file')}: {places or unknown or 'none at all'}"
        )
    groups = group_episodes(recorded.episodes)
    episodes = [episode for group in groups for episode in group.episodes]
    tree = RolloutTree.from_groups(groups, keys)
    by_tokens = chosen.level == "token"
    advantages = estimate(estimator, RolloutTree.from_group_tokens(groups) if by_tokens else tree, **parameters)
    by_turn = turn_means(episodes, advantages.sampled()) if by_tokens else list(advantages)
    rows = credited_turns(episodes, tree, by_turn)
    write_turns(out, rows)
    found = diagnose(tree, permutations=permutations)
    summary: dict[str, Any] = {
        "estimator": estimator,
        "signature": signature,
        "parameters": parameters,
        "files": len(files),
        "episodes": len(episodes),
        "invalid": sum(not episode.valid for episode in episodes),
        "unlabelled": len(recorded.unlabelled),
        "unreadable": len(recorded.problems),
        "groups": found.groups,
        "groups_with_one_episode": found.lonely_groups,
        "groups_without_variance": found.unvaried_groups,
        "turns": len(rows),
        "turns_compared": found.turns,
        "company_share": 1.0 - found.alone,
        "advantage_rms": advantages.rms,
        "within_episode_share": within_episode_share(by_turn),
        "report": dict(advantages.report),
        "written": str(out),
    }
    pays = {
        "alone": found.alone,
        "alone_by_turn": [
            {"turns": f"{low}-{high}" if high > low else str(low), "count": count, "alone": share}
            for low, high, count, share in found.alone_by_turn
        ],
        "split_signal": found.split_signal,
        "p_value": found.p_value,
        "mean_length": found.mean_length,
        "step_rewards": found.step_rewards,
        "recommended": found.estimator,
        "reason": found.reason,
    }
    extremes = extreme_turns(rows, turns)
    problems = [{"where": problem.where, "reason": problem.reason} for problem in recorded.problems]
    if as_json:
        show_json({"summary": summary, "pays": pays, "extremes": extremes, "problems": problems})
        return
    show_summary(summary, pays, extremes, problems)


def counted(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def read_parameters(given: Sequence[str], option: str) -> dict[str, Any]:
    """Read `KEY=VALUE` pairs; a value is JSON where it can be, else text."""
    parameters: dict[str, Any] = {}
    for pair in given:
        key, equals, text = pair.partition("=")
        if not key or not equals:
            raise ConfigError(f"{option} {pair!r} is not KEY=VALUE")
        try:
            parameters[key] = json.loads(text)
        except ValueError:
            parameters[key] = text
    return parameters


def turn_means(episodes: Sequence[Any], by_token: Sequence[Any]) -> list[Any]:
    """Mean advantage of each turn's sampled tokens, 0 without any. Shapes: (sampled tokens,) -> (turns,) each."""
    import numpy as np

    from agentgym_rtmc.trainer.transcript import sampled_tokens

    means = []
    for episode, values in zip(episodes, by_token, strict=True):
        lengths = sampled_tokens(episode)
        turn = np.repeat(np.arange(len(lengths)), lengths)[: len(values)]
        means.append(np.bincount(turn, values, len(lengths)) / np.maximum(lengths, 1))
    return means


def credited_turns(episodes: Sequence[Any], tree: Any, advantages: Sequence[Any]) -> list[Any]:
    """One row per turn, in the order of the episodes, which is the tree's."""
    from agentgym_rtmc.trainer.credit_files import CreditedTurn

    company, starts, names = tree.split(tree.company()), tree.starts.tolist(), tree.names
    rows = []
    for index, (episode, values) in enumerate(zip(episodes, advantages, strict=True)):
        for turn, value in enumerate(values.tolist()):
            step = starts[index] + turn
            rows.append(
                CreditedTurn(
                    group=episode.group,
                    episode=episode.id,
                    turn=turn,
                    advantage=value,
                    reward=episode.turns[turn].reward,
                    episode_return=episode.total_reward,
                    alone=not bool(company[index][turn]),
                    state=str(names.of(names.states, step)),
                    action=str(names.of(names.actions, step)),
                )
            )
    return rows


def within_episode_share(advantages: Sequence[Any]) -> float:
    """Share of the advantages' variance that lies within episodes: 0 for outcome credit."""
    import numpy as np

    kept = [values for values in advantages if len(values) and np.any(values)]
    if not kept:
        return 0.0
    total = float(np.concatenate(kept).var())
    within = sum(float(((values - values.mean()) ** 2).sum()) for values in kept) / sum(map(len, kept))
    return within / total if total > 0 else 0.0


def extreme_turns(rows: Sequence[Any], count: int) -> list[dict[str, Any]]:
    """For each group with credit, the turns with the most and the least, best first."""
    by_group: dict[str, list[Any]] = {}
    for row in rows:
        by_group.setdefault(row.group, []).append(row)
    shown = []
    for group, members in by_group.items():
        ranked = sorted(members, key=lambda row: row.advantage, reverse=True)
        if not ranked[0].advantage and not ranked[-1].advantage:
            continue
        best, worst = ranked[:count], ranked[max(count, len(ranked) - count) :]
        for row in [*best, *worst]:
            what = {"episode": row.episode, "turn": row.turn, "advantage": row.advantage, "action": row.action}
            shown.append({"group": group, **what})
    return shown


def show_summary(
    summary: dict[str, Any], pays: dict[str, Any], extremes: list[dict[str, Any]], problems: list[dict[str, str]]
) -> None:
    """Print it for people."""
    skipped = (
        f"{summary['groups_with_one_episode']} with fewer than two valid episodes, "
        f"{summary['groups_without_variance']} whose returns are all equal"
    )
    sizes = (counted(summary[name], name.removesuffix("s")) for name in ("episodes", "groups", "files"))
    print("{} in {} from {}".format(*sizes))
    print(f"left out:        {summary['unlabelled']} without a known outcome, {summary['invalid']} invalid")
    print(f"not read:        {summary['unreadable']} files or rows")
    for problem in problems[:SHOWN_PROBLEMS]:
        print(f"                 {problem['where']}: {problem['reason']}")
    if len(problems) > SHOWN_PROBLEMS:
        print(f"                 … and {len(problems) - SHOWN_PROBLEMS} more (all with --json)")
    print(f"groups skipped:  {skipped}")
    compared = (
        f"{summary['turns_compared']} in groups of two or more, {summary['company_share']:.1%} of them with company"
    )
    print(f"turns:           {summary['turns']}, {compared}")
    if extremes:
        cut = [{**row, "action": row["action"][:60]} for row in extremes]
        print()
        show_table(cut, title=f"most and least credit ({summary['estimator']})")
    print("\nWill step credit pay here?")
    for row in pays["alone_by_turn"]:
        print(f"  turns {row['turns']:>9}: {row['alone']:6.1%} alone of {row['count']}")
    print(f"  all turns:       {pays['alone']:6.1%} alone; episodes of {pays['mean_length']:.1f} turns")
    print(f"  split signal:    lambda = {pays['split_signal']:.2f}, p = {pays['p_value']:.3f} (permutation test)")
    print(
        f"  advantages:      RMS {summary['advantage_rms']:.3f}, {summary['within_episode_share']:.0%} within episodes"
    )
    print(f"  recommended:     {pays['recommended']}: {pays['reason']}")
    print(f"\nwritten: {summary['written']}")
