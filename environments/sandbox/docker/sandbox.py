"""A sandbox in a container of its own, with commands, files and forks; `files` has the three ways of keeping files.

Invariants:
- When `exec` returns, nothing of the agent's user runs in the container and /tmp is empty.
- A sandbox on which the engine failed is never used again: nobody knows what runs in it.

Not promised: protection from bugs in the kernel or the engine. `docs/security.md` has the whole list.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from agentgym_rtmc.environments.sandbox import tree
from agentgym_rtmc.environments.sandbox.base import ExecResult, SandboxSpec, relative_parts
from agentgym_rtmc.environments.sandbox.conclusion import FLOOD_BYTES, as_argv, as_seconds, conclude, spill
from agentgym_rtmc.environments.sandbox.docker import images, leftovers, ways
from agentgym_rtmc.environments.sandbox.docker.command import TooLongError
from agentgym_rtmc.environments.sandbox.docker.engine import connect
from agentgym_rtmc.environments.sandbox.docker.files import How
from agentgym_rtmc.environments.sandbox.docker.memory import Memory
from agentgym_rtmc.environments.sandbox.docker.parts import Parts, assemble
from agentgym_rtmc.environments.sandbox.folders import machine_failures
from agentgym_rtmc.environments.sandbox.output import HeadTail, KeptOutputs
from agentgym_rtmc.environments.sandbox.watch import DiskMeter
from agentgym_rtmc.errors import ConfigError, SandboxError

_LOOK = 0.05
"""Least seconds between two looks at what a command uses."""


class DockerSandbox:
    """A `Sandbox` in a container of the engine that DOCKER_HOST names."""

    def __init__(self, spec: SandboxSpec, *, how: How | None = None) -> None:
        """Start a container of `spec.image`.

        `how` files are kept; None takes the best way that works here. Raises ImageMissingError when the image is not
        there, SandboxUnavailableError without an engine or for an image without a shell, ConfigError for a spec or a
        way that is impossible here, SandboxError when the engine fails.
        """
        if spec.image is None:
            raise ConfigError("a container needs an image, such as image = 'python:3.12-slim'")
        engine = connect()
        leftovers.remove_once(engine)
        image = images.find(engine, spec.image)
        if how is None:
            how = "commit" if spec.writable_root else "copy" if ways.why_no_overlay(image) else "overlay"
        elif spec.writable_root != (how == "commit"):
            raise ConfigError("files are kept by 'commit' with a writable root, and only then")
        elif how == "overlay" and (reason := ways.why_no_overlay(image)):
            raise ConfigError(f"workspaces cannot be mounted into containers here: {reason}")
        self._adopt(assemble(spec, image, how))

    @classmethod
    def _of(cls, parts: Parts) -> Self:
        sandbox = cls.__new__(cls)
        sandbox._adopt(parts)
        return sandbox

    def _adopt(self, parts: Parts) -> None:
        self._parts = parts
        self._spec = parts.spec
        self._commands = parts.commands
        self._files = parts.files
        self._lock = threading.Lock()
        self._outputs = KeptOutputs(self._spec.kept_output_bytes)
        self._closed = False

    @property
    def spec(self) -> SandboxSpec:
        """See `Sandbox`."""
        return self._spec

    @property
    def how(self) -> How:
        """How files are kept and forked: `overlay` in constant time, by `copy`, or by `commit`."""
        return self._parts.how

    @property
    def container(self) -> str:
        """The container's id."""
        return self._parts.container.id

    def exec(
        self,
        argv: Sequence[str],
        timeout: float | None = None,
        stdin: bytes | None = None,
        merge: bool = False,
    ) -> ExecResult:
        """See `Sandbox`. The time counts from the command's start: an engine that is slow to start it takes none."""
        words, seconds = as_argv(argv), as_seconds(timeout, self._spec)
        if any(b"\0" in word for word in words):
            return ExecResult(stdout="", stderr="a command cannot contain a NUL byte\n", code=126)
        with self._lock, machine_failures("run a command"):
            self._check()
            try:
                meter = self._files.meter()
            except tree.TreeRefusedError as error:
                return ExecResult(stdout="", stderr="", code=137, out_of_disk=True, note=f"refused: {error}")
            try:
                return self._run(words, seconds, stdin, merge, meter)
            except TooLongError as error:
                return ExecResult(stdout="", stderr=f"{error}\n", code=126)
            finally:
                self._files.settle()

    def _run(
        self, words: list[bytes], timeout: float, stdin: bytes | None, merge: bool, meter: DiskMeter
    ) -> ExecResult:
        kept = self._outputs.begin()
        names = ("stdout",) if merge else ("stdout", "stderr")
        streams = [HeadTail(self._spec.output_bytes, kept.stream(name)) for name in names]
        watch = _Watch(streams, meter, self._parts.memory)
        try:
            end = self._commands.run(words, timeout, streams, stdin, watch)
            spill(streams)
        finally:
            kept.close()
        killed_for = end.killed_for or watch.memory()
        over = None if killed_for else meter.end() or end.full
        return conclude(streams, end.code, killed_for, over, timeout, self._spec, kept.folder)

    def read(self, path: str) -> bytes:
        """See `Sandbox`. Files larger than `spec.file_bytes` are refused with WorkspacePathError."""
        parts = relative_parts(path, self._spec.workdir)
        with self._lock, machine_failures("read a file"):
            self._check()
            return self._files.read(parts)

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See `Sandbox`."""
        parts = relative_parts(path, self._spec.workdir)
        with self._lock, machine_failures("write a file"):
            self._check()
            self._files.write(parts, data, mode)

    def fork(self) -> DockerSandbox:
        """See `Sandbox`. `how` tells what it costs. The first fork starts a container; for later ones some are ready.

        Raises WorkspacePathError when the files are such that they cannot be copied.
        """
        with self._lock:
            self._check()
            return self._of(self._parts.fork())

    def prepare_forks(self, count: int) -> None:
        """Have containers for `count` forks ready, from now on; returns at once."""
        with self._lock:
            self._check()
            if self._parts.shelf is not None:
                self._parts.shelf.prepare(count)

    def alive(self) -> bool:
        """See `Sandbox`."""
        return not self._closed and not self._commands.failed and self._parts.container.alive()

    def close(self) -> None:
        """See `Sandbox`. An engine that is not there is no error: it removes the container when it is back."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._outputs.close()
                self._parts.close()

    def _check(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox is closed; make a new one")
        self._parts.container.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Watch:
    """Says, when asked while a command runs, for what reason it must be killed."""

    def __init__(self, streams: Sequence[HeadTail], meter: DiskMeter, memory: Memory) -> None:
        self._streams = streams
        self._meter = meter
        self._memory = memory
        memory.begin()
        self._next = 0.0

    def __call__(self) -> str | None:
        if sum(stream.total for stream in self._streams) > FLOOD_BYTES:
            return "output"
        if time.monotonic() < self._next:
            return None
        self._next = time.monotonic() + _LOOK
        return self.memory() or self._meter.look()

    def memory(self) -> str:
        """`memory` where the command has passed that limit, else an empty string."""
        return "memory" if self._memory.passed() else ""
