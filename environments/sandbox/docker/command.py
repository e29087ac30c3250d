"""Run one command in a container: feed it, collect its output, keep its limits, and leave nothing of it running.

The command runs below a shell of ours (`scripts`), whose last act is to kill whatever the command left. Where that
shell cannot be trusted to have come so far (it was killed, a limit was passed), a second one is sent in to do it.

Invariants:
- The clock of a command starts when it does: an engine that is slow to start it takes nothing from the agent's time.
- The call returns within a second of the deadline, and then every process of the agent's user is dead.
- An engine that stops answering is a SandboxError after `PATIENCE` seconds, not a hang.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.docker import scripts
from agentgym_rtmc.environments.sandbox.docker.container import Container
from agentgym_rtmc.environments.sandbox.docker.engine import ContainerGoneError
from agentgym_rtmc.environments.sandbox.docker.options import AGENT, most_processes
from agentgym_rtmc.environments.sandbox.docker.outside import Processes
from agentgym_rtmc.environments.sandbox.docker.stream import STDERR, STDOUT, Stream, move
from agentgym_rtmc.environments.sandbox.watch import Limit
from agentgym_rtmc.errors import SandboxError

START_PATIENCE = 60.0
"""Seconds the engine may take to start a command; longer is the machine's fault."""
PATIENCE = 10.0
"""Seconds it may take to end one that was killed, or to tell how it ended."""
_TICK = 0.05
_MOMENT = 0.5
_ROOM = 4096
"""Processes on top of the limit while one is started that is to kill all others: more than can be made meanwhile."""
_LONGEST_WORD = (128 << 10) - 1
_LONGEST_LINE = (2 << 20) - (64 << 10)
"""Bytes of one argument and of all together, as Linux limits them (with room for the environment)."""


class Sink(Protocol):
    """Takes the bytes of one stream."""

    total: int

    def feed(self, chunk: bytes) -> None:
        """Add the next bytes."""
        ...


@dataclass(slots=True)
class Bytes:
    """A sink that keeps everything up to a limit."""

    limit: int
    data: bytearray = field(default_factory=bytearray)
    total: int = 0

    def feed(self, chunk: bytes) -> None:
        """See `Sink`."""
        self.total += len(chunk)
        self.data += chunk[: max(0, self.limit - len(self.data))]


@dataclass(frozen=True, slots=True)
class End:
    """How a command ended."""

    code: int
    """Its exit code; 128 + n for a death by signal n."""
    killed_for: str
    """What `watch` said, `time`, or empty: it ended by itself."""
    full: Limit | None = None
    """Whether it left the workspace full, where that was looked for."""


class _NotStartedError(SandboxError):
    """The engine could not start a command."""


class TooLongError(ValueError):
    """A command line is longer than the kernel takes."""


