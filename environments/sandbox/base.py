"""What every sandbox promises: a frozen description of its limits, one result type and one small protocol.

Invariants:
- `exec` runs one command to its end. Whatever the command started is dead when `exec` returns; only files persist.
- What the *agent* does wrong (a bad exit, a limit passed, a path that is a link) comes back as an `ExecResult` or a
  `WorkspacePathError`. What the *machine* does wrong raises `SandboxError`, which callers may retry elsewhere.
- Bytes are collected whole and decoded once, as UTF-8 with replacement, so a cut inside a character never raises.
- A limit is never applied silently: `truncated`, `timed_out`, `out_of_memory`, `out_of_disk` and `note` say so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Annotated, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agentgym_rtmc.errors import nearest

MIB = 1 << 20
AGENT_UID = 65534
"""User and group id of the agent inside every sandbox, whoever runs the trainer."""

LOCAL_ISOLATIONS = ("bubblewrap", "unshare", "landlock", "none")
ISOLATIONS = ("auto", *LOCAL_ISOLATIONS, "docker")
"""Names that `SandboxSpec.isolation` knows."""

PositiveInt = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
MOST_ENV_BYTES = 100 << 10
"""Linux takes 128 KiB in one variable; the rest is for a command's own words."""


class SandboxSpec(BaseModel):
    """Limits and surroundings of a sandbox. Frozen; `digest` identifies it. Bytes and seconds throughout."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    isolation: str = "auto"
    """How commands are isolated: one of `ISOLATIONS`, or `module:Class` of an implementation of your own.

    `auto` is `docker` where an image is named, else the first local way that works here. `none` does not isolate at
    all and warns.
    """
    image: str | None = None
    """Container image, for `docker` only. It must be there already: nothing is pulled but by `prefetch`."""
    root: Path | None = None
    """A root folder as `root.ensure_root` makes them; None takes the one for this machine."""
    workdir: str = "/workspace"
    """Where the workspace appears inside, and where commands start."""
    timeout: Seconds = 10.0
    """Wall-clock seconds of a command for which `exec` was given no timeout of its own."""
    cpu_seconds: Annotated[int, Field(gt=0, le=10**9)] = 30
    """CPU seconds of any one process."""
    cpus: Annotated[float, Field(gt=0, le=10_000)] = 1.0
    """CPU cores' worth of time for all processes together; held where control groups or an engine are to be had."""
    memory_bytes: Annotated[int, Field(ge=32 * MIB)] = 512 * MIB
    """Memory of all processes of a command together, with what they keep in /tmp, /dev/shm and unlinked files."""
    processes: Annotated[int, Field(gt=0, le=10**6)] = 64
    """Processes and threads alive at once."""
    open_files: Annotated[int, Field(ge=16)] = 256
    """Open files per process."""
    disk_bytes: PositiveInt = 64 * MIB
    """Bytes in the workspace, and apart from that in /tmp."""
    disk_files: PositiveInt = 10_000
    """Files, links and folders in the workspace."""
    file_bytes: PositiveInt = 32 * MIB
    """Size of any one file."""
    output_bytes: Annotated[int, Field(ge=256)] = 64 * 1024
    """Bytes kept of each output stream: half from its head, half from its tail, with a note between."""
    kept_output_bytes: Annotated[int, Field(ge=0)] = 16 * MIB
    """Bytes of each output stream that are kept on disk where the result leaves something out; see `ExecResult`."""
    ttl: Seconds = 4 * 3600.0
    """Seconds after which a container ends by itself, whatever became of the trainer."""
    writable_root: bool = False
    """`docker` only: whether the agent may write outside the workspace. A watchdog then limits what is written."""
    network: bool = False
    """Whether commands share the host's network. Off: not even the host's loopback can be reached."""
    env: dict[str, str] = Field(default_factory=dict)
    """Added to the sandbox's own small environment; nothing of the host's environment is ever passed on."""

    @field_validator("isolation")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ISOLATIONS and ":" not in value:
            raise ValueError(f"isolation is a known name or module:Class, not {value!r}{nearest(value, ISOLATIONS)}")
        return value

    @model_validator(mode="after")
    def _docker_fields(self) -> Self:
        if self.isolation == "docker" and self.image is None:
            raise ValueError("isolation 'docker' needs an image, such as image = 'python:3.12-slim'")
        if self.isolation in LOCAL_ISOLATIONS and (self.image is not None or self.writable_root):
            raise ValueError(f"image and writable_root are for 'docker' only, and isolation is {self.isolation!r}")
        return self

    @field_validator("workdir")
    @classmethod
    def _absolute(cls, value: str) -> str:
        path = PurePosixPath(value)
        if not path.is_absolute() or ".." in path.parts or str(path) != value or value == "/":
            raise ValueError(f"workdir must be a normal absolute path below /, such as /workspace; got {value!r}")
        return value

    @field_validator("env")
    @classmethod
    def _plain_names(cls, value: dict[str, str]) -> dict[str, str]:
        for name, text in value.items():
            if not name or "=" in name or "\0" in name + text:
                raise ValueError(f"env has an unusable variable {name!r}: no empty name, '=' in a name, or NUL")
        if sum(len(f"{name}={text}".encode(errors="replace")) for name, text in value.items()) > MOST_ENV_BYTES:
            raise ValueError(f"env is too large: at most {MOST_ENV_BYTES >> 10} KiB altogether; write a file instead")
        return value

    @cached_property
    def digest(self) -> str:
        """Hex digest of every field; equal specs have equal digests."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ExecResult:
    """What one command left behind, as far as an agent may see it; holds no durations, pids or host paths."""

    stdout: str
    """Standard output, or both streams as they came when `merge` was asked for."""
    stderr: str
    code: int
    """Exit code; 128 + n for a death by signal n, 137 for every command that was killed for passing a limit."""
    timed_out: bool = False
    out_of_memory: bool = False
    out_of_disk: bool = False
    truncated: bool = False
    """Whether output was left out; the text itself says where and how much."""
    note: str = ""
    """Which limit was passed and what was done about it, in words meant for the agent; empty when none was."""
    kept: Path | None = field(default=None, compare=False, repr=False)
    """Where `truncated`: a folder on the host with the files `stdout` and `stderr`, each whole up to the spec's
    `kept_output_bytes`. It is for people, agents never learn of it, and it lasts until the sandbox is closed or later
    results need the room (`output.MOST_KEPT`)."""


class WorkspacePathError(OSError):
    """A path given to `read` or `write` leaves the workspace, is or crosses a link, or is not a plain file.

    An agent can bring this about, so it is no infrastructure failure: treat it as the agent's doing.
    """


class WorkspaceFileNotFoundError(WorkspacePathError, FileNotFoundError):
    """The file that was asked for is not in the workspace."""


class Sandbox(Protocol):
    """A place where an agent's commands run. All methods may be called from any thread, one at a time."""

    @property
    def spec(self) -> SandboxSpec:
        """The limits in force."""
        ...

    def exec(
        self,
        argv: Sequence[str],
        timeout: float | None = None,
        stdin: bytes | None = None,
        merge: bool = False,
    ) -> ExecResult:
        """Run `argv` in the working directory and wait for it.

        `timeout` is in seconds (None: the spec's); `merge` sends both streams to `stdout` in the order written.
        Raises SandboxError when the sandbox itself fails or is closed.
        """
        ...

    def read(self, path: str) -> bytes:
        """Return a file of the workspace; `path` is relative to it, or absolute below `spec.workdir`.

        Raises WorkspaceFileNotFoundError, or WorkspacePathError for links, folders and paths outside.
        """
        ...

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """Create or replace a file, with the folders above it; a link at its place is replaced, never followed.

        Raises WorkspacePathError when a parent is a link or a file, or the path is a folder or lies outside.
        """
        ...

    def fork(self) -> Sandbox:
        """Return an independent sandbox with a copy of this one's files; no process is copied.

        Raises SandboxBusyError while something still holds a file of the workspace open for writing.
        """
        ...

    def alive(self) -> bool:
        """Whether a command could run now, as far as can be told without running one."""
        ...

    def close(self) -> None:
        """Free what the sandbox holds; calling it twice is fine."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def relative_parts(path: str, workdir: str) -> tuple[str, ...]:
    """Split a workspace path into its components, refusing what leaves the workspace.

    >>> relative_parts("/workspace/pkg/a.py", "/workspace")
    ('pkg', 'a.py')
    >>> relative_parts("./a.py", "/workspace")
    ('a.py',)
    """
    if "\0" in path:
        raise WorkspacePathError(f"{path!r} contains a NUL byte")
    pure = PurePosixPath(path)
    if pure.is_absolute():
        if not pure.is_relative_to(workdir):
            raise WorkspacePathError(f"{path!r} lies outside the workspace {workdir}")
        pure = pure.relative_to(workdir)
    if ".." in pure.parts:
        raise WorkspacePathError(f"{path!r} climbs with '..'; give the path from the workspace down")
    if not pure.parts:
        raise WorkspacePathError(f"{path!r} is the workspace itself, not a file in it")
    return pure.parts
