"""Runs `driver.py` in a fresh sandbox: source texts and calls in, typed answers out.

Invariants: the sandbox holds the driver and nothing else, and is gone afterwards. What comes back is untrusted JSON,
read within limits of size; an answer that cannot be read is the lack of an answer, never an exception. Only a failure
of the machine raises.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from agentgym_rtmc.environments.code_repair.cases import CallData
from agentgym_rtmc.environments.sandbox.base import MIB, SandboxSpec
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.errors import GradingError, SandboxError

NO_ANSWER = {"x": "no answer"}
LATE = {"x": "late"}
"""No answer within the wall-clock limit: possibly a matter of the machine's load."""
_SPEC = SandboxSpec(
    timeout=10.0, cpu_seconds=2, memory_bytes=256 * MIB, processes=16, disk_bytes=4 * MIB, output_bytes=16 * MIB
)


@cache
def driver_text() -> bytes:
    """The text of the driver."""
    return files("agentgym_rtmc.environments.code_repair").joinpath("driver.py").read_bytes()


def answer_calls(
    jobs: Sequence[tuple[str, Sequence[CallData]]], *, seconds: float = 5.0, lines: int = 0, timeout: float = 10.0
) -> list[list[Any]]:
    """Let each module answer its calls, all jobs in one sandbox but each in a process of its own, for 2 CPU seconds.

    `seconds` are wall-clock seconds of one job, `lines` executed lines of one call (0: no limit), `timeout` wall-clock
    seconds of everything together. Jobs of different agents do not belong into one call. Shape of the result: one list
    per job, as long as its calls. Raises GradingError when the sandbox fails.
    """
    rows = [{"source": source, "calls": calls} for source, calls in jobs]
    request = repr({"jobs": rows, "seconds": seconds, "lines": lines}).encode("utf-8", "surrogatepass")
    try:
        with LocalSandbox(_SPEC) as sandbox:
            sandbox.write("driver.py", driver_text())
            result = sandbox.exec(["python3", "-I", "-S", "driver.py"], timeout=timeout, stdin=request)
    except SandboxError as error:
        raise GradingError(f"the sandbox that answers calls failed: {error}; run `agentgym-rtmc doctor`") from error
    texts = result.stdout.split("\n")
    missing = '"late"' if result.timed_out else ""
    return [
        _read(texts[number] or missing if number < len(texts) else missing, len(calls))
        for number, (_, calls) in enumerate(jobs)
    ]


def _read(text: str, count: int) -> list[Any]:
    try:
        answers = json.loads(text)
    except (ValueError, RecursionError):
        answers = None
    if answers == "late":
        return [LATE] * count
    if not isinstance(answers, list):
        answers = []
    return [answers[number] if number < len(answers) else NO_ANSWER for number in range(count)]
