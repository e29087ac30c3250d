"""Immutable snapshots of a workspace, and a sandbox that lives on them.

`SnapshotSandbox` is the sandbox as a function: files in, a command, a result and new files out. Between commands it
is nothing but a `Snapshot` in memory, so forking costs nothing, a command known from before (`memo.py`) costs a
look-up, and any other is run in a warm workspace (`workshop.py`) where only what differs is written first.

Invariants:
- A snapshot's digest depends on names, kinds, permission bits and contents alone. Times, owners and what git's index
  remembers about the disk do not count, so undoing every change brings the old digest back.
- Files persist between commands; processes, /tmp, /dev/shm, sockets, and modification times do not.
- Files past the disk limits, which cannot be taken over, are refused as a whole: the state stays what it was before
  the command, and the result says so.
"""

from __future__ import annotations

import hashlib
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import TracebackType
from typing import Self

from agentgym_rtmc.environments.sandbox import git_index, memo, tree, workshop
from agentgym_rtmc.environments.sandbox.base import (
    ExecResult,
    SandboxSpec,
    WorkspaceFileNotFoundError,
    WorkspacePathError,
    relative_parts,
)
from agentgym_rtmc.environments.sandbox.conclusion import as_argv, as_seconds
from agentgym_rtmc.environments.sandbox.folders import machine_failures
from agentgym_rtmc.environments.sandbox.output import KeptOutputs
from agentgym_rtmc.environments.sandbox.tree import Entry, make_entry
from agentgym_rtmc.errors import SandboxError

_BACK = "the workspace is back as it was before the command"


class Snapshot(Mapping[str, tuple[int, bytes]]):
    """Immutable files of a workspace: relative path to (mode, bytes), where mode is as in `stat.st_mode`.

    Links have their target as bytes; folders have none and are listed themselves, as empty ones count too.

    >>> before = Snapshot.of({"pkg/m.py": b"x = 1\\n"})
    >>> sorted(before)
    ['pkg', 'pkg/m.py']
    >>> after = before.with_file("pkg/m.py", b"x = 2\\n")
    >>> before["pkg/m.py"][1], after["pkg/m.py"][1], before.digest == after.digest
    (b'x = 1\\n', b'x = 2\\n', False)
    """

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        """`entries` must be complete (each folder of a path listed) and is not to be changed afterwards."""
        self._entries = entries

    @classmethod
    def of(cls, files: Mapping[str, bytes | str | tuple[int, bytes]]) -> Snapshot:
        """A snapshot of plain files (mode 0644, or as given by `(permission bits, bytes)`), with their folders."""
        snapshot = cls({})
        for path, value in files.items():
            mode, data = value if isinstance(value, tuple) else (0o644, value)
            snapshot = snapshot.with_file(path, data.encode() if isinstance(data, str) else data, mode)
        return snapshot

    def __getitem__(self, path: str) -> tuple[int, bytes]:
        entry = self._entries[path]
        return entry.mode, entry.data

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Snapshot) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Snapshot({len(self)} entries, {self.digest[:12]})"

    @property
    def entries(self) -> Mapping[str, Entry]:
        """The raw entries, with a digest each."""
        return self._entries

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 over all entries; see the module's first invariant."""
        total = hashlib.sha256()
        for path in sorted(self._entries):
            entry = self._entries[path]
            content = entry.digest
            if path == ".git/index" or path.endswith("/.git/index"):
                content = hashlib.sha256(git_index.meaning(entry.data)).digest()
            total.update(b"%s\0%o\0%s" % (path.encode("utf-8", "surrogateescape"), entry.mode, content))
        return total.hexdigest()

    def digests(self) -> dict[str, str]:
        """Hex SHA-256 of the contents of each plain file and link."""
        return {path: entry.digest.hex() for path, entry in self._entries.items() if not stat.S_ISDIR(entry.mode)}

    def bytes_beside(self, other: Snapshot) -> int:
        """Bytes of contents that are not shared with `other`."""
        return sum(len(e.data) for path, e in self._entries.items() if other._entries.get(path) is not e)

    def read(self, path: str) -> bytes:
        """A plain file's bytes. Raises WorkspaceFileNotFoundError or WorkspacePathError, like `Sandbox.read`."""
        self._refuse_links(path.split("/")[:-1])
        entry = self._entries.get(path)
        if entry is None:
            raise WorkspaceFileNotFoundError(2, "no such file in the workspace", path)
        if not stat.S_ISREG(entry.mode):
            raise WorkspacePathError(f"{path!r} is not a plain file")
        return entry.data

    def with_file(self, path: str, data: bytes, mode: int = 0o644) -> Snapshot:
        """A snapshot in which `path` is a plain file; missing folders are added, a link at its place is replaced.

        Raises WorkspacePathError when a folder on the way is a link or a file, or `path` is a folder.
        """
        parts = relative_parts(path, "/")
        self._refuse_links(parts[:-1])
        entries = dict(self._entries)
        for depth in range(1, len(parts)):
            entries.setdefault("/".join(parts[:depth]), make_entry(stat.S_IFDIR | 0o755))
        name = "/".join(parts)
        if name in entries and stat.S_ISDIR(entries[name].mode):
            raise WorkspacePathError(f"{name!r} is a folder")
        entries[name] = make_entry(stat.S_IFREG | mode & 0o777, data)
        return Snapshot(entries)

    def _refuse_links(self, folders: Sequence[str]) -> None:
        for depth in range(1, len(folders) + 1):
            path = "/".join(folders[:depth])
            entry = self._entries.get(path)
            if entry is not None and not stat.S_ISDIR(entry.mode):
                raise WorkspacePathError(f"{path!r} is a link or a file, not a folder")


