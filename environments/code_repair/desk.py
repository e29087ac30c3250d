"""The workspace an environment works on: a start, commands that change it, and what differs from the start."""

from __future__ import annotations

from collections.abc import Mapping

from agentgym_rtmc.environments.sandbox import tree
from agentgym_rtmc.environments.sandbox.base import ExecResult, SandboxSpec
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
import stat


class Desk:
    def __init__(self, seconds: float) -> None:
        self._spec = SandboxSpec(timeout=seconds)
        self._sandbox: LocalSandbox | None = None
        self._start: dict[str, tree.Entry] = {}
        self._now: dict[str, tree.Entry] = {}

    def reset(self, files: Mapping[str, bytes]) -> None:
        if self._sandbox is None:
            self._sandbox = LocalSandbox(self._spec)
        entries = {path: tree.make_entry(stat.S_IFREG | 0o644, data) for path, data in files.items()}
        for path in files:
            parts = path.split("/")[:-1]
            for n in range(len(parts)):
                entries["/".join(parts[: n + 1])] = tree.make_entry(stat.S_IFDIR | 0o755)
        tree.write(self._sandbox.workspace, self._now, entries)
        self._start = self._now = entries

    def run(self, command: str) -> ExecResult:
        assert self._sandbox
        result = self._sandbox.exec(["sh", "-c", command], merge=True)
        self._now = tree.read(self._sandbox.workspace, self._now).entries
        return result

    def changes(self) -> dict[str, bytes | None]:
        paths = set(self._start) | set(self._now)
        out: dict[str, bytes | None] = {}
        for path in paths:
            if path.startswith(".git") or "__pycache__" in path:
                continue
            a, b = self._start.get(path), self._now.get(path)
            if a != b:
                out[path] = None if b is None else b.data
        return out

    def read(self, path: str) -> bytes | None:
        entry = self._now.get(path)
        return entry.data if entry and stat.S_ISREG(entry.mode) else None

    def close(self) -> None:
        if self._sandbox:
            self._sandbox.close()
