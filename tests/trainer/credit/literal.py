"""Slow, literal references: each definition written out over dictionaries, one episode and one turn at a time.

An episode is a `Run`. Everything here works on one group of runs and knows nothing of arrays or of the code under test.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean, pstdev, stdev


@dataclass
class Run:
    states: list
    actions: list
    rewards: list
    valid: bool = True
    coarser: tuple = ()
    values: tuple = ()
    tokens: tuple = ()

    @property
    def total(self):
        return math.fsum(self.rewards)


def zeros(group):
    return [[0.0] * len(run.rewards) for run in group]


def valid_of(group):
    return [run for run in group if run.valid]


def by_run(group, value):
    """Spread one value per run over its turns; zeros for invalid runs and for lonely groups."""
    if len(valid_of(group)) < 2:
        return zeros(group)
    return [[value(run) if run.valid else 0.0 for _ in run.rewards] for run in group]


def to_go(run, gamma):
    gains = []
    for t in range(len(run.rewards)):
        gains.append(math.fsum(gamma**k * r for k, r in enumerate(run.rewards[t:])))
    return gains


def no_variance(group):
    totals = [run.total for run in valid_of(group)]
    return max(totals) - min(totals) <= 1e-12 * max(1.0, *map(abs, totals))


def grpo(group):
    totals = [run.total for run in valid_of(group)]
    return by_run(group, lambda run: (run.total - fmean(totals)) / (stdev(totals) + 1e-6))


def dr_grpo(group):
    totals = [run.total for run in valid_of(group)]
    return by_run(group, lambda run: run.total - fmean(totals))


def rloo(group):
    def value(run):
        others = [other.total for other in valid_of(group) if other is not run]
        return run.total - fmean(others)

    return by_run(group, value)


def first_visits(run, gamma, keys=None, gains=None):
    """(state, action) -> return after its first occurrence in the run, or what `gains` holds there."""
    gains, seen = gains or to_go(run, gamma), {}
    for t, pair in enumerate(zip(keys or run.states, run.actions, strict=True)):
        seen.setdefault(pair, gains[t])
    return seen


def statistics(runs, gamma):
    """Q(s, a), N(s) and V(s) of some runs."""
    returns = defaultdict(list)
    for run in runs:
        for pair, gain in first_visits(run, gamma).items():
            returns[pair].append(gain)
    q = {pair: fmean(gains) for pair, gains in returns.items()}
    n, v = defaultdict(int), {}
    for (s, _), gains in returns.items():
        n[s] += len(gains)
    for s in n:
        v[s] = math.fsum(len(g) * q[p] for p, g in returns.items() if p[0] == s) / n[s]
    return q, n, v


def prior_value(run, t, reference, gamma, prior):
    if prior == "success_rate":
        return fmean(other.total for other in reference)
    mean = fmean(to_go(other, gamma)[0] for other in reference)
    if prior == "discounted":
        return mean
    return (mean - math.fsum(gamma**k * run.rewards[k] for k in range(t))) / gamma**t


def rtmc(
    group,
    gamma=0.99,
    prior="return_to_go",
    prior_strength=2.0,
    leave_one_out=False,
    normalize=False,
    skip_zero_variance=True,
):
    runs, result = valid_of(group), zeros(group)
    if len(runs) < 2 or (skip_zero_variance and no_variance(group)):
        return result
    q, _, _ = statistics(runs, gamma)
    for run, row in zip(group, result, strict=True):
        if not run.valid:
            continue
        reference = [other for other in runs if other is not run] if leave_one_out else runs
        _, n, v = statistics(reference, gamma)
        for t, (s, a) in enumerate(zip(run.states, run.actions, strict=True)):
            weight = n.get(s, 0) + prior_strength
            if weight == 0:
                continue
            v0 = prior_value(run, t, reference, gamma, prior)
            row[t] = q[s, a] - (n.get(s, 0) * v.get(s, 0.0) + prior_strength * v0) / weight
    if normalize:
        spread = pstdev([a for run, row in zip(group, result, strict=True) if run.valid for a in row])
        result = [[a / max(spread, 0.1) for a in row] for row in result]
    return result


def reinforce_pp(batch):
    """Over a list of groups; weights are the turns' token counts where the runs carry `tokens`."""
    rows, flat, weights = [], [], []
    for group in batch:
        for run, row in zip(group, dr_grpo(group), strict=True):
            counted = run.valid and len(valid_of(group)) >= 2
            rows.append((row, counted))
            if counted:
                flat.extend(row)
                weights.extend(run.tokens or [1] * len(row))
    size = sum(weights)
    if size < 2:
        return [[0.0] * len(row) for row, _ in rows]
    mean = math.fsum(w * a for w, a in zip(weights, flat, strict=True)) / size
    spread = math.fsum(w * (a - mean) ** 2 for w, a in zip(weights, flat, strict=True)) / (size - 1)
    scale = math.sqrt(spread + 1e-8)
    return [[(a - mean) / scale if counted else 0.0 for a in row] for row, counted in rows]


