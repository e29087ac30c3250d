"""Asks swebench (`harness.py`, a process of its own) about logs; started on first use, shared by all threads.

Invariants: the process ends with this one (the end of its input ends it), and is started anew after it died. What a
log brings about is an `UnreadableLogError`, which counts as the graded work's; what the machine does wrong a
GradingError.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentgym_rtmc.environments.swebench.rows import SWEBenchRow
from agentgym_rtmc.errors import GradingError, TaskError
from agentgym_rtmc.extras import missing_extra

CPU_SECONDS = 60.0
"""For one question. The largest real logs take a tenth of a second."""
_WALL_SECONDS = 600.0
"""Beyond that the machine is at fault; the first question of a process also waits for swebench's imports."""


class UnreadableLogError(Exception):
    """swebench cannot read a log: it raises, or does not come to an end."""


class _Harness:
    """The process, and the lock that keeps one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: dict[str, Any]) -> Any:
        """Send a request and return the value of the answer."""
        with self._lock:
            try:
                reply = self._exchange(json.dumps(request).encode() + b"\n")
            except BaseException:
                self._end()  # what was left unread would be taken for the next answer
                raise
        if "value" in reply:
            return reply["value"]
        match reply["error"]:
            case "late":
                raise UnreadableLogError(f"swebench does not finish reading the log within {CPU_SECONDS:g} CPU seconds")
            case "missing":
                error = ModuleNotFoundError(name=reply["name"])
                raise missing_extra(error) or GradingError(f"grading needs the package {reply['name']}") from error
        raise UnreadableLogError(f"swebench fails on the log: {reply['text']}")

    def close(self) -> None:
        """End the process, if there is one."""
        with self._lock:
            self._end()

    def _exchange(self, line: bytes) -> dict[str, Any]:
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError as error:
            raise GradingError("the process that runs swebench's grading died; is there enough memory?") from error
        answer = b""
        deadline = time.monotonic() + _WALL_SECONDS
        while not answer.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
            if not chunk:
                what = "died" if ready else f"gave no answer for {_WALL_SECONDS:g} s"
                raise GradingError(f"the process that runs swebench's grading {what}; is there enough memory?")
            answer += chunk
        reply: dict[str, Any] = json.loads(answer)
        return reply

    def _start(self) -> subprocess.Popen[bytes]:
        # -P: nothing in the current folder (a `datasets`, say) stands in for what swebench imports.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "agentgym_rtmc.environments.swebench.harness", str(CPU_SECONDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()


_harness = _Harness()
atexit.register(_harness.close)


def official_report(row: SWEBenchRow, patch: str | None, log: str) -> dict[str, Any]:
    """swebench's verdict on a log; see `harness.official_report`."""
    report: dict[str, Any] = _ask("report", row, patch=patch, log=log)
    return report


def inspect_segment(row: SWEBenchRow, segment: str, names: Sequence[str] = ()) -> dict[str, Any]:
    """What is reported between the markers; see `harness.inspect_segment`."""
    found: dict[str, Any] = _ask("inspect", row, segment=segment, names=list(names))
    return found


def run_report(rows: Sequence[SWEBenchRow], predictions: Mapping[str, Any], run_id: str, folder: Path) -> str:
    """The name of the report of a run that swebench wrote into `folder`; see `harness.run_report`."""
    instances = [row.instance() for row in rows]
    request = {"instances": instances, "predictions": dict(predictions), "run_id": run_id, "folder": str(folder)}
    try:
        return str(_harness.ask({"operation": "run_report", **request}))
    except UnreadableLogError as error:
        raise GradingError(f"swebench cannot report on {folder}: {error}") from error


def _ask(operation: str, row: SWEBenchRow, **values: Any) -> Any:
    try:
        return _harness.ask({"operation": operation, "instance": row.instance(), **values})
    except UnreadableLogError as error:
        if f"KeyError: '{row.log_parser}'" in str(error):
            raise TaskError(f"{row.instance_id}: swebench has no log parser {row.log_parser!r}") from error
        raise


def close_harness() -> None:
    """End the process now; the next question starts one. For programs that fork or count their processes."""
    _harness.close()
