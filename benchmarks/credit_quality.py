"""How good credit is: against exact advantages, and by how fast a small policy learns from it.

    python benchmarks/credit_quality.py                    # a quick look, under a minute
    python benchmarks/credit_quality.py --full --out docs  # the tables and pictures of docs/credit.md, about 15 minutes

Accuracy, on the processes of `agentgym_rtmc.trainer.credit.processes` (gamma = 1): correlation and sign agreement of
the advantages with the true ones over steps; bias (root mean square over state-action pairs of the mean error) and
variance (mean within a pair), after scaling each estimator by the one factor that fits the truth best, relative to the
mean square of the truth; cosine of the gradient averaged over all groups with the true one, and of a single group's.
`gae` gets a critic that knows the mean return-to-go of each key in an earlier batch; `tempo` sees episodes as tokens.
Learning, on `credit_learning.py`: area of the curve above its start relative to grpo's, the rate tuned per estimator
and cell on 4 seeds of its own, 24 further seeds paired, 95 % interval by bootstrap over seeds.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from credit_learning import Cell, learn
from numpy.typing import NDArray

from agentgym_rtmc.trainer.credit import RolloutTree, estimate
from agentgym_rtmc.trainer.credit.processes import PROCESSES, Process, Sample
from agentgym_rtmc.trainer.credit.returns import returns_to_go

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "grpo": ("grpo", {}),
    "dr_grpo": ("dr_grpo", {}),
    "rloo": ("rloo", {}),
    "reinforce_pp": ("reinforce_pp", {}),
    "gae": ("gae", {"gamma": 1.0}),
    "gigpo": ("gigpo", {"gamma": 1.0}),
    "rtmc, no prior": ("rtmc", {"gamma": 1.0, "prior_strength": 0.0}),
    "rtmc": ("rtmc", {"gamma": 1.0}),
    "rtmc, gamma .99": ("rtmc", {}),
    "rtmc, n0 = 8": ("rtmc", {"gamma": 1.0, "prior_strength": 8.0}),
    "rtmc, leave one out": ("rtmc", {"gamma": 1.0, "leave_one_out": True}),
    "tempo": ("tempo", {}),
    "tempo_step": ("tempo_step", {}),
    "closure": ("closure", {}),
    "backoff": ("backoff", {"gamma": 1.0}),
    "backoff, k 0.5": ("backoff", {"gamma": 1.0, "strength": 0.5}),
    "backoff, k 8": ("backoff", {"gamma": 1.0, "strength": 8.0}),
    "backoff, q 2": ("backoff", {"gamma": 1.0, "q_strength": 2.0}),
    "backoff, closure": ("backoff", {"gamma": 1.0, "values": "closure"}),
    "backoff, gate": ("backoff", {"gamma": 1.0, "variance_gate": True}),
    "backoff, closure, gate": ("backoff", {"gamma": 1.0, "values": "closure", "variance_gate": True}),
    "adaptive": ("adaptive", {}),
    "adaptive, ladder": ("adaptive", {"outcome_term": "ladder"}),
}
NO_LEARNERS = ("dr_grpo", "rloo", "reinforce_pp", "gae", "tempo", "rtmc, gamma .99", "backoff, gate")
LEARNERS = [name for name in VARIANTS if name not in NO_LEARNERS]
SIZES = (2, 4, 8, 16, 32, 64)
STRAYS = (0.0, 0.1, 0.3)
CELLS = (
    Cell(4, 1, 0.03), Cell(4, 4, 0.03), Cell(12, 1, 0.02), Cell(12, 1, 0.15), Cell(12, 4, 0.02), Cell(12, 4, 0.15),
    Cell(12, 4, 0.5), Cell(12, 12, 0.03), Cell(30, 1, 0.01), Cell(30, 1, 0.1), Cell(30, 4, 0.02), Cell(30, 4, 0.1),
    Cell(30, 4, 0.0, record=0.15), Cell(12, 4, 0.02, record=0.5), Cell(12, 4, 0.02, aliased=True),
    Cell(30, 1, 0.01, aliased=True), Cell(12, 4, 0.03, steps=True), Cell(30, 6, 0.02, steps=True),
    Cell(30, 6, 0.2, steps=True),
)  # fmt: skip
RATES = (0.1, 0.2, 0.4)


def credited(process: Process, sample: Sample, earlier: Sample, variant: str) -> NDArray[Any]:
    """Advantages of all steps. Shape: (steps,). `earlier` is what the critic and the memory know."""
    name, parameters = VARIANTS[variant]
    if name == "tempo":
        return np.concatenate(estimate(name, as_tokens(sample), **parameters).sampled())
    if name == "gae":
        keys, gains = process.keys[earlier.state], returns_to_go(earlier.tree, 1.0)
        met = np.bincount(keys, minlength=len(process.keys))
        critic = np.bincount(keys, gains, len(process.keys)) / np.maximum(met, 1)
        parameters = {**parameters, "values": sample.tree.split(critic[process.keys[sample.state]])}
    memory = estimate("adaptive", earlier.tree).memory
    return estimate(name, sample.tree, memory=memory, **parameters).flat


def as_tokens(sample: Sample) -> RolloutTree:
    """Each step as two tokens: the state, observed, and the action, sampled."""
    tree = sample.tree
    tokens = np.stack([2 + tree.state.ids, sample.action], axis=1)
    return RolloutTree.from_tokens(
        [part.ravel() for part in tree.split(tokens)],
        [np.tile([False, True], length) for length in tree.lengths],
        tree.episode_returns,
        groups=tree.group.tolist(),
    )


def accuracy(process: Process, sample: Sample, earlier: Sample, episodes: int, variant: str) -> dict[str, float]:
    """One row: how the estimates of many groups compare with the truth."""
    truth = process.truth()
    values = credited(process, sample, earlier, variant)
    true = truth.advantage[sample.state, sample.action]
    scale = float(values @ true / max(values @ values, 1e-12))
    pair = sample.state * 2 + sample.action
    count = np.bincount(pair, minlength=truth.q.size)
    seen = count > 0
    mean = np.bincount(pair, scale * values, truth.q.size)[seen] / count[seen]
    square = np.bincount(pair, (scale * values) ** 2, truth.q.size)[seen] / count[seen]
    weight, power = count[seen] / count.sum(), float(np.mean(true**2))
    gradients = group_gradients(process, sample, values)
    target = truth.gradient(process.policy).ravel()
    sure = np.abs(true) > 0.02
    return {
        "correlation": float(np.corrcoef(values, true)[0, 1]) if values.std() > 0 else 0.0,
        "sign": float(np.mean(np.sign(values[sure]) == np.sign(true[sure]))),
        "bias": float(np.sqrt(weight @ (mean - truth.advantage.ravel()[seen]) ** 2 / power)),
        "variance": float(weight @ (square - mean**2) / power),
        "cosine": cosine(gradients.sum(axis=0), target),
        "cosine of one group": float(np.mean([cosine(row, target) for row in gradients])),
        "company": sample.tree.company_share(),
        "episodes": float(episodes),
    }


def group_gradients(process: Process, sample: Sample, values: NDArray[Any]) -> NDArray[Any]:
    """Policy gradient of each group in a tabular softmax. Shape: (groups, S * A)."""
    states, actions = process.policy.shape
    group = sample.tree.group[sample.tree.episode]
    groups = int(group[-1]) + 1
    taken = np.bincount((group * states + sample.state) * actions + sample.action, values, groups * states * actions)
    visited = np.bincount(group * states + sample.state, values, groups * states).reshape(groups, states, 1)
    return np.asarray((taken.reshape(groups, states, actions) - visited * process.policy).reshape(groups, -1))


def cosine(one: NDArray[Any], other: NDArray[Any]) -> float:
    """0 for a vector of zeros."""
    norm = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / norm if norm > 1e-12 else 0.0


def accuracies(steps: int) -> list[dict[str, Any]]:
    """All processes, group sizes, overlaps and estimators; `steps` turns or so for each setting."""
    rows = []
    for label, build in PROCESSES.items():
        process = build()
        length = process.truth().visits.sum()
        for stray in STRAYS:
            for episodes in SIZES:
                rng = np.random.default_rng(episodes)
                groups = max(40, int(steps / length / episodes))
                earlier, sample = (process.sample(rng, groups, episodes, stray) for _ in range(2))
                for variant in VARIANTS:
                    row = accuracy(process, sample, earlier, episodes, variant)
                    rows.append({"process": label, "stray": stray, "estimator": variant, **row})
    return rows


def learning(cells: tuple[Cell, ...], variants: list[str], tuning: int, seeds: int) -> list[dict[str, Any]]:
    """One row per cell and estimator: rate, area relative to grpo with its interval, RMS, share without company."""
    rows = []
    for cell in cells:
        areas: dict[str, NDArray[Any]] = {}
        for variant in variants:
            name, parameters = VARIANTS[variant]
            tried = [np.mean([learn(cell, name, parameters, r, 1000 + s).area for s in range(tuning)]) for r in RATES]
            rate = RATES[int(np.argmax(tried))]
            curves = [learn(cell, name, parameters, rate, seed) for seed in range(seeds)]
            areas[variant] = np.array([curve.area for curve in curves])
            low, high = interval(areas[variant], areas["grpo"])
            rows.append({
                "cell": cell.label, "estimator": variant, "rate": rate, "area": float(areas[variant].mean()),
                "relative": float(areas[variant].mean() / areas["grpo"].mean()), "low": low, "high": high,
                "alone": float(np.mean([curve.lonely for curve in curves])),
                "rms": float(np.mean([curve.rms for curve in curves])),
                "curve": np.mean([curve.returns for curve in curves], axis=0).round(4).tolist(),
            })  # fmt: skip
    return rows


def interval(areas: NDArray[Any], base: NDArray[Any]) -> tuple[float, float]:
    """95 % interval of the ratio of means, seeds resampled in pairs."""
    drawn = np.random.default_rng(0).integers(0, len(base), (2000, len(base)))
    low, high = np.quantile(areas[drawn].mean(axis=1) / base[drawn].mean(axis=1), [0.025, 0.975])
    return float(low), float(high)


def accuracy_table(rows: list[dict[str, Any]], column: str, title: str = "") -> str:
    """Markdown: all measures of every estimator, one column for each value of `column`."""
    values = list(dict.fromkeys(row[column] for row in rows))
    lines = ["| estimator | " + " | ".join(f"{title}{value:g}" if title else value for value in values) + " |"]
    lines.append("|---|" + "---|" * len(values))
    for variant in dict.fromkeys(row["estimator"] for row in rows):
        cells = [
            f"{row['correlation']:.2f} · {row['sign']:.0%} · {row['bias']:.2f} · {row['variance']:.2f} · "
            f"{row['cosine']:.2f} · {row['cosine of one group']:.2f}"
            for value in values
            for row in rows
            if (row["estimator"], row[column]) == (variant, value)
        ]
        lines.append(f"| {variant} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def learning_table(rows: list[dict[str, Any]]) -> str:
    """Markdown: relative area, bold where the interval excludes 1; geometric mean, worst, better/worse below."""
    variants = list(dict.fromkeys(row["estimator"] for row in rows))
    lines = ["| cell | alone | " + " | ".join(variants) + " |", "|---|---|" + "---|" * len(variants)]
    for cell in dict.fromkeys(row["cell"] for row in rows):
        here = {row["estimator"]: row for row in rows if row["cell"] == cell}
        shown = [
            f"**{row['relative']:.2f}**" if not row["low"] <= 1 <= row["high"] else f"{row['relative']:.2f}"
            for row in here.values()
        ]
        lines.append(f"| {cell} | {here['grpo']['alone']:.2f} | " + " | ".join(shown) + " |")
    ratios = {v: np.array([row["relative"] for row in rows if row["estimator"] == v]) for v in variants}
    better = {v: sum(row["low"] > 1 for row in rows if row["estimator"] == v) for v in variants}
    worse = {v: sum(row["high"] < 1 for row in rows if row["estimator"] == v) for v in variants}
    means = [f"{np.exp(np.log(np.maximum(ratios[v], 0.01)).mean()):.2f}" for v in variants]
    lines.append("| geometric mean | | " + " | ".join(means) + " |")
    lines.append("| worst | | " + " | ".join(f"{ratios[v].min():.2f}" for v in variants) + " |")
    lines.append("| surely better/worse | | " + " | ".join(f"{better[v]}/{worse[v]}" for v in variants) + " |")
    rms = [f"{np.mean([row['rms'] for row in rows if row['estimator'] == v]):.2f}" for v in variants]
    lines.append("| RMS of A | | " + " | ".join(rms) + " |")
    return "\n".join(lines)


def pictures(accuracy_rows: list[dict[str, Any]], learning_rows: list[dict[str, Any]], folder: Path) -> None:
    """credit_accuracy.png and credit_learning.png."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    shown = ["grpo", "gigpo", "rtmc", "tempo_step", "closure", "backoff", "adaptive"]
    colours = dict(zip(shown, plt.get_cmap("tab10").colors, strict=False))
    figure, axes = plt.subplots(len(STRAYS), len(PROCESSES), figsize=(15, 8), sharex=True, sharey=True)
    for line, stray in zip(axes, STRAYS, strict=True):
        for axis, process in zip(line, PROCESSES, strict=True):
            for variant in shown:
                rows = [
                    row for row in accuracy_rows
                    if (row["process"], row["stray"], row["estimator"]) == (process, stray, variant)
                ]  # fmt: skip
                points = ([row["episodes"] for row in rows], [row["cosine of one group"] for row in rows])
                axis.plot(*points, marker=".", color=colours[variant], label=variant)
            axis.set(xscale="log", title=f"{process}, stray {stray:g}", xticks=SIZES, xticklabels=SIZES)
            axis.grid(alpha=0.3)
    axes[-1][0].set(xlabel="episodes in a group", ylabel="cosine with the true gradient")
    axes[0][0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(folder / "credit_accuracy.png", dpi=80)
    cells = list(dict.fromkeys(row["cell"] for row in learning_rows))
    figure, axes = plt.subplots(-(-len(cells) // 5), 5, figsize=(15, 2.6 * -(-len(cells) // 5)), squeeze=False)
    for axis, cell in zip(axes.flat, cells, strict=False):
        for variant in shown:
            for row in learning_rows:
                if (row["cell"], row["estimator"]) == (cell, variant):
                    axis.plot(row["curve"], color=colours[variant], label=variant)
        axis.set_title(cell, fontsize=8)
        axis.grid(alpha=0.3)
    for axis in axes.flat[len(cells) :]:
        axis.axis("off")
    axes[0][0].legend(fontsize=6)
    axes[-1][0].set(xlabel="update", ylabel="expected return")
    figure.tight_layout()
    figure.savefig(folder / "credit_learning.png", dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all cells and seeds")
    parser.add_argument("--out", type=Path, help="folder for credit_quality.json and the pictures")
    options = parser.parse_args()
    start = time.process_time()
    accuracy_rows = accuracies(60_000 if options.full else 6_000)
    variants = LEARNERS if options.full else ["grpo", "rtmc", "tempo_step", "closure", "backoff", "adaptive"]
    cells = CELLS if options.full else (CELLS[2], CELLS[6], CELLS[14])
    learning_rows = learning(cells, variants, *((4, 24) if options.full else (1, 4)))
    print("correlation · sign agreement · bias · variance · cosine · cosine of one group\n")
    print("N = 8, nobody strays\n")
    chosen = [row for row in accuracy_rows if (row["stray"], row["episodes"]) == (0.0, 8)]
    print(accuracy_table(chosen, "process"), end="\n\n")
    for process, stray in (("corridor", 0.0), ("corridor", 0.3), ("aliased", 0.0)):
        chosen = [row for row in accuracy_rows if (row["process"], row["stray"]) == (process, stray)]
        print(f"{process}, stray {stray:g} ({1 - chosen[-1]['company']:.0%} alone at N = 64)\n")
        print(accuracy_table(chosen, "episodes", "N = "), end="\n\n")
    print("area of the learning curve relative to grpo\n")
    print(learning_table(learning_rows))
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        pictures(accuracy_rows, learning_rows, options.out)
        rounded = json.loads(
            json.dumps({"accuracy": accuracy_rows, "learning": learning_rows}),
            parse_float=lambda text: round(float(text), 4),
        )
        lines = [
            f'"{name}": [\n' + ",\n".join(json.dumps(row) for row in rows) + "\n]" for name, rows in rounded.items()
        ]
        (options.out / "credit_quality.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"\n{time.process_time() - start:.0f} s of processor time")


if __name__ == "__main__":
    main()
