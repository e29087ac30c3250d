"""Grading predictions: many at a time, each result on the disk as soon as it is known.

Invariants: what is finished is not graded again; a failure of the machine is recorded as an error, which the next run
grades anew, and never as a result. An interruption, of whatever kind, loses only what was under way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice

from agentgym_rtmc.environments.swebench.grader import PatchGrade
from agentgym_rtmc.environments.swebench.grading_store import GradingStore
from agentgym_rtmc.environments.swebench.limits import ContainerLimits
from agentgym_rtmc.environments.swebench.predictions import Prediction
from agentgym_rtmc.environments.swebench.report import EvaluationRun
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow
from agentgym_rtmc.errors import InfrastructureError, TaskError, nearest

OnResult = Callable[[str, PatchGrade | InfrastructureError], None]


def rows_of(predictions: Mapping[str, Prediction], rows: Sequence[SWEBenchRow]) -> list[SWEBenchRow]:
    """The rows that are predicted, in the order of the dataset. Raises TaskError for an instance that is in none."""
    known = {row.instance_id for row in rows}
    unknown = sorted(predictions.keys() - known)
    if unknown:
        raise TaskError(f"the dataset has no instance {unknown[0]!r}{nearest(unknown[0], known)[:300]}")
    return [row for row in rows if row.instance_id in predictions]


def grade_predictions(
    run: EvaluationRun,
    rows: Sequence[SWEBenchRow],
    predictions: Mapping[str, Prediction],
    *,
    store: GradingStore,
    workers: int,
    limits: ContainerLimits,
    seconds: float,
    on_result: OnResult = lambda instance_id, result: None,
) -> None:
    """Take predictions into a run and grade those without a result, `workers` at a time.

    `on_result` is told of each in this thread. Raises what is wrong with a row or with this machine as a whole.
    """
    for name, prediction in predictions.items():
        run.predict(name, prediction.model_patch)
    todo = set(run.todo(predictions))
    queue = iter([row for row in rows if row.instance_id in todo])

    def one(row: SWEBenchRow) -> PatchGrade:
        return store.grade(row, predictions[row.instance_id].model_patch or "", limits=limits, seconds=seconds)

    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="grade") as pool:
        busy: dict[Future[PatchGrade], SWEBenchRow] = {pool.submit(one, row): row for row in islice(queue, workers)}
        while busy:
            for future in wait(busy, return_when=FIRST_COMPLETED).done:
                row = busy.pop(future)
                patch = predictions[row.instance_id].model_patch or ""
                try:
                    done = future.result()
                except InfrastructureError as error:
                    run.record_error(row, patch, str(error))
                    on_result(row.instance_id, error)
                else:
                    run.record(row, patch, done.run, done.notes)
                    on_result(row.instance_id, done)
                busy |= {pool.submit(one, row): row for row in islice(queue, 1)}