def gae(group, gamma, lambda_, bootstrap):
    """`run.values` are the critic's; `bootstrap` holds the value after each run. Lonely groups are credited, too."""
    result = zeros(group)
    for run, row, last in zip(group, result, bootstrap, strict=True):
        if not run.valid:
            continue
        v = [*run.values, last]
        delta = [r + gamma * v[t + 1] - v[t] for t, r in enumerate(run.rewards)]
        for t in range(len(row)):
            row[t] = math.fsum((gamma * lambda_) ** k * d for k, d in enumerate(delta[t:]))
    return result


def standardised(value, values, divide):
    if len(values) < 2:
        return 0.0
    return (value - fmean(values)) / ((stdev(values) + 1e-6) if divide else 1.0)


def gigpo(group, gamma=0.95, step_weight=1.0, normalization="mean_norm", baseline="episode", anchor=None):
    """`anchor(run, t)` names the anchor of a turn; by default its state."""
    runs, result = valid_of(group), zeros(group)
    anchor = anchor or (lambda run, t: run.states[t])
    divide = normalization == "mean_std_norm"
    if len(runs) < 2:
        return result
    totals = [run.total for run in runs for _ in (run.rewards if baseline == "released" else [0])]
    met = defaultdict(list)
    for run in runs:
        for t, gain in enumerate(to_go(run, gamma)):
            met[anchor(run, t)].append(gain)
    for run, row in zip(group, result, strict=True):
        if run.valid:
            for t, gain in enumerate(to_go(run, gamma)):
                local = standardised(gain, met[anchor(run, t)], divide)
                row[t] = standardised(run.total, totals, divide) + step_weight * local
    return result


def mean_through(runs):
    """State -> mean return of the runs that pass through it."""
    through = defaultdict(list)
    for run in runs:
        for s in set(run.states):
            through[s].append(run.total)
    return {s: fmean(totals) for s, totals in through.items()}


def tempo_step(group, weight=1.0, normalize=True):
    runs, result = valid_of(group), zeros(group)
    if len(runs) < 2:
        return result
    totals, v = [run.total for run in runs], mean_through(runs)
    for run, row in zip(group, result, strict=True):
        if run.valid:
            for t, s in enumerate(run.states):
                after = v[run.states[t + 1]] if t + 1 < len(run.states) else run.total
                row[t] = run.total - fmean(totals) + weight * (after - v[s])
                row[t] /= (stdev(totals) + 1e-6) if normalize else 1.0
    return result


def tempo(tokens, masks, totals, valid, normalize=True):
    """One group of token sequences. Values of prefixes are looked up by comparing the prefixes themselves."""
    result = [[0.0] * len(sequence) for sequence in tokens]
    live = [i for i, ok in enumerate(valid) if ok]
    if len(live) < 2:
        return result
    mean, scale = fmean(totals[i] for i in live), stdev([totals[i] for i in live]) + 1e-6

    def value(prefix):
        return fmean(totals[i] for i in live if tokens[i][: len(prefix)] == prefix)

    for i in live:
        sampled = [p for p, mask in enumerate(masks[i]) if mask]
        for p in sampled:
            after = totals[i] if p == sampled[-1] else value(tokens[i][: p + 1])
            result[i][p] = totals[i] - mean + after - value(tokens[i][:p])
            result[i][p] /= scale if normalize else 1.0
    return result


