"""Checkpoints that are whole or not there.

    checkpoints/step-000012/model/                  an ordinary transformers folder (weights, configuration, tokenizer)
                            optimizer.safetensors
                            state.json              step, generators, the caller's state, a digest of every file
    checkpoints/latest                              link to the newest one, for people and other programs

Invariants: a checkpoint is written beside, flushed to disk and renamed, so a kill or a full disk at any moment leaves
the previous one as it was. One whose digests don't match is never used. Only safetensors and JSON, never pickle.
`load_latest` takes the whole checkpoint with the highest step; delete later ones to go back.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym_rtmc.errors import CheckpointError
from agentgym_rtmc.trainer.learner.learner import Learner
from agentgym_rtmc.trainer.learner.training_state import (
    capture_rng,
    load_optimizer,
    load_weights,
    quiet_transformers,
    restore_rng,
    save_optimizer,
)

FORMAT = 1
_DRAFT = ".draft-"
_OLD = ".old-"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint. `state` is what the caller saved; `passed_over` says which newer ones were torn, and how."""

    path: Path
    step: int
    state: dict[str, Any]
    config_digest: str
    learner: dict[str, Any]
    rng: dict[str, Any]
    passed_over: tuple[str, ...] = ()

    @property
    def model_path(self) -> Path:
        """The transformers folder inside."""
        return self.path / "model"

    def restore(self, learner: Learner) -> None:
        """Bring weights, optimiser, update count and global random generators back. Raises CheckpointError."""
        load_optimizer(learner.optimizer, learner.parameter_names, self.path / "optimizer.safetensors")
        load_weights(learner.model, self.model_path)
        learner.updates = int(self.learner["updates"])
        restore_rng(self.rng)


def save_checkpoint(
    run_dir: str | Path,
    step: int,
    learner: Learner,
    tokenizer: Any,
    state: dict[str, Any],
    *,
    keep: int = 2,
    config_digest: str = "",
) -> Path:
    """Write `checkpoints/step-<step>` under a run's folder and return it; all but the last `keep` are removed.

    `tokenizer` may be None; `state` is any JSON. A checkpoint of the same step is replaced. Raises CheckpointError when
    it cannot be written, with the checkpoints before it untouched.
    """
    if keep < 1 or step < 0:
        raise CheckpointError(f"cannot keep {keep} checkpoints at step {step}: keep at least 1, from step 0 on")
    try:
        state = json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"the state to save is not JSON ({error}); save plain finite values only") from error
    folder = Path(run_dir) / "checkpoints"
    final = folder / f"step-{step:06d}"
    draft = folder / f"{_DRAFT}{final.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob(f"{_DRAFT}*"):
            shutil.rmtree(leftover)
        with quiet_transformers():
            learner.model.save_pretrained(draft / "model")
            if tokenizer is not None:
                tokenizer.save_pretrained(draft / "model")
        save_optimizer(learner.optimizer, learner.parameter_names, draft / "optimizer.safetensors")
        _flush(draft)
        content = {
            "format": FORMAT,
            "step": step,
            "config_digest": config_digest,
            "files": _digests(draft),
            "learner": {"updates": learner.updates},
            "rng": capture_rng(),
            "state": state,
        }
        content["digest"] = _digest_of(content)
        (draft / "state.json").write_text(json.dumps(content, indent=1, allow_nan=False))
        _flush(draft)
        _publish(draft, final)
        _point_to(final)
        _prune(folder, step, keep)
    except Exception as error:  # tokenizers raises the bare class when the disk is full
        shutil.rmtree(draft, ignore_errors=True)
        raise CheckpointError(_why_not(final, error)) from error
    return final


