"""Prove the mutants of all programs and write the manifest: `python -m agentgym_rtmc.environments.code_repair.build`.

Invariants: a *form* is a program with certain constants and a certain shape. For every form the manifest holds the
calls, the original's answers, which calls are the visible tests, and the edits that make mutants. Each listed mutant
was run in a sandbox: it fails at least one visible test and at least one hidden case that is not a visible test, while
the original answers every call with a plain value, the same one again when asked again. Same programs, same manifest.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from agentgym_rtmc.environments.code_repair.answering import answer_calls
from agentgym_rtmc.environments.code_repair.cases import CallData, is_value, same
from agentgym_rtmc.environments.code_repair.corpus import Program, corpus_digest, load_programs
from agentgym_rtmc.environments.code_repair.mutations import Edit, edits_by_operator, find_edits
from agentgym_rtmc.environments.code_repair.variants import reshape, vary_constants
from agentgym_rtmc.errors import TaskError

CALLS = 20
"""Calls of a program, the visible ones among them."""
VISIBLE = 6
FORMS = {"train": 4, "heldout": 3, "families": 3, "handwritten": 1}
"""Most forms of a program by use; hand-written programs stay as they are."""
PER_OPERATOR = {"train": 2, "heldout": 3, "families": 3, "handwritten": 4}
PER_FORM = {"train": 12, "heldout": 14, "families": 14, "handwritten": 18}
"""Most mutants of a form that are kept, by operator and in all."""
LINES = 5_000
"""Executed lines after which a call counts as endless while proving."""
_BATCH = 100


@dataclass(frozen=True)
class Form:
    """A program with certain constants and shape, before proving."""

    program: Program
    number: int
    about: str
    source: str
    calls: list[CallData]


def make_forms(program: Program) -> list[Form]:
    """Return the distinct forms of a program; the first is the program as written."""
    forms: list[Form] = []
    seen: set[str] = set()
    calls = program.draw_calls(CALLS)
    for number in range(3 * FORMS[program.use]):
        about, source = vary_constants([program.about, program.source], program.vary, number)
        if number > 0:
            source = reshape(source, random.Random(f"{program.name}/{number}"))
        if source not in seen and len(forms) < FORMS[program.use]:
            seen.add(source)
            forms.append(Form(program, len(forms), about, source, calls))
    return forms


def choose_visible(calls: Sequence[CallData], kills: Sequence[frozenset[int]]) -> list[int]:
    """Choose the visible tests: few, short calls that together catch the most mutants.

    `kills[m]` are the calls that catch mutant m. Greedy; ties go to the shorter call. Returns sorted indices.
    """
    chosen: list[int] = []
    open_mutants = list(kills)
    while len(chosen) < min(VISIBLE, len(calls) - 1):
        rest = [number for number in range(len(calls)) if number not in chosen]
        caught = {number: sum(number in kill for kill in open_mutants) for number in rest}
        best = min(rest, key=lambda number: (-caught[number], len(repr(calls[number])), number))
        chosen.append(best)
        open_mutants = [kill for kill in open_mutants if best not in kill] or list(kills)
    return sorted(chosen)


def choose_edits(edits: Sequence[Edit], use: str, rng: random.Random) -> list[Edit]:
    """Choose which mutants to keep: a few of every operator, at random places."""
    kept: list[Edit] = []
    for _, group in edits_by_operator(edits):
        kept += rng.sample(group, min(len(group), PER_OPERATOR[use]))
    return sorted(rng.sample(kept, min(len(kept), PER_FORM[use])))


def prove(forms: Sequence[Form]) -> Iterator[dict[str, Any]]:
    """Run originals and all their mutants; yield one row of the manifest per form."""
    edits = [find_edits(form.source) for form in forms]
    jobs = [
        (text, form.calls)
        for form, found in zip(forms, edits, strict=True)
        for text in (form.source, form.source, *(edit.apply(form.source) for edit in found))
    ]
    answers = iter(run_batches(jobs))
    for form, found in zip(forms, edits, strict=True):
        right, again = next(answers), next(answers)
        name = form.program.name
        for call, answer, second in zip(form.calls, right, again, strict=True):
            if not is_value(answer) or not same(answer, second):
                raise TaskError(f"program {name!r}, form {form.number}: {call} answers {answer}, then {second}")
        kills = {
            edit: frozenset(k for k, (a, b) in enumerate(zip(right, next(answers), strict=True)) if not same(a, b))
            for edit in found
        }
        visible = choose_visible(form.calls, [kill for kill in kills.values() if len(kill) > 1])
        proven = [edit for edit, kill in kills.items() if kill & set(visible) and kill - set(visible)]
        kept = choose_edits(proven, form.program.use, random.Random(f"{name}/{form.number}"))
        yield {
            "program": name,
            "form": form.number,
            "topic": form.program.topic,
            "use": form.program.use,
            "about": form.about,
            "source": form.source,
            "calls": form.calls,
            "answers": right,
            "visible": visible,
            "edits": [[edit.start, edit.end, edit.new, edit.operator] for edit in kept],
        }


def run_batches(jobs: Sequence[tuple[str, Sequence[CallData]]]) -> Iterator[list[Any]]:
    """Answer the calls of many trusted modules, a hundred in one sandbox."""
    for start in range(0, len(jobs), _BATCH):
        yield from answer_calls(jobs[start : start + _BATCH], lines=LINES, timeout=300.0)


def manifest_path() -> Path:
    """Where the manifest lies."""
    return Path(str(files("agentgym_rtmc.environments.code_repair").joinpath("manifest.json")))


def write_manifest(path: Path) -> dict[str, int]:
    """Prove everything and write the manifest, one form a line. Returns mutants by use."""
    forms = [form for program in load_programs() for form in make_forms(program)]
    counts: dict[str, int] = {}
    lines = []
    for row in prove(forms):
        counts[row["use"]] = counts.get(row["use"], 0) + len(row["edits"])
        lines.append(json.dumps(row, separators=(",", ":")))
    head = json.dumps({"version": 1, "programs": corpus_digest()})
    part = path.with_suffix(".part")
    part.write_text(head[:-1] + ', "forms": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8")
    part.replace(path)
    return counts


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else manifest_path()
    print(f"{target}: mutants by use {write_manifest(target)}")