def closed_values(runs, beta, rewards):
    """V of the empirical process by repeated Bellman backups, exact to 1e-13 for beta < 1."""
    visits = defaultdict(list)
    for run, paid in zip(runs, rewards, strict=True):
        for t, s in enumerate(run.states):
            visits[s].append((paid[t], run.states[t + 1] if t + 1 < len(run.states) else None))
    v = dict.fromkeys(visits, 0.0)
    for _ in range(100_000):
        new = {s: fmean(r + (beta * v[x] if x is not None else 0.0) for r, x in seen) for s, seen in visits.items()}
        change = max(abs(new[s] - v[s]) for s in v)
        v = new
        if change < 1e-14:
            break
    return v


def closure(group, beta=0.98, step_weight=5.0, form="general"):
    runs, result = valid_of(group), zeros(group)
    if len(runs) < 2:
        return result
    paid = {id(run): run.rewards for run in runs}
    if form == "published":
        paid = {id(run): [0.0] * (len(run.rewards) - 1) + [beta * run.total] for run in runs}
    v = closed_values(runs, beta, [paid[id(run)] for run in runs])
    outcomes = defaultdict(list)
    for run in runs:
        for t, pair in enumerate(zip(run.states, run.actions, strict=True)):
            after = v[run.states[t + 1]] if t + 1 < len(run.states) else 0.0
            outcomes[pair].append(paid[id(run)][t] + beta * after)
    q = {pair: fmean(found) for pair, found in outcomes.items()}
    for run, row, base in zip(group, result, grpo(group), strict=True):
        if not run.valid:
            continue
        for t, (s, a) in enumerate(zip(run.states, run.actions, strict=True)):
            here = {pair: len(found) for pair, found in outcomes.items() if pair[0] == s}
            total = sum(here.values())
            sigma = math.sqrt(math.fsum(n / total * (q[pair] - v[s]) ** 2 for pair, n in here.items()))
            local = (q[s, a] - v[s]) / max(sigma, 0.1) if len(here) >= 2 else 0.0
            row[t] = base[t] + step_weight * local
    return result


def ladder(run, t, runs, keys, gamma, strength, leave_one_out, sampled=lambda run: None):
    """Value of a turn from coarse to fine; `keys` holds functions run -> state keys, finest first.

    `sampled`: run -> what is averaged in place of its returns-to-go.
    """
    reference = [other for other in runs if other is not run] if leave_one_out else runs
    value = prior_value(run, t, reference, gamma, "return_to_go")
    for key in reversed(keys):
        s = key(run)[t]
        found = [
            gain
            for other in reference
            for (state, _), gain in first_visits(other, gamma, key(other), sampled(other)).items()
            if state == s
        ]
        if found or strength:
            value = (math.fsum(found) + strength * value) / (len(found) + strength)
    return value


def key_levels(count):
    return [lambda run: run.states, *(lambda run, i=i: run.coarser[i] for i in range(2))][:count]


def gate(s, runs, gamma, sampled):
    """tanh(n / 4) B / (B + W) of a state, from the variance between and within its actions."""
    met = defaultdict(list)
    for run in runs:
        for (state, a), gain in first_visits(run, gamma, gains=sampled(run)).items():
            if state == s:
                met[a].append(gain)
    everything = [gain for gains in met.values() for gain in gains]
    value = fmean(everything)
    between = math.fsum(len(gains) * (fmean(gains) - value) ** 2 for gains in met.values())
    within = math.fsum((gain - fmean(gains)) ** 2 for gains in met.values() for gain in gains)
    if max(everything) - min(everything) <= 1e-12 * max(1, abs(value)):
        return 0.0
    return math.tanh(len(everything) / 4) * between / (between + within)