class Commands:
    """Runs commands in one container, one at a time."""

    def __init__(
        self, container: Container, spec: SandboxSpec, look_for_room: bool, outside: Processes | None = None
    ) -> None:
        """`look_for_room`: whether to tell when a command leaves the file system of the workspace full; `outside`: the
        container's processes, where they are this machine's."""
        self._container = container
        self._outside = outside
        self._workdir = spec.workdir.encode()
        self._most = most_processes(spec)
        self._look_for_room = look_for_room
        self._begun = False
        self._failure: SandboxError | None = None

    def run(
        self,
        argv: Sequence[bytes],
        timeout: float,
        sinks: Sequence[Sink],
        stdin: bytes | None = None,
        watch: Callable[[], str | None] = lambda: None,
    ) -> End:
        """Run `argv` in the working directory and wait for its end.

        `sinks`: one, for both streams together, or one each. `watch` is asked now and then; what it says is a reason
        to kill the command. Raises TooLongError, ContainerGoneError, SandboxError.
        """
        if max(map(len, argv)) > _LONGEST_WORD or sum(len(word) + 9 for word in argv) > _LONGEST_LINE:
            raise TooLongError("argument list too long")
        with self._remembered():
            return self._run(argv, timeout, sinks, stdin, watch)

    @contextlib.contextmanager
    def _remembered(self) -> Iterator[None]:
        """After a failure in the midst of it nobody knows what runs in the container: nothing else is run in it."""
        if self._failure is not None:
            raise SandboxError(f"the sandbox has failed before and is not used again: {self._failure}")
        self._container.check()
        try:
            yield
        except SandboxError as error:
            if self._begun:
                self._failure = error
            if not isinstance(error, ContainerGoneError) and self._container.ends_within(_MOMENT):
                raise ContainerGoneError(f"the container ended while a command was run in it: {error}") from error
            raise
        finally:
            self._begun = False

    @property
    def failed(self) -> bool:
        """Whether the engine has failed."""
        return self._failure is not None

    def _run(
        self,
        argv: Sequence[bytes],
        timeout: float,
        sinks: Sequence[Sink],
        stdin: bytes | None,
        watch: Callable[[], str | None],
    ) -> End:
        script = scripts.around(merged=len(sinks) == 1, look_for_room=self._look_for_room)
        words = scripts.shell_words(script, self._workdir, *argv)
        with self._exec(words, sinks, stdin) as running:
            try:
                running.wait_for_start()
                killed_for = running.wait(timeout, watch)
            except BaseException:  # such as KeyboardInterrupt
                try:
                    self._kill(running)
                except SandboxError as error:
                    self._failure = error
                raise
            if killed_for:
                self._kill(running)
                running.settle()
                return End(137, killed_for)
            running.settle()
            code = running.code()
        if not running.came_to_its_end:  # our shell was killed, or starved
            self.sweep()
        return End(code, "", running.full)

    def sweep(self, beside: Sequence[Stream] = ()) -> None:
        """Kill whatever the agent's user runs, and empty /tmp. Streams `beside` are moved on meanwhile: an engine tells
        nothing more of a container while one of its streams is full."""
        give_up = time.monotonic() + PATIENCE
        while True:
            if self._outside is not None:
                self._outside.kill()
            if self._sweep_with_room(beside):
                return
            if time.monotonic() > give_up:
                raise SandboxError(f"a killed command kills what is to kill it (container {self._container.id[:12]})")

    def _sweep_with_room(self, beside: Sequence[Stream]) -> bool:
        try:
            return self._sweep(beside)
        except _NotStartedError:
            # The agent's processes leave no room for another one, so we make some.
            engine = self._container.engine
            engine.limit_processes(self._container.id, self._most + _ROOM)
            swept = self._sweep(beside)
            engine.limit_processes(self._container.id, self._most)
            return swept

    def _sweep(self, beside: Sequence[Stream]) -> bool:
        """Send a shell in; return whether it came to its end: what it is to kill may have been quicker."""
        with self._exec(scripts.SWEEP_WORDS, [Bytes(1000)], None) as sweeping:
            sweeping.beside = beside
            sweeping.wait_for_start()
            if sweeping.wait(PATIENCE, lambda: None):
                raise SandboxError(f"a killed command does not die (container {self._container.id[:12]})")
            return sweeping.came_to_its_end

    def _kill(self, running: _Running) -> None:
        """Kill until the command's streams close: the first signal may have come before its process did."""
        give_up = time.monotonic() + PATIENCE
        while not running.ended:
            if time.monotonic() > give_up:
                raise SandboxError(f"a killed command does not end (container {self._container.id[:12]})")
            self.sweep([running.stream])
            running.wait(0.5, lambda: None)

    @contextlib.contextmanager
    def _exec(self, words: list[str], sinks: Sequence[Sink], stdin: bytes | None) -> Iterator[_Running]:
        engine = self._container.engine
        with engine.failures("run a command"):
            word = secrets.token_hex(16)
            given = {"stdin": stdin is not None, "user": AGENT, "workdir": "/", "environment": {scripts.WORD: word}}
            exec_id = str(engine.quick.exec_create(self._container.id, words, **given)["Id"])
            connection = engine.open()
            self._begun = True
            early = engine.take_over(connection, f"/exec/{exec_id}/start", {"Detach": False, "Tty": False})
            running = _Running(self._container, exec_id, sinks, word)
            try:
                running.stream = Stream(connection, early, running.feed, stdin)
                yield running
            finally:
                connection.close()