def load_latest(run_dir: str | Path, config_digest: str | None = None) -> Checkpoint | None:
    """Return the newest whole checkpoint of a run, None where there is none yet.

    Torn ones are passed over with a warning. Raises CheckpointError when all are torn, or when `config_digest` is given
    and the checkpoint was made under another one.
    """
    passed_over: list[str] = []
    for path in _candidates(Path(run_dir) / "checkpoints"):
        try:
            found = read_checkpoint(path)
        except CheckpointError as error:
            passed_over.append(str(error))
            _log.warning("passing over a checkpoint: %s", error)
            continue
        if config_digest is not None and found.config_digest != config_digest:
            raise CheckpointError(
                f"{path} was made with another configuration (digest {found.config_digest}, now {config_digest}); "
                "resume with the settings the run was started with, or start a new run"
            )
        return Checkpoint(**{**vars(found), "passed_over": tuple(passed_over)})
    if passed_over:
        raise CheckpointError(
            "no checkpoint of the run is whole: "
            + "; ".join(passed_over)
            + f". Remove {Path(run_dir) / 'checkpoints'} to start this run anew"
        )
    return None


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Read one checkpoint and check every file in it. Raises CheckpointError naming the file that is wrong."""
    path = Path(path)
    try:
        content = json.loads((path / "state.json").read_text())
        claimed = content.pop("digest")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path / 'state.json'} cannot be read ({error}); use another checkpoint") from error
    if content.get("format") != FORMAT:
        raise CheckpointError(
            f"{path} has format {content.get('format')}, this version reads {FORMAT}; use the version that wrote it"
        )
    if claimed != _digest_of(content):
        raise CheckpointError(f"{path / 'state.json'} was changed after it was written; use another checkpoint")
    found = _digests(path)
    for name, digest in content["files"].items():
        if found.get(name) != digest:
            what = "has other content than was written" if name in found else "is missing"
            raise CheckpointError(f"{path / name} {what}; use another checkpoint")
    return Checkpoint(
        path, content["step"], content["state"], content["config_digest"], content["learner"], content["rng"]
    )


def _candidates(folder: Path) -> list[Path]:
    """Checkpoints from the highest step down; one being replaced stands behind its successor."""
    found = [path for pattern in ("step-*", f"{_OLD}step-*") for path in folder.glob(pattern) if path.is_dir()]
    return sorted(found, key=lambda path: (_step_of(path), not path.name.startswith(_OLD)), reverse=True)


def _step_of(path: Path) -> int:
    digits = path.name.rpartition("-")[2]
    return int(digits) if digits.isdigit() else -1


def _publish(draft: Path, final: Path) -> None:
    """Give the draft its name. A folder cannot be renamed over a full one, so an older one steps aside first."""
    old = final.with_name(_OLD + final.name)
    if final.exists():
        shutil.rmtree(old, ignore_errors=True)
        final.rename(old)
    draft.rename(final)
    _sync(final.parent)
    shutil.rmtree(old, ignore_errors=True)


def _point_to(final: Path) -> None:
    link = final.with_name(".latest.new")
    link.unlink(missing_ok=True)
    link.symlink_to(final.name)
    link.replace(final.with_name("latest"))
    _sync(final.parent)


def _prune(folder: Path, step: int, keep: int) -> None:
    """Remove what is older than the last `keep` up to `step`; each loses its name first, so none is ever half there."""
    upto = [path for path in _candidates(folder) if _step_of(path) <= step]
    for path in upto[keep:]:
        doomed = path.with_name(_DRAFT + path.name)
        path.rename(doomed)
        shutil.rmtree(doomed)


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 of every file but state.json, by path inside the folder."""
    digests: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / "state.json":
            with path.open("rb") as file:
                digests[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _digest_of(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _flush(folder: Path) -> None:
    """Force a folder's files and entries to disk; a full disk is noticed here at the latest."""
    for path in [*folder.rglob("*"), folder]:
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _why_not(final: Path, error: Exception) -> str:
    try:
        free = f"{shutil.disk_usage(final.parent).free / 2**20:.0f} MiB free there"
    except OSError:
        free = "the folder cannot be reached"
    return (
        f"{final} could not be written ({type(error).__name__}: {error}; {free}). Earlier checkpoints are untouched: "
        "make room or mend the folder, then resume the run"
    )
