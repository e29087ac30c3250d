"""Grades a patch in a fresh container: the official evaluation script, with markers, exit code and canaries of ours.

Invariants:
- The container is made of the official image and has seen nothing of the agent but the patch; it has no network.
- The patch is applied as it was cleaned (`patch.py`) and in the official order of attempts. Files that are graded are
  put back by the script itself, and compared with what they must be before the tests start.
- Set-up and tests are two commands; whatever the first left running is dead when the second starts. Markers and exit
  code come from here (`log.py`).
- What the agent's code brings about (no end, too much memory, a full disk) is a result. What the machine or the engine
  does wrong raises GradingError, after one more attempt in another container.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agentgym_rtmc.environments.sandbox.base import ExecResult, Sandbox, WorkspacePathError
from agentgym_rtmc.environments.sandbox.opening import open_sandbox
from agentgym_rtmc.environments.swebench.canaries import plan_canaries
from agentgym_rtmc.environments.swebench.eval_script import split_script
from agentgym_rtmc.environments.swebench.grading import GradedRun, grade_finished, grade_run
from agentgym_rtmc.environments.swebench.image import prepare_image
from agentgym_rtmc.environments.swebench.limits import GRADING_SECONDS, ContainerLimits
from agentgym_rtmc.environments.swebench.patch import CleanPatch, clean_patch, graded_files
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow
from agentgym_rtmc.errors import GradingError, InfrastructureError

APPLY_FAILED = ">>>>> Patch Apply Failed"
_ATTEMPTS = 2
_CLEAN_SECONDS = 300.0
_PROGRAMS = """
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
git() { command git -c core.hooksPath=/dev/null -c core.fsmonitor=false -c safe.directory='*' "$@"; }
"""
_APPLY = """
cat >/tmp/patch.diff
git apply --verbose /tmp/patch.diff && exit 0
git checkout -q -- . ; git clean -fdq
git apply --verbose --3way /tmp/patch.diff && exit 0
git checkout -q -- . ; git clean -fdq
git apply --verbose --reject /tmp/patch.diff && exit 0
git checkout -q -- . ; git clean -fdq
patch --batch --forward --fuzz=5 -p1 -i /tmp/patch.diff && exit 0
exit 1
"""
# In the container as it is delivered: what the graded files will be once the script has put them in place.
_EXPECTED = """
export GIT_INDEX_FILE=/tmp/index
mkdir /tmp/tree && cat >/tmp/test.diff && git read-tree "$1" || exit 1
shift
if [ -s /tmp/test.diff ]; then git apply --cached /tmp/test.diff || exit 1; fi
for path; do
  if git ls-files --error-unmatch -- "$path" >/dev/null 2>&1; then
    git checkout-index --prefix=/tmp/tree/ -- "$path" || exit 1
  fi
done
cd /tmp/tree || exit 1
"""
_DIGESTS = """
for path; do
  if [ -L "$path" ]; then digest=link; elif [ -f "$path" ]; then digest=$(sha256sum <"$path"); else digest=none; fi
  printf '%s\\n' "${digest%% *}"
