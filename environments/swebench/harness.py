"""swebench's own grading, run in a process of its own: reads requests on standard input, answers on standard output.

A process, because agents choose what stands in a log: swebench's patterns take quadratic time on some texts, hold the
interpreter's lock meanwhile, and some parsers raise. It also keeps swebench's imports (docker, datasets, modal:
seconds) out of the caller.

Invariants: one line of JSON for each request, in order. A request that takes longer than its CPU seconds, or on which
swebench raises, is answered with an `error`; nothing ends the process but the end of its input.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Never, TextIO

FAILING = frozenset({"FAILED", "ERROR"})
_MAY_FAIL = re.compile(r"FAIL|ERROR| [FE]\s*$|_")
"""Lines that may report a failure in any of swebench's formats; the others need not be parsed one by one."""
_UNITTEST = re.compile(r"(?:FAIL|ERROR): (.+)")
"""The heading of a failure's traceback under unittest: the whole id, of which swebench keeps the first word."""


class LateError(Exception):
    """The CPU seconds of a request are used up."""


def official_report(instance: dict[str, Any], patch: str | None, log: str) -> dict[str, Any]:
    """Return `get_eval_report`'s verdict on a log."""
    from swebench.harness.grading import get_eval_report
    from swebench.harness.utils import make_test_spec

    name = instance["instance_id"]
    prediction = {"instance_id": name, "model_name_or_path": "model", "model_patch": patch}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "test_output.txt"
        # In the encoding that swebench will open it with, whatever that is; lines end as they do in `log`.
        path.write_text(log, errors="replace", newline="\n")
        spec = make_test_spec(instance)
        report: dict[str, Any] = get_eval_report(spec, prediction, path, include_tests_status=True)[name]
    return report


def inspect_segment(instance: dict[str, Any], segment: str, names: Sequence[str]) -> dict[str, Any]:
    """Read the text between the markers in the way swebench does, and line by line.

    Returns `tests` (how many results there are), `failing` (all that any line reports as failed, even where a later
    line says otherwise), `contradicted` (graded tests among these) and `named` (for each of `names` the outcomes of
    the tests whose id holds it).
    """
    from swebench.harness.log_parsers import PARSER_REGISTRY
    from swebench.harness.utils import make_test_spec

    spec = make_test_spec(instance)
    parse = PARSER_REGISTRY[spec.log_parser]
    whole = parse(segment, spec)
    seen = {(test, outcome) for test, outcome in whole.items()}
    for line in segment.split("\n"):
        if match := _UNITTEST.fullmatch(line):
            seen.add((match[1], "FAILED"))
        if any(name in line for name in names) or _MAY_FAIL.search(line):
            seen.update(parse(line, spec).items())
    ours = {name: sorted({outcome for test, outcome in seen if name in test}) for name in names}
    failing = {test for test, outcome in seen if outcome in FAILING and not any(name in test for name in names)}
    graded = {*spec.FAIL_TO_PASS, *spec.PASS_TO_PASS}
    contradicted = sorted(test for test in graded if any(_same(test, other) for other in failing))
    return {"tests": len(whole), "failing": sorted(failing), "contradicted": contradicted, "named": ours}


def _same(graded: str, reported: str) -> bool:
    """Whether a report is about a graded test, whose id may lack its file (sympy) or its end (pytest's parameters)."""
    if reported == graded or reported.rpartition(".py:")[2] == graded or reported.startswith(f"{graded} "):
        return True
    return graded.count("[") > graded.count("]") and reported.startswith(graded)


def run_report(instances: list[dict[str, Any]], predictions: dict[str, Any], run_id: str, folder: str) -> str:
    """Let swebench sum a run up in `folder`, where its logs lie; returns the name of the file it wrote."""
    from swebench.harness.reporting import make_run_report

    with contextlib.chdir(folder):  # swebench knows its logs by a relative path only
        return str(make_run_report(predictions, instances, run_id, client=None))


def answer(request: dict[str, Any]) -> Any:
    """Answer one request: `operation` names one of the functions above, the rest are its arguments."""
    values = dict(request)
    operations: dict[str, Callable[..., Any]] = {
        "report": official_report,
        "inspect": inspect_segment,
        "run_report": run_report,
    }
    return operations[values.pop("operation")](**values)


def _late(number: int, frame: FrameType | None) -> Never:
    raise LateError


def serve(requests: TextIO, answers: TextIO, cpu_seconds: float) -> None:
    """Answer requests, one line each, until the input ends."""
    signal.signal(signal.SIGPROF, _late)
    for line in requests:
        try:
            signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
            try:
                reply: dict[str, Any] = {"value": answer(json.loads(line))}
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        except LateError:
            reply = {"error": "late"}
        except ModuleNotFoundError as error:
            reply = {"error": "missing", "name": error.name}
        except Exception as error:  # noqa: BLE001 - a log must not end the grader of all others
            where = traceback.extract_tb(error.__traceback__)[-1]
            reply = {"error": "raised", "text": f"{type(error).__name__}: {error} ({Path(where.filename).name})"}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()


def main() -> None:
    """Serve on this process's own streams; what swebench prints goes to standard error."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogatepass")  # type: ignore[union-attr]
        # swebench would read a `.env` file of the current folder into this process.
        os.environ["PYTHON_DOTENV_DISABLED"] = "1"
        serve(sys.stdin, answers, float(sys.argv[1]))


if __name__ == "__main__":
    main()
