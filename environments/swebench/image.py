"""Images for agents and for gradings, made of an official one once and then found by what they were made of.

Invariants: an image is named by a digest of the official image's id, the base commit, a planted bug and the version of
the scripts, so it is never stale; its labels are such that `clean` leaves it alone. Nothing is fetched here. A killed
preparation leaves a container that the next run removes, and no image.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import re
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from agentgym_rtmc.environments.swebench import preparation
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow
from agentgym_rtmc.environments.swebench.tasks import row_of
from agentgym_rtmc.errors import ImageMissingError, SandboxError, TaskError
from agentgym_rtmc.extras import missing_extra
from agentgym_rtmc.folders import cache_folder
from agentgym_rtmc.tasks import Task

if TYPE_CHECKING:
    from agentgym_rtmc.environments.sandbox.docker.engine import Engine

Role = Literal["agent", "grader"]
REPOSITORY = "agentgym-rtmc"
SECONDS = 1800.0
"""One preparation may take so long."""
HISTORY = "agentgym-rtmc.history"
"""Label of an agent's image: what the check of its history said."""
_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FOWNER"]


@dataclass(frozen=True)
class PreparedImage:
    """`name` is for `SandboxSpec.image`; `made` tells whether it was made just now."""

    name: str
    made: bool


def image_name(row: SWEBenchRow, role: Role, official_id: str) -> str:
    """The name of the image that is made of the official one with this id."""
    parts = [official_id, preparation.VERSION, role]
    if role == "agent":
        parts += [row.base_commit, row.bug_patch]
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()
    return f"{REPOSITORY}/{role}:{digest[:32]}"


def prepare_image(row: SWEBenchRow, role: Role) -> PreparedImage:
    """Find the image for a role, or make it of `row.image`, which has to be there.

    Raises ImageMissingError with the command that fetches the official image, TaskError for one that does not fit the
    row, SandboxError when the engine fails.
    """
    try:
        from agentgym_rtmc.environments.sandbox.docker.engine import connect
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from error
    engine = connect()
    official = engine.image_id(row.image)
    name = image_name(row, role, official)
    if _is_there(engine, name):
        return PreparedImage(name, made=False)
    with _exclusive(name):
        if _is_there(engine, name):  # another process made it while we waited
            return PreparedImage(name, made=False)
        _make(engine, row, role, official, name)
    return PreparedImage(name, made=True)


def prepare_task(task: Task) -> str:
    """Make both images of a task (see `registration.EnvRegistration.prepare`)."""
    row = row_of(task)
    made = [role for role in get_args(Role) if prepare_image(row, role).made]
    return f"made the image of {' and '.join(made)}" if made else "prepared already"


def _is_there(engine: Engine, name: str) -> bool:
    with suppress(ImageMissingError), engine.failures(f"find the image {name}"):
        engine.quick.inspect_image(name)
        return True
    return False


@contextmanager
def _exclusive(name: str) -> Iterator[None]:
    folder = cache_folder() / "preparing"
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / name.rpartition(":")[2], os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make(engine: Engine, row: SWEBenchRow, role: Role, official: str, name: str) -> None:
    from agentgym_rtmc.environments.sandbox.docker import labels, leftovers

    leftovers.remove_once(engine)
    script = preparation.AGENT_SCRIPT if role == "agent" else preparation.GRADER_SCRIPT
    with engine.failures(f"prepare an image of {row.image}"):
        container = engine.slow.create_container(
            official,
            entrypoint=["/bin/sh", "-c", script, "sh", row.base_commit],
            command=[],
            user="0:0",
            working_dir="/",
            environment={"HOME": "/nonexistent"},
            labels=labels.labels(SECONDS),
            healthcheck={"test": ["NONE"]},
            host_config=engine.slow.create_host_config(
                network_mode="none",
                cap_drop=["ALL"],
                cap_add=_CAPABILITIES,
                security_opt=["no-new-privileges"],
                pids_limit=512,
            ),
        )["Id"]
    try:
        with engine.failures(f"prepare an image of {row.image}"):
            engine.slow.put_archive(container, "/", _scratch(row))
            engine.slow.start(container)
            code = int(engine.endless.wait(container, timeout=SECONDS)["StatusCode"])
            told = engine.slow.logs(container, stdout=True, stderr=True, tail=20).decode("utf-8", "replace").strip()
        if code:
            raise _unfit(row, code, told)
        about = {HISTORY: told.rpartition("\n")[2], **labels.kept()}
        if role == "agent":
            about[labels.OWNED] = preparation.WORKDIR
        lines = [f'LABEL {key}="{_quoted(value)}"' for key, value in about.items()]
        lines += ["ENTRYPOINT []", 'CMD ["/bin/sh"]', f"WORKDIR {preparation.WORKDIR}", "ENV HOME=/root"]
        repository, _, tag = name.partition(":")
        with engine.failures(f"keep an image made of {row.image}"):
            engine.slow.commit(container, repository, tag, changes=lines)
    finally:
        with suppress(SandboxError), engine.failures("remove a container"):
            engine.slow.remove_container(container, force=True, v=True)


def _unfit(row: SWEBenchRow, code: int, told: str) -> TaskError | SandboxError:
    where = f"{row.instance_id}: the image {row.image} cannot be prepared"
    if 66 <= code <= 68:  # what the script says of the image itself
        return TaskError(f"{where}: {told.rpartition(chr(10))[2]}")
    return SandboxError(f"{where} (exit code {code}): {told[-600:]}")


def _quoted(text: str) -> str:
    return re.sub(r"[^\w .:/-]", "?", text)


def _scratch(row: SWEBenchRow) -> bytes:
    """An archive of the folder that the script works in, with the planted bug where there is one."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        folder = tarfile.TarInfo(preparation.SCRATCH[1:])
        folder.type, folder.mode = tarfile.DIRTYPE, 0o700
        tar.addfile(folder)
        if row.bug_patch:
            data = row.bug_patch.encode("utf-8", "surrogateescape")
            entry = tarfile.TarInfo(preparation.BUG[1:])
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()
