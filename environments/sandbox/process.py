"""Run one prepared command line: feed it, collect its output, keep its limits, and leave nothing of it running.

Invariants:
- The call returns within one second of the deadline, and then every process below the command is dead.
- The command dies with this process: back ends ask the kernel for it (parent-death signal), nothing here has to run.
- No pseudo-terminal and a session of its own, so the command cannot type into the user's terminal.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from agentgym_rtmc.environments.sandbox import owner
from agentgym_rtmc.environments.sandbox.base import ExecResult
from agentgym_rtmc.environments.sandbox.conclusion import FLOOD_BYTES, conclude, spill
from agentgym_rtmc.environments.sandbox.output import HeadTail, Kept
from agentgym_rtmc.environments.sandbox.watch import Limit, Watchdog, descendants
from agentgym_rtmc.errors import SandboxError

_CHUNK = 1 << 16
_UMASK = 0o022
"""Of commands, whatever the trainer's own is: equal commands give equal files."""
_PATIENCE = 5.0
"""Seconds to wait for a killed command before the machine is declared at fault."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A complete command line for the host, made by a back end."""

    argv: list[bytes]
    env: dict[str, str]
    cwd: Path | None = None
    pass_fds: tuple[int, ...] = ()
    """Descriptors the command line names; closed here once the command has started."""
    ends_by: Literal["namespace", "supervisor", "group"] = "namespace"
    """What makes all of the command end: a process namespace, which dies with its first process; a supervisor, which
    ends everything below it on SIGTERM and before it ends itself; or only the process group, where it has not left."""
    marked: bool = True
    """Whether the programs that set the sandbox up may carry the owner's mark, which the command must not see."""
    shown: Mapping[str, str] = field(default_factory=dict)
    """Paths of the host to what the output shows in their place."""
    started: Callable[[], bool] = lambda: True
    """Asked once, after the end: whether the agent's command was really started, or the back end failed before."""


def run(
    launch: Launch,
    watchdog: Watchdog,
    timeout: float,
    output_bytes: int,
    stdin: bytes | None = None,
    merge: bool = False,
    kept: Kept | None = None,
) -> ExecResult:
    """Start `launch`, wait for its end or kill it at the deadline, and return what it left.

    `kept` takes the whole output where the result has to leave something out. Raises SandboxError when the back end
    could not start the command or what was killed does not die.
    """
    try:
        process = subprocess.Popen(
            launch.argv,
            env=launch.env | ({owner.MARK: owner.me()} if launch.marked else {}),
            cwd=launch.cwd or "/",  # ours may be closed to others, or gone
            umask=_UMASK,
            stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            pass_fds=launch.pass_fds,
            start_new_session=True,
            bufsize=0,
        )
    except OSError as error:
        launch.started()
        if error.errno == errno.E2BIG:
            return ExecResult(stdout="", stderr="argument list too long\n", code=126)
        raise SandboxError(
            f"cannot start {os.fsdecode(launch.argv[0])}: {error}; see `agentgym-rtmc doctor`"
        ) from error
    finally:
        for descriptor in launch.pass_fds:
            os.close(descriptor)
    try:
        with _Run(process, launch, watchdog, output_bytes, kept) as running:
            result = running.finish(timeout, stdin)
    finally:
        started = launch.started()
    if not started and not result.note:
        raise SandboxError(
            f"the sandbox could not start a command or died under it (exit code {process.returncode}): "
            f"{(result.stdout + result.stderr).strip()[-500:]}; "
            "`agentgym-rtmc doctor` tells whether sandboxes work here"
        )
    return result