def backoff(
    group,
    gamma=0.99,
    strength=2.0,
    q_strength=0.0,
    levels=1,
    leave_one_out=True,
    values="returns",
    variance_gate=False,
    skip_zero_variance=True,
):
    runs, result, keys = valid_of(group), zeros(group), key_levels(levels)
    if len(runs) < 2 or (skip_zero_variance and no_variance(group)):
        return result
    targets = {id(run): to_go(run, gamma) for run in runs}
    if values == "closure":
        v = closed_values(runs, gamma, [run.rewards for run in runs])
        for run in runs:
            behind = [*(v[s] for s in run.states[1:]), 0.0]
            targets[id(run)] = [r + gamma * x for r, x in zip(run.rewards, behind, strict=True)]

    def sampled(run):
        return targets[id(run)]

    for run, row in zip(group, result, strict=True):
        if not run.valid:
            continue
        gains = to_go(run, gamma)
        for t, a in enumerate(run.actions):
            reference = [other for other in runs if other is not run] if leave_one_out else runs
            q = prior_value(run, t, reference, gamma, "return_to_go")
            for key in reversed(keys if q_strength else keys[:1]):
                pair = (key(run)[t], a)
                visits = [first_visits(other, gamma, key(other), sampled(other)) for other in runs]
                found = [seen[pair] for seen in visits if pair in seen]
                q = (math.fsum(found) + q_strength * q) / (len(found) + q_strength)
            if not keys:
                q = sampled(run)[t]
            row[t] = q - ladder(run, t, runs, keys, gamma, strength, leave_one_out, sampled)
            if variance_gate and keys:
                centred = gains[t] - prior_value(run, t, reference, gamma, "return_to_go")
                row[t] = centred + gate(run.states[t], runs, gamma, sampled) * (row[t] - centred)
    return result


def split_sums(group):
    """(between, within) of one group."""
    runs = valid_of(group)
    if len(runs) < 2:
        return 0.0, 0.0
    at = defaultdict(list)
    for run in runs:
        for s in set(run.states):
            t = run.states.index(s)
            at[s].append((run.states[t + 1] if t + 1 < len(run.states) else None, run.total))
    between = within = 0.0
    for met in at.values():
        totals = [total for _, total in met]
        if len(met) < 2 or stdev(totals) == 0 or any(child is None for child, _ in met):
            continue
        children = {child: [total for c, total in met if c == child] for child, _ in met}
        between += sum(len(some) * (fmean(some) - fmean(totals)) ** 2 for some in children.values())
        within += (len(children) - 1) * stdev(totals) ** 2
    return between, within


def adaptive(batch, between=0.0, within=0.0, outcome_term="return", gamma=1.0, levels=1):
    """Over a list of groups; returns rows and the new sums."""
    signal = min(max(1 - (within + 0.1) / (between + 0.1), 0), 1)
    weight = 6 * min(max((signal - 0.15) / 0.5, 0), 1)
    rows = []
    for group in batch:
        runs, result = valid_of(group), zeros(group)
        between_here, within_here = split_sums(group)
        rows.append((group, result, between_here, within_here))
        if len(runs) < 2 or no_variance(group):
            continue
        totals, v = [run.total for run in runs], mean_through(runs)
        for run, row in zip(group, result, strict=True):
            if not run.valid:
                continue
            for t, s in enumerate(run.states):
                if outcome_term == "return":
                    row[t] = run.total - fmean(totals)
                else:
                    base = ladder(run, t, runs, key_levels(levels), gamma, 2.0, True)
                    row[t] = to_go(run, gamma)[t] - base
                after = v[run.states[t + 1]] if t + 1 < len(run.states) else run.total
                row[t] = (row[t] + weight * (after - v[s])) / (stdev(totals) + 1e-6)
    carried = {
        "between": 0.95 * between + sum(entry[2] for entry in rows),
        "within": 0.95 * within + sum(entry[3] for entry in rows),
    }
    return [row for _, result, _, _ in rows for row in result], carried
