"""The command line in a process of its own, for tests that interrupt and kill it."""

from __future__ import annotations

import multiprocessing.process
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


def run(arguments: Sequence[str], folder: str, output: str, file_limit: int | None) -> None:
    """Become `agentgym-rtmc ARGUMENTS` in a folder; what it prints goes to `output`.out and .err.

    `file_limit`: no file may grow beyond so many bytes, as if the disk were full.
    """
    from agentgym_rtmc.cli import main

    os.chdir(folder)
    os.environ["XDG_CACHE_HOME"] = folder
    for number, ending in ((1, ".out"), (2, ".err")):
        os.dup2(os.open(output + ending, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if file_limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    sys.exit(main(arguments))


@dataclass
class CommandLine:
    """A started command line."""

    process: multiprocessing.process.BaseProcess
    output: Path

    @property
    def out(self) -> str:
        """What it has printed so far on standard output."""
        return self.output.with_name(self.output.name + ".out").read_text()

    @property
    def err(self) -> str:
        """What it has printed so far on standard error."""
        path = self.output.with_name(self.output.name + ".err")
        return path.read_text() if path.exists() else ""

    def wait(self, seconds: float = 240) -> int:
        """Wait for its end and return the exit code (negative: killed by that signal)."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, f"still running after {seconds} s:\n{self.err}"
        return self.process.exitcode

    def until(self, condition: Callable[[], bool], seconds: float = 240) -> None:
        """Wait until something has happened while it runs."""
        deadline = time.monotonic() + seconds
        while not condition():
            alive = self.process.is_alive()
            assert alive or condition(), f"ended with {self.process.exitcode} before it came so far:\n{self.err}"
            assert time.monotonic() < deadline, f"not so far after {seconds} s:\n{self.err}"
            time.sleep(0.005)

    def send(self, what: signal.Signals) -> None:
        """Send a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, what)
