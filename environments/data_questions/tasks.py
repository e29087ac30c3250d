"""The task set `generated`: questions of 30 families at five levels about databases of twelve domains.

Splits, no question text occurring in two of them, nor twice about one database:

- `train`, `validation`, `test`: 25 families, nine domains; other questions about other databases;
- `schemas`: the same families about three domains that occur in no other split;
- `families`: five families that occur in no other split, about the nine domains.

Which of the first three may ask a question depends on its text alone. Invariant: equal options, equal tasks, in every
process and on every machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from random import Random

from agentgym_rtmc.environments.data_questions.domains import find_domain, load_domains, make_database
from agentgym_rtmc.environments.data_questions.families import FAMILIES, HELD_OUT, LEVELS
from agentgym_rtmc.environments.data_questions.questions import Question
from agentgym_rtmc.errors import ConfigError, nearest
from agentgym_rtmc.tasks import Task, TaskSet

SPLITS = {"train": 16, "validation": 3, "test": 4, "schemas": 5, "families": 6}
"""Split -> databases of each domain; each family asks once about each of them."""
_SHARES = {"train": 0.6, "validation": 0.75, "test": 1.0}
"""Upper ends of the shares of texts that belong to a split."""
_TRIES = 24


def load_questions(
    *,
    limit: int | None = None,
    levels: Sequence[int] = tuple(LEVELS),
    families: Sequence[str] = (),
    domains: Sequence[str] = (),
    databases: int | None = None,
    heldout_databases: int | None = None,
) -> TaskSet:
    """Load the set. `limit` is the most tasks of a split (spread evenly); `levels`, `families` and `domains` choose
    (default: all); `databases` is the number of databases of each domain in `train`, `heldout_databases` in all other
    splits (default: `SPLITS`)."""
    for name, number in (("limit", limit), ("databases", databases), ("heldout_databases", heldout_databases)):
        if number is not None and not 1 <= number <= 100_000:
            raise ConfigError(f"{name} must lie between 1 and 100000, not {number}")
    for level in levels:
        if level not in LEVELS:
            raise ConfigError(f"there is no level {level}; known: {', '.join(map(str, LEVELS))}")
    for family in families:
        if family not in FAMILIES:
            raise ConfigError(f"there is no family {family!r}{nearest(family, FAMILIES)}")
    for domain in domains:
        find_domain(domain)
    chosen = [name for name, (level, _) in FAMILIES.items() if level in levels and (not families or name in families)]
    worlds = [name for name in load_domains() if not domains or name in domains]
    splits = {}
    for split in SPLITS:
        count = (databases if split == "train" else heldout_databases) or SPLITS[split]
        made = list(_questions(split, chosen, worlds, count))
        splits[split] = made if limit is None else _even(made, limit)
    return TaskSet("generated", splits)


def ask(family: str, domain: str, seed: int, draw: str) -> Question | None:
    """Draw a question of a family about a database; None where its rows allow none."""
    return FAMILIES[family][1](Random(f"question/{family}/{domain}/{seed}/{draw}"), make_database(domain, seed))


def _questions(split: str, families: Sequence[str], domains: Sequence[str], databases: int) -> Iterator[Task]:
    for number in range(databases):
        seed = 1_000_000 * list(SPLITS).index(split) + number
        for domain in domains:
            if (find_domain(domain).split == "heldout") != (split == "schemas"):
                continue
            for family in families:
                if (family in HELD_OUT) != (split == "families"):
                    continue
                if (question := _draw(split, family, domain, seed)) is not None:
                    yield _task(split, family, domain, seed, question)


def _draw(split: str, family: str, domain: str, seed: int) -> Question | None:
    """A question whose text belongs to the split, if a few draws bring one."""
    for draw in range(_TRIES):
        question = ask(family, domain, seed, str(draw))
        if question is not None and split in (split_of(domain, question.text), "schemas", "families"):
            return question
    return None


def split_of(domain: str, text: str) -> str:
    """Which of `train`, `validation` and `test` may ask a question."""
    digest = hashlib.sha256(f"{domain}/{text}".encode()).digest()
    share = int.from_bytes(digest[:4], "big") / 2**32
    return next(split for split, end in _SHARES.items() if share < end)


def _task(split: str, family: str, domain: str, seed: int, question: Question) -> Task:
    # Plain JSON by construction: checking thousands of tasks again would only take seconds.
    return Task.model_construct(
        id=f"{split}/{family}/{domain}/{seed}",
        public={
            "family": family,
            "level": FAMILIES[family][0],
            "domain": domain,
            "seed": seed,
            "question": question.text,
        },
        private={"sql": question.sql, "answer": question.answer},
    )


def _even(tasks: list[Task], limit: int) -> list[Task]:
    """Take `limit` tasks at even distances, which spreads them over families and domains."""
    return tasks if len(tasks) <= limit else [tasks[index * len(tasks) // limit] for index in range(limit)]
