"""How fast credit is: against a literal reference, against one `np.unique`, per estimator, and over five million turns.

    python benchmarks/credit_speed.py [--json] [--turns 5000000]

All figures are processor time, the least of several alternating tries, so that other work on the machine matters
little; every target is a ratio within one run. Exit status 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import tracemalloc
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from agentgym_rtmc.trainer.credit import ESTIMATORS, RolloutTree, estimate

GROUPS, EPISODES, TURNS = 64, 16, 50
GAMMA, STRENGTH = 0.99, 2.0


def batch(groups: int, seed: int = 0) -> dict[str, Any]:
    """Flat arrays: half of the turns meet one of 40 common states of their group, the others hardly anything."""
    rng = np.random.default_rng(seed)
    steps = groups * EPISODES * TURNS
    states = np.where(rng.random(steps) < 0.5, rng.integers(0, 40, steps), rng.integers(40, 100_000, steps))
    rewards = np.zeros(steps)
    rewards[TURNS - 1 :: TURNS] = rng.integers(0, 2, groups * EPISODES)
    return {
        "states": states,
        "actions": rng.integers(0, 10, steps),
        "rewards": rewards,
        "lengths": np.full(groups * EPISODES, TURNS),
        "groups": np.repeat(np.arange(groups), EPISODES),
    }


def as_keys(given: dict[str, Any]) -> dict[str, Any]:
    """The same batch as nested lists of strings."""
    rows = {name: given[name].reshape(-1, TURNS).tolist() for name in ("states", "actions", "rewards")}
    rows["states"] = [[f"edited a.py:{state}|seen b.py" for state in row] for row in rows["states"]]
    rows["actions"] = [[f"view@file_{action}.py:ok" for action in row] for row in rows["actions"]]
    return {**rows, "groups": given["groups"].tolist()}


def literal_rtmc(keys: dict[str, Any]) -> list[list[float]]:
    """RTMC over dictionaries in one pass per group, as one would write it by hand; no more work than needed."""
    members = defaultdict(list)
    for index, group in enumerate(keys["groups"]):
        members[group].append(index)
    result: list[list[float]] = [[] for _ in keys["groups"]]
    for group in members.values():
        gains = {}
        pair_n: dict[tuple[str, str], int] = defaultdict(int)
        pair_total: dict[tuple[str, str], float] = defaultdict(float)
        state_n: dict[str, int] = defaultdict(int)
        state_total: dict[str, float] = defaultdict(float)
        for index in group:
            gain, row = 0.0, []
            for reward in reversed(keys["rewards"][index]):
                gain = reward + GAMMA * gain
                row.append(gain)
            row.reverse()
            gains[index] = row
            seen = set()
            for state, action, gain in zip(keys["states"][index], keys["actions"][index], row, strict=True):
                pair = (state, action)
                if pair not in seen:
                    seen.add(pair)
                    pair_n[pair] += 1
                    pair_total[pair] += gain
                    state_n[state] += 1
                    state_total[state] += gain
        mean = sum(gains[index][0] for index in group) / len(group)
        for index in group:
            spent, discount, row = 0.0, 1.0, []
            for state, action, reward in zip(
                keys["states"][index], keys["actions"][index], keys["rewards"][index], strict=True
            ):
                prior = (mean - spent) / discount
                value = (state_total[state] + STRENGTH * prior) / (state_n[state] + STRENGTH)
                row.append(pair_total[state, action] / pair_n[state, action] - value)
                spent += discount * reward
                discount *= GAMMA
            result[index] = row
    return result


def hash_all(keys: dict[str, Any]) -> int:
    """The floor: look every key up once."""
    table: dict[str, int] = {}
    for name in ("states", "actions"):
        for row in keys[name]:
            for key in row:
                table.setdefault(key, len(table))
    return len(table)


def least(tries: int, *functions: Callable[[], Any]) -> list[float]:
    """Least processor time of each function in milliseconds, tried in turn."""
    best = [float("inf")] * len(functions)
    for _ in range(tries):
        for index, function in enumerate(functions):
            start = time.process_time()
            function()
            best[index] = min(best[index], 1e3 * (time.process_time() - start))
    return best


def from_keys_and_ids(tries: int) -> list[dict[str, Any]]:
    """Tree and rtmc together, from strings and from integers."""
    given = batch(GROUPS)
    keys = as_keys(given)
    packed = (np.repeat(given["groups"], TURNS) * 100_000 + given["states"]) * 10 + given["actions"]

    def run(tree: RolloutTree) -> Any:
        return estimate("rtmc", tree, gamma=GAMMA, prior_strength=STRENGTH)

    flat = [value for row in literal_rtmc(keys) for value in row]
    assert np.allclose(run(RolloutTree.from_ids(**given)).flat, flat, atol=1e-9)
    reference, hashing, strings, unique, ids = least(
        tries,
        lambda: literal_rtmc(keys),
        lambda: hash_all(keys),
        lambda: run(RolloutTree.from_keys(**keys)),
        lambda: np.unique(packed, return_inverse=True),
        lambda: run(RolloutTree.from_ids(**given)),
    )
    return [
        row("literal reference, strings", reference),
        row("hashing the strings alone", hashing, hashing / reference, "of the reference"),
        row("tree + rtmc, strings", strings, reference / strings, "times faster", ">= 3", reference / strings >= 3),
        row("one np.unique of the pairs", unique),
        row("tree + rtmc, integers", ids, ids / unique, "times np.unique", "<= 4", ids / unique <= 4),
    ]


def per_estimator(tries: int) -> list[dict[str, Any]]:
    """Each estimator on a fresh tree, beside the cost of that tree."""
    given = batch(GROUPS)
    (tree_time,) = least(tries, lambda: RolloutTree.from_ids(**given))
    rows = [row("tree, integers", tree_time)]
    for name in sorted(ESTIMATORS):
        best = float("inf")
        for _ in range(tries):
            tree = RolloutTree.from_ids(**given)
            more: dict[str, Any] = {"values": [np.zeros(TURNS)] * tree.episode_count} if name == "gae" else {}
            memory = {"between": 99.0, "within": 9.0}
            best = min(best, *least(1, lambda tree=tree, more=more: estimate(name, tree, memory=memory, **more)))  # noqa: B023
        ratio = best / tree_time
        target, met = (None, None) if name == "closure" else ("<= 3", ratio <= 3)
        rows.append(row(name, best, ratio, "times the tree", target, met))
    return rows


def scaling(turns: int) -> list[dict[str, Any]]:
    """Ten times the turns, and memory beyond the input."""
    sizes = [turns // 10 // (EPISODES * TURNS), turns // (EPISODES * TURNS)]
    times = []
    for groups in sizes:
        given = batch(groups)
        times += least(3, lambda given=given: estimate("rtmc", RolloutTree.from_ids(**given)).rms)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    found = estimate("rtmc", RolloutTree.from_ids(**given))
    peak = (tracemalloc.get_traced_memory()[1] - before) / len(found.flat)
    tracemalloc.stop()
    return [
        row(f"tree + rtmc, {sizes[0] * EPISODES * TURNS:,} turns", times[0]),
        row(
            f"tree + rtmc, {len(found.flat):,} turns",
            times[1],
            longer := times[1] / times[0],
            "times",
            "<= 12",
            longer <= 12,
        ),
        row("memory beyond the input", None, peak, "bytes a turn at the peak", "< 200", peak < 200),
    ]


def row(
    what: str,
    milliseconds: float | None,
    ratio: float | None = None,
    unit: str = "",
    target: str | None = None,
    met: bool | None = None,
) -> dict[str, Any]:
    return {"what": what, "ms": milliseconds, "ratio": ratio, "unit": unit, "target": target, "met": met}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument("--turns", type=int, default=5_000_000, help="size of the scaling run")
    parser.add_argument("--tries", type=int, default=9)
    options = parser.parse_args()
    tables = {
        f"{GROUPS} groups of {EPISODES} episodes of {TURNS} turns": from_keys_and_ids(options.tries),
        "estimators": per_estimator(options.tries),
        "scaling": scaling(options.turns),
    }
    if options.json:
        print(json.dumps(tables, indent=2))
    else:
        for title, rows in tables.items():
            print(f"\n{title}")
            for entry in rows:
                ms = " " * 13 if entry["ms"] is None else f"{entry['ms']:10.1f} ms"
                ratio = "" if entry["ratio"] is None else f"{entry['ratio']:8.2f} {entry['unit']}"
                target = "" if entry["target"] is None else f"{'met' if entry['met'] else 'MISSED'} ({entry['target']})"
                print(f"  {entry['what']:34}{ms}{ratio:35}{target}".rstrip())
    return int(any(entry["met"] is False for rows in tables.values() for entry in rows))


if __name__ == "__main__":
    sys.exit(main())