EMPTY = Snapshot({})


class SnapshotSandbox:
    """A `Sandbox` whose whole state between commands is a `Snapshot`. Thread-safe; forking is O(1)."""

    def __init__(
        self,
        spec: SandboxSpec | None = None,
        snapshot: Snapshot = EMPTY,
        *,
        memo: bool | memo.Memo = True,
        shop: workshop.Workshop | None = None,
    ) -> None:
        """`memo`: True for the process's shared one, False for none. `shop`: where commands run (None: shared)."""
        self._spec = spec or SandboxSpec()
        self._snapshot = snapshot
        self._memo = _memo(memo)
        self._shop = shop or workshop.shared()
        self._outputs = KeptOutputs(self._spec.kept_output_bytes)
        self._lock = threading.Lock()
        self._closed = False
        self.hits = 0
        """Commands of this sandbox that the memo answered."""
        self.misses = 0
        """Commands of this sandbox that were run."""

    @property
    def spec(self) -> SandboxSpec:
        """See `Sandbox`."""
        return self._spec

    @property
    def snapshot(self) -> Snapshot:
        """The files as they are now."""
        return self._snapshot

    def restore(self, snapshot: Snapshot) -> None:
        """Make `snapshot` the files."""
        with self._lock:
            self._check_open()
            self._snapshot = snapshot

    def exec(
        self,
        argv: Sequence[str],
        timeout: float | None = None,
        stdin: bytes | None = None,
        merge: bool = False,
    ) -> ExecResult:
        """See `Sandbox`. What the memo answers has no `kept` output."""
        timeout = as_seconds(timeout, self._spec)
        with self._lock:
            self._check_open()
            before = self._snapshot
            key = (self._spec.digest, before.digest, tuple(as_argv(argv)), timeout, stdin, merge)
            known = self._memo.get(key) if self._memo is not None else None
            if known is not None:
                self.hits += 1
                self._snapshot = known.after
                return known.result
            self.misses += 1
            result, after = self._run(before, argv, timeout, stdin, merge)
            if self._memo is not None and not result.note:
                self._memo.put(key, replace(result, kept=None), before, after)
            self._snapshot = after
            return result

    def _run(
        self, before: Snapshot, argv: Sequence[str], timeout: float, stdin: bytes | None, merge: bool
    ) -> tuple[ExecResult, Snapshot]:
        spec = self._spec
        with machine_failures("keep a workspace"), self._shop.lease(spec, before) as bench:
            bench.become(before)
            result = bench.sandbox.exec_keeping(self._outputs, argv, timeout, stdin, merge)
            if result.out_of_disk:
                bench.spoil()
                return replace(result, note=f"{result.note}; {_BACK}"), before
            try:
                reading = tree.read(bench.sandbox.workspace, before.entries, spec.disk_bytes, spec.disk_files)
            except tree.TreeRefusedError as error:
                bench.spoil()
                note = f"the workspace cannot be kept: {error}; {_BACK}"
                return replace(result, out_of_disk=True, note=note), before
            after = Snapshot(reading.entries)
            bench.now(after)
        if reading.dropped:
            note = f"{reading.dropped} sockets or devices in the workspace were not kept"
            result = replace(result, note=f"{result.note}; {note}" if result.note else note)
        return result, (before if after.entries == before.entries else after)

    def read(self, path: str) -> bytes:
        """See `Sandbox`."""
        parts = relative_parts(path, self._spec.workdir)
        with self._lock:
            self._check_open()
            return self._snapshot.read("/".join(parts))

    def write(self, path: str, data: bytes, mode: int = 0o644) -> None:
        """See `Sandbox`."""
        parts = relative_parts(path, self._spec.workdir)
        with self._lock:
            self._check_open()
            self._snapshot = self._snapshot.with_file("/".join(parts), data, mode)

    def fork(self) -> SnapshotSandbox:
        """See `Sandbox`."""
        with self._lock:
            self._check_open()
            memory = self._memo if self._memo is not None else False
            return SnapshotSandbox(self._spec, self._snapshot, memo=memory, shop=self._shop)

    def alive(self) -> bool:
        """See `Sandbox`."""
        return not self._closed

    def close(self) -> None:
        """See `Sandbox`. Warm workspaces are shared and stay until the process ends."""
        with self._lock:
            self._closed = True
            self._outputs.close()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxError("the sandbox is closed; make a new one")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _memo(choice: bool | memo.Memo) -> memo.Memo | None:
    if isinstance(choice, memo.Memo):
        return choice
    return memo.SHARED if choice else None
