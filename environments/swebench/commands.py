"""`grade`: grades a file of predictions, wherever they come from, and writes the official report."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from agentgym_rtmc.environments.bar import counting_bar
from agentgym_rtmc.environments.swebench.limits import GRADING_SECONDS
from agentgym_rtmc.errors import ConfigError, InfrastructureError, TaskError
from agentgym_rtmc.tables import show_table


def grade(
    predictions: Annotated[Path, typer.Argument(help="preds.json or preds.jsonl")],
    dataset: Annotated[str, typer.Option(help="lite, verified, full, a hub id, or a file of rows")] = "verified",
    split: Annotated[str | None, typer.Option(help="split of the dataset (default: test); a file has none")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="folder for logs and the report")] = Path("evaluation"),
    run_id: Annotated[str, typer.Option(help="name of the run, in folders and the report's name")] = "grade",
    workers: Annotated[int, typer.Option(min=1, help="gradings at a time; each takes about one core")] = 1,
    seconds: Annotated[float, typer.Option(min=1, help="limit of set-up, and of the tests")] = GRADING_SECONDS,
    memory_mb: Annotated[int, typer.Option(min=64, help="memory of a grading")] = 4096,
    resume: Annotated[bool, typer.Option("--resume", help="go on: grade what is missing or ended by an error")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the report as JSON")] = False,
) -> None:
    """Grade predictions in fresh containers and write the official report. Errors of the machine: exit code 1.

    The images have to be there: agentgym-rtmc prefetch --env SWEBenchVerified-v0.
    """
    from agentgym_rtmc.environments.sandbox.docker.engine import connect
    from agentgym_rtmc.environments.swebench.dataset import load_rows
    from agentgym_rtmc.environments.swebench.evaluation import grade_predictions, rows_of
    from agentgym_rtmc.environments.swebench.grading_store import GradingStore
    from agentgym_rtmc.environments.swebench.limits import ContainerLimits
    from agentgym_rtmc.environments.swebench.predictions import read_predictions
    from agentgym_rtmc.environments.swebench.report import EvaluationRun

    if split is not None and Path(dataset).is_file():
        raise ConfigError(f"{dataset} is a file, of which all rows are taken: leave --split out")
    split = split or "test"
    given = read_predictions(predictions)
    if not given:
        raise TaskError(f"{predictions} has no predictions")
    models = {one.model_name_or_path for one in given.values()}
    if len(models) > 1:
        raise TaskError(f"{predictions} has predictions of {', '.join(sorted(models))}; grade one model at a time")
    rows = load_rows(dataset, split).rows
    wanted = rows_of(given, rows)
    run = EvaluationRun(output, run_id, models.pop(), dataset=dataset, split=split)
    todo = run.todo(given)
    if run.predictions and not resume:
        raise ConfigError(
            f"{output} has predictions of a run {run_id!r} already; go on with --resume, or choose another -o"
        )
    if todo:
        connect()  # before anything is written
    limits = ContainerLimits(memory_mb=memory_mb)
    with _shown(len(todo)) as told:
        grade_predictions(
            run,
            wanted,
            given,
            store=GradingStore(None),
            workers=workers,
            limits=limits,
            seconds=seconds,
            on_result=told,
        )
    path = run.write_report(rows)
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    counts = {name.removesuffix("_instances"): value for name, value in report.items() if name.endswith("_instances")}
    counts |= {"tampered": len(report["tampered_ids"]), "paid": len(report["paid_ids"])}
    if as_json:
        print(json.dumps(report, indent=1))
    else:
        show_table([counts])
        print(f"report: {path}")
    if report["error_instances"]:
        raise typer.Exit(1)


@contextmanager
def _shown(total: int) -> Iterator[Any]:
    """A bar in a terminal, else a line for each instance, on standard error."""
    counts = {"resolved": 0, "tampered": 0, "errors": 0}
    with counting_bar("grading") as progress:
        console = progress.console
        bar = progress.add_task("", total=total)

        def tell(instance_id: str, result: Any) -> None:
            failed = isinstance(result, InfrastructureError)
            verdict = None if failed else result.run.grade
            refused = () if failed else result.patch.refused
            counts["errors"] += failed
            counts["resolved"] += verdict is not None and verdict.resolved
            counts["tampered"] += verdict is not None and verdict.tampered
            progress.update(
                bar, advance=1, description=", ".join(f"{number} {name}" for name, number in counts.items())
            )
            if not console.is_terminal or failed:
                what = f"error: {result}" if failed else _words(verdict, refused)
                console.print(f"{instance_id}: {what}", markup=False, highlight=False, soft_wrap=True)

        yield tell


def _words(grade: Any, refused: Sequence[str]) -> str:
    if refused:
        return f"not resolved, the patch was refused: {'; '.join(refused)}"
    passed = (
        f"{grade.fail_to_pass[0]} of {sum(grade.fail_to_pass)}, {grade.pass_to_pass[0]} of {sum(grade.pass_to_pass)}"
    )
    return f"{'resolved' if grade.resolved else 'not resolved'}{', tampered' if grade.tampered else ''} ({passed})"