done
"""
_RUN = "cat >/tmp/eval.sh && exec /bin/bash /tmp/eval.sh </dev/null"


@dataclass(frozen=True)
class PatchGrade:
    """What became of a patch. `notes` are for its log: what was left out or refused, and how it went."""

    patch: CleanPatch
    run: GradedRun
    notes: tuple[str, ...] = ()


def grade_patch(
    row: SWEBenchRow, patch: str, *, limits: ContainerLimits | None = None, seconds: float = GRADING_SECONDS
) -> PatchGrade:
    """Grade a patch of an instance whose official image is in the engine. `seconds` limit set-up, and the tests.

    Nothing runs for a patch of which nothing is left. Raises ImageMissingError, TaskError for a row that cannot be
    graded, GradingError.
    """
    limits = limits or ContainerLimits()
    clean = clean_patch(patch, graded_files(row))
    notes = (*(f"left out: {one}" for one in clean.dropped), *(f"refused: {one}" for one in clean.refused))
    if clean.refused:
        log = f"{APPLY_FAILED}:\nrefused: {'; '.join(clean.refused)}\n"
        return PatchGrade(clean, _not_run(row, patch, log), notes)
    if not clean.text:
        return PatchGrade(clean, _not_run(row, "", ""), (*notes, "there is no change to grade"))
    failures: list[str] = []
    while True:
        try:
            run, more = _grade_in_container(row, clean.text, limits, seconds)
            return PatchGrade(clean, run, (*notes, *failures, *more))
        except InfrastructureError as error:
            failures.append(f"attempt {len(failures) + 1} failed: {error}")
            if len(failures) == _ATTEMPTS:
                raise GradingError(f"{row.instance_id} could not be graded: {error}") from error


def _not_run(row: SWEBenchRow, patch: str, log: str) -> GradedRun:
    run = grade_finished(row, patch, log)
    # That the log is incomplete says nothing here: nothing ran.
    return replace(run, grade=replace(run.grade, tampered=False, infrastructure_failure=False, reasons=()))


def _grade_in_container(
    row: SWEBenchRow, patch: str, limits: ContainerLimits, seconds: float
) -> tuple[GradedRun, list[str]]:
    script = split_script(row.eval_script, row.instance_id)
    canaries = plan_canaries(row, script)
    spec = limits.grading(prepare_image(row, "grader").name, seconds)
    with open_sandbox(spec) as sandbox:
        files = sorted(graded_files(row))
        if row.bug_patch and (told := _apply(sandbox, row.bug_patch)).code:
            raise GradingError(f"{row.instance_id}: the bug's patch does not apply to its image: {told.stdout[-300:]}")
        expected = _expected(sandbox, row, files)
        applied = _apply(sandbox, patch)
        if applied.code:
            return _not_run(row, patch, f"{APPLY_FAILED}:\n{applied.stdout}"), ["the patch does not apply"]
        setup = _script(sandbox, script.setup, seconds)
        if setup.timed_out:
            return grade_run(row, patch, setup.stdout, "", 137, canaries, seconds), ["set-up did not come to an end"]
        notes = [f"set-up: {setup.note}"] if setup.note else []
        found = _digests(sandbox, files)
        changed = [path for path, is_, must in zip(files, found, expected, strict=True) if is_ != must]
        if canaries.kind != "none":
            try:
                sandbox.write(canaries.path, canaries.contents.encode())
            except WorkspacePathError as error:
                notes.append(f"the canaries cannot be written: {error}")
        tests = _script(sandbox, script.tests(canaries.commands), seconds)
        if tests.note:
            notes.append(f"tests: {tests.note}")
        timed_out = seconds if tests.timed_out else None
        run = grade_run(row, patch, setup.stdout, tests.stdout, tests.code, canaries, timed_out)
    if changed:
        reason = f"graded files are not as the test patch leaves them: {', '.join(changed[:3])}"
        run = replace(run, grade=replace(run.grade, tampered=True, reasons=(*run.grade.reasons, reason)))
    return run, notes


def _apply(sandbox: Sandbox, patch: str) -> ExecResult:
    data = patch.encode("utf-8", "surrogateescape")
    return sandbox.exec(["/bin/bash", "-c", _PROGRAMS + _APPLY], timeout=_CLEAN_SECONDS, stdin=data, merge=True)


def _script(sandbox: Sandbox, text: str, seconds: float) -> ExecResult:
    data = text.encode("utf-8", "surrogateescape")
    return sandbox.exec(["/bin/bash", "-c", _RUN], timeout=seconds, stdin=data, merge=True)


def _expected(sandbox: Sandbox, row: SWEBenchRow, files: Sequence[str]) -> list[str]:
    """Digests that the graded files must have before the tests start."""
    words = ["/bin/bash", "-c", _PROGRAMS + _EXPECTED + _DIGESTS, "bash", row.base_commit, *files]
    told = sandbox.exec(words, timeout=_CLEAN_SECONDS, stdin=row.test_patch.encode("utf-8", "surrogateescape"))
    digests = told.stdout.split()
    if told.code or len(digests) != len(files):
        raise GradingError(
            f"{row.instance_id}: the test patch cannot be applied to the image as it is: {told.stderr.strip()[-300:]}"
        )
    return digests


def _digests(sandbox: Sandbox, files: Sequence[str]) -> list[str]:
    told = sandbox.exec(["/bin/bash", "-c", _PROGRAMS + _DIGESTS, "bash", *files], timeout=_CLEAN_SECONDS)
    digests = told.stdout.split()
    return digests if len(digests) == len(files) else ["unknown"] * len(files)


def patch_digest(patch: str) -> str:
    """A name for a patch's text."""
    return hashlib.sha256(json.dumps(patch).encode()).hexdigest()[:32]