class _Run:
    """The life of one started process."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        launch: Launch,
        watchdog: Watchdog,
        output_bytes: int,
        kept: Kept | None,
    ) -> None:
        self._process = process
        self._launch = launch
        self._watchdog = watchdog
        self._pidfd = os.pidfd_open(process.pid)
        self._selector = selectors.DefaultSelector()
        self._kept = kept
        self._streams = {
            stream.fileno(): HeadTail(output_bytes, kept.stream(name) if kept is not None else None)
            for name, stream in (("stdout", process.stdout), ("stderr", process.stderr))
            if stream is not None
        }
        self._stdin = memoryview(b"")
        self._reason = ""

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *unused: object) -> None:
        if self._process.returncode is None:  # an exception, such as KeyboardInterrupt, passes through
            self._kill()
        if self._kept is not None:
            self._kept.close()
        self._selector.close()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        os.close(self._pidfd)

    def finish(self, timeout: float, stdin: bytes | None) -> ExecResult:
        """Drive the process to its end."""
        self._register(stdin)
        deadline = time.monotonic() + timeout
        self._loop(deadline)
        self._drain()
        self._reason = self._reason or self._watchdog.killed() or ""
        over = self._watchdog.disk.end() if not self._reason else None
        return self._result(timeout, over)

    def _register(self, stdin: bytes | None) -> None:
        for descriptor in self._streams:
            os.set_blocking(descriptor, False)
            self._selector.register(descriptor, selectors.EVENT_READ)
        self._selector.register(self._pidfd, selectors.EVENT_READ)
        if stdin is not None and self._process.stdin is not None:
            self._stdin = memoryview(stdin)
            os.set_blocking(self._process.stdin.fileno(), False)
            self._selector.register(self._process.stdin.fileno(), selectors.EVENT_WRITE)

    def _loop(self, deadline: float) -> None:
        while not self._reason:
            if self._select(min(deadline, self._watchdog.next_look)):
                return
            if sum(stream.total for stream in self._streams.values()) > FLOOD_BYTES:
                self._reason = "output"
            elif time.monotonic() >= deadline:
                self._reason = "time"
            elif time.monotonic() >= self._watchdog.next_look:
                self._reason = self._watchdog.look(self._process.pid) or ""
        self._kill()

    def _select(self, wake: float) -> bool:
        """Move bytes until something happened or `wake` (monotonic seconds) came; return whether the process ended."""
        for key, _ in self._selector.select(max(0.0, wake - time.monotonic())):
            if key.fd == self._pidfd:
                if self._launch.ends_by == "group":  # before it is reaped, as long as its group's number is its own
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
                return True
            if key.fd in self._streams:
                self._read(key.fd)
            else:
                self._write()
        return False

    def _read(self, descriptor: int) -> bool:
        """Read what is there; return whether more may come."""
        try:
            chunk = os.read(descriptor, _CHUNK)
        except BlockingIOError:
            return False
        if not chunk:
            self._selector.unregister(descriptor)
            return False
        self._streams[descriptor].feed(chunk)
        return True

    def _write(self) -> None:
        assert self._process.stdin is not None
        try:
            self._stdin = self._stdin[os.write(self._process.stdin.fileno(), self._stdin[:_CHUNK]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._stdin = memoryview(b"")
        if not self._stdin:
            self._selector.unregister(self._process.stdin.fileno())
            self._process.stdin.close()

    def _drain(self) -> None:
        """Take what is still in the pipes. Nobody is left to write (or, without isolation, is waited for)."""
        registered = self._selector.get_map()
        for descriptor in self._streams:
            limit = self._streams[descriptor].total + FLOOD_BYTES
            while descriptor in registered and self._streams[descriptor].total < limit and self._read(descriptor):
                pass

    def _kill(self) -> None:
        """Kill the process with everything below it, and wait until all of it is dead.

        In a namespace the kernel kills everything when the first process in it dies, and lets that one end last. The
        outer process is killed before it, or it would remark upon its child's death in the command's output.
        """
        if self._launch.ends_by == "supervisor" and self._ended_by_supervisor():
            return
        signal.pidfd_send_signal(self._pidfd, signal.SIGSTOP)  # it starts and reaps nothing while we look
        below = descendants(self._process.pid)
        doomed: dict[int, int] = {}
        try:
            for pid in below[:1] if self._launch.ends_by == "namespace" else below:
                with contextlib.suppress(ProcessLookupError):
                    doomed[pid] = os.pidfd_open(pid)
            alive = set(descendants(self._process.pid))  # the rest ended before we opened them, and may be anybody
            targets = [self._pidfd, *(descriptor for pid, descriptor in doomed.items() if pid in alive)]
            for descriptor in targets:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            self._wait_for(targets)
        finally:
            for descriptor in doomed.values():
                os.close(descriptor)
        self._process.wait()

    def _ended_by_supervisor(self) -> bool:
        """Ask the supervisor to end everything; return whether it did."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if not poll.poll(_PATIENCE * 1000):
            return False
        self._process.wait()
        return True

    def _wait_for(self, targets: list[int]) -> None:
        poll = select.poll()
        for descriptor in targets:
            poll.register(descriptor, select.POLLIN)
        give_up = time.monotonic() + _PATIENCE
        waiting = len(targets)
        while waiting:
            if time.monotonic() > give_up:
                raise SandboxError(
                    f"a killed command (process {self._process.pid}) does not die; the machine is at fault"
                )
            for descriptor, _ in poll.poll(1000):
                poll.unregister(descriptor)
                waiting -= 1

    def _result(self, timeout: float, over: Limit | None) -> ExecResult:
        """`over`: the limit that the workspace is past although the command ended by itself."""
        streams, code = list(self._streams.values()), self._process.returncode
        spill(streams)
        kept = self._kept.folder if self._kept is not None else None
        code = code if code >= 0 else 128 - code
        result = conclude(streams, code, self._reason, over, timeout, self._watchdog.spec, kept)
        for path, name in self._launch.shown.items():
            result = replace(result, stdout=result.stdout.replace(path, name), stderr=result.stderr.replace(path, name))
        return result
