"""What all implementations say alike: how a command line is taken, and what a command's end is told as."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from agentgym_rtmc.environments.sandbox.base import ExecResult, SandboxSpec
from agentgym_rtmc.environments.sandbox.output import HeadTail
from agentgym_rtmc.environments.sandbox.watch import Limit

FLOOD_BYTES = 64 << 20
"""A command that has written this much output is killed: nobody will read it, and draining it costs CPU."""

_REASONS = {
    "killed-time": "killed: it ran longer than {timeout:g} s",
    "killed-memory": "killed: its processes together held more than the memory limit of {memory} MiB",
    "killed-processes": "killed: it had more than {processes} processes and threads at once",
    "killed-disk": "killed: the workspace grew past its disk limit of {disk} MiB",
    "killed-files": "killed: the workspace or /tmp grew past {files} files, or folders were nested too deep",
    "killed-output": "killed: it wrote more than {flood} MiB of output",
    "disk": "the workspace is past its disk limit of {disk} MiB",
    "files": "the workspace is past its limit of {files} files, or its folders are nested too deep",
    "full-disk": "the workspace is full: it has reached its disk limit of {disk} MiB",
    "full-files": "the workspace is full: it has reached its limit of {files} files",
}
_DISK = ("disk", "files", "full-disk", "full-files")


def conclude(
    streams: Sequence[HeadTail],
    code: int,
    killed_for: str,
    over: Limit | None,
    timeout: float,
    spec: SandboxSpec,
    kept: Path | None,
) -> ExecResult:
    """The result of a command that has ended.

    `streams`: one, or two; `code` as the implementation learnt it; `killed_for`: `time`, `output` or a `Limit`, empty
    where it ended by itself; `over`: the limit that the workspace is past although it did.
    """
    texts = [stream.text() for stream in streams]
    reason = f"killed-{killed_for}" if killed_for else over or ""
    return ExecResult(
        stdout=texts[0],
        stderr=texts[1] if len(texts) > 1 else "",
        code=137 if killed_for else code,
        timed_out=killed_for == "time",
        out_of_memory=killed_for == "memory",
        out_of_disk=(killed_for or over) in _DISK,
        truncated=any(stream.truncated for stream in streams),
        note=_note(reason, timeout, spec),
        kept=kept,
    )


def spill(streams: Sequence[HeadTail]) -> None:
    """Keep all streams of a command whole where anything of one was left out. To be called before `Kept.close`."""
    if any(stream.truncated for stream in streams):
        for stream in streams:
            stream.spill_all()


def _note(reason: str, timeout: float, spec: SandboxSpec) -> str:
    if not reason:
        return ""
    return _REASONS[reason].format(
        timeout=timeout,
        memory=spec.memory_bytes >> 20,
        processes=spec.processes,
        disk=spec.disk_bytes >> 20,
        files=spec.disk_files,
        flood=FLOOD_BYTES >> 20,
    )


def as_argv(argv: Sequence[str]) -> list[bytes]:
    """Encode a command line. Raises ValueError when it is no list or empty, which is a mistake in the caller's code."""
    if isinstance(argv, str) or not argv:
        raise ValueError("a command is a non-empty list of strings, such as ['bash', '-c', 'ls']")
    return [_encode(word) for word in argv]


def as_seconds(timeout: float | None, spec: SandboxSpec) -> float:
    """The time that a command gets. Raises ValueError for what is no time at all: it would never be over."""
    seconds = spec.timeout if timeout is None else timeout
    if not math.isfinite(seconds):
        raise ValueError(f"a timeout is a number of seconds, not {seconds}")
    return seconds


def _encode(word: str) -> bytes:
    try:
        return word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # a lone surrogate that stands for no byte
        return word.encode("utf-8", "replace")