class _Running:
    """A command that the engine has been asked to start."""

    stream: Stream
    beside: Sequence[Stream] = ()

    def __init__(self, container: Container, exec_id: str, sinks: Sequence[Sink], word: str) -> None:
        """`word`: what our shell says, and nobody else can, when it has come to its end."""
        self._word = word.encode()
        self._container = container
        self._id = exec_id
        self._sinks = sinks
        self._started = False
        self._noise = bytearray()
        self._last = b""

    @property
    def ended(self) -> bool:
        """Whether its streams are closed."""
        return self.stream.ended

    def feed(self, kind: int, data: bytes) -> None:
        """See `stream.Feed`. On standard output, what comes instead of our shell's first byte is the engine's word.

        Nothing can be told from the order in which the two streams come.
        """
        if kind == STDOUT and not self._started:
            if self._noise or not data.startswith(scripts.STARTED):
                self._noise += data[: 2000 - len(self._noise)]
                return
            self._started, data = True, data[1:]
        if kind == STDOUT:  # our shell's last words do not belong to the command's output
            data, keep = self._last + data, len(self._word) + 1
            data, self._last = data[:-keep], data[-keep:]
        if not data:
            return
        try:
            self._sinks[-1 if kind == STDERR else 0].feed(data)
        except OSError as error:
            self._sinks = [Bytes(0)]  # what still comes while the command is killed
            raise SandboxError(f"cannot keep a command's output: {error}; free some space") from error

    @property
    def full(self) -> Limit | None:
        """What our shell said last, of a command that it outlived."""
        return scripts.ENDED.get(self._last[-1:]) if self.came_to_its_end else None

    @property
    def came_to_its_end(self) -> bool:
        """Whether our shell has done all it had to do."""
        return self._last[:-1] == self._word and self._last[-1:] in scripts.ENDED

    def settle(self) -> None:
        """Give the command its last bytes where those were not our shell's."""
        if self._last and not self.came_to_its_end:
            self._sinks[0].feed(self._last)

    def wait_for_start(self) -> None:
        """Wait until our shell runs. Raises SandboxError when it does not."""
        give_up = time.monotonic() + START_PATIENCE
        while not self._started:
            if self.stream.ended:
                told = self._noise.decode(errors="replace").strip() or "it says nothing"
                self._container.check()
                raise _NotStartedError(f"the engine could not start a command: {told}")
            if time.monotonic() > give_up:
                raise SandboxError(f"the engine has not started a command in {START_PATIENCE:g} s; it is overloaded")
            move([self.stream, *self.beside], time.monotonic() + 1)

    def wait(self, timeout: float, watch: Callable[[], str | None]) -> str:
        """Move bytes until the command has ended, or there is a reason to kill it, which is returned."""
        deadline = time.monotonic() + timeout
        while not self.stream.ended:
            reason = watch()
            if reason:
                return reason
            now = time.monotonic()
            if now >= deadline:
                return "time"
            move([self.stream, *self.beside], min(deadline, now + _TICK))
        return ""

    def code(self) -> int:
        """The exit code of a command whose streams are closed; the engine learns it a moment later."""
        engine = self._container.engine
        give_up = time.monotonic() + PATIENCE
        while True:
            state = engine.quick.exec_inspect(self._id)
            if not state["Running"] and state["ExitCode"] is not None:
                return int(state["ExitCode"])
            if not self._container.alive():
                raise ContainerGoneError(f"the container {self._container.id[:12]} ended while a command ran in it")
            if time.monotonic() > give_up:
                raise SandboxError("the engine does not tell how a command ended")
            time.sleep(0.002)
