"""What of an agent's patch is graded: checked before git, or anything else, is given it.

Invariants, each against a way to cheat or to break the grader:
- A patch that names `.git`, leaves the repository (absolute paths, `..`, links that point outside), touches submodules
  or writes through a link of its own is refused as a whole: nothing of it is applied, not even by a fallback.
- Binary files, build products and changes to the graded test files are left out, and every one is listed.
- The text that is applied is written from what was checked (`diff.py`), never copied from the agent's.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from agentgym_rtmc.environments.swebench.diff import (
    LINK_MODE,
    SUBMODULE_MODE,
    DiffError,
    FileChange,
    parse_diff,
    write_diff,
)
from agentgym_rtmc.environments.swebench.rows import SWEBenchRow

MAX_PATCH_BYTES = 8 << 20
"""A larger patch is refused: it is no repair, and reading it costs time."""

_PRODUCT_FOLDERS = frozenset(
    {"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox", ".eggs", "htmlcov"}
)
_PRODUCT_ROOTS = frozenset({"build", "dist", ".cache"})
_PRODUCT_FILES = re.compile(r"\.(pyc|pyo|pyd|so|o|a|orig|rej|swp)$|^\.coverage(\..+)?$|^\.DS_Store$|~$")
_FILE_MODES = frozenset({"100644", "100755", "100664", "100600", LINK_MODE})


@dataclass(frozen=True)
class CleanPatch:
    """`text` is what to apply ("" for nothing or a refused patch), `changes` its sections.

    `dropped` and `refused` name a path and a reason each. A refused patch counts as one that does not apply.
    """

    text: str
    dropped: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    changes: tuple[FileChange, ...] = field(default=(), repr=False)


def graded_files(row: SWEBenchRow) -> frozenset[str]:
    """The files that grading restores or brings: all that the row's test patch names.

    Without a test patch (planted bugs) the files that FAIL_TO_PASS names.
    """
    named = frozenset(path for change in parse_diff(row.test_patch) for path in change.paths)
    if named:
        return named
    return frozenset(test.partition("::")[0] for test in row.fail_to_pass if "::" in test)


def clean_patch(patch: str, test_files: Collection[str] = ()) -> CleanPatch:
    """Check a patch and leave out what is not graded; `test_files` are paths from the repository's root.

    Never raises: what cannot be read is refused, with the line.
    """
    try:
        if len(patch.encode("utf-8", "surrogateescape")) > MAX_PATCH_BYTES:
            return CleanPatch("", refused=(f"the patch has more than {MAX_PATCH_BYTES >> 20} MiB",))
        changes = parse_diff(patch)
    except UnicodeEncodeError as error:
        return CleanPatch("", refused=(f"the patch has a lone surrogate at character {error.start}",))
    except DiffError as error:
        return CleanPatch("", refused=(f"not a diff that git applies: {error}",))
    if not changes and patch.strip():
        return CleanPatch("", refused=("there is no change in the text: a diff was expected",))
    refused = tuple(dict.fromkeys(_refusals(changes)))
    if refused:
        return CleanPatch("", refused=refused)
    kept: list[FileChange] = []
    dropped: list[str] = []
    graded = frozenset(test_files)
    for change in changes:
        reason = _unwanted(change, graded)
        if reason:
            dropped.append(f"{_shown(change.path)}: {reason}")
        else:
            kept.append(change)
    return CleanPatch(write_diff(kept), tuple(dropped), (), tuple(kept))


# -- what refuses a patch ------------------------------------------------------------------------------------------


def _refusals(changes: tuple[FileChange, ...]) -> Iterator[str]:
    links = {change.new for change in changes if change.new is not None and change.new_mode == LINK_MODE}
    for change in changes:
        for path in change.paths:
            reason = _bad_path(path) or _beyond_link(path, links)
            if reason:
                yield f"{_shown(path)}: {reason}"
        modes = {mode for mode in (change.old_mode, change.new_mode) if mode is not None}
        if SUBMODULE_MODE in modes:
            yield f"{_shown(change.path)}: a submodule"
        elif modes - _FILE_MODES:
            yield f"{_shown(change.path)}: an unknown file mode {', '.join(sorted(modes - _FILE_MODES))}"
        elif change.old is not None and change.new is not None and len(modes) == 2 and LINK_MODE in modes:
            yield f"{_shown(change.path)}: a file that turns into a link, or the other way round, in one section"
        else:
            target = _link_target(change)
            if target is not None and _leaves(change.path, target):
                yield f"{_shown(change.path)}: a link that may lead out of the repository, to {_shown(target)}"


def _bad_path(path: str) -> str:
    if any(ch < " " or ch == "\x7f" for ch in path):
        return "a path with control characters"
    if path.startswith("/"):
        return "an absolute path"
    parts = path.split("/")
    if ".." in parts:
        return "a path with .."
    if "" in parts or "." in parts:
        return "a path with an empty component or a dot"
    if any(_is_git(part) for part in parts):
        return "git's own files"
    return ""


def _is_git(part: str) -> bool:
    """Whether a component is `.git` on some file system: any case, Windows' short name, dots or blanks behind it."""
    folded = part.casefold().rstrip(". ")
    return folded in {".git", "git~1"} or folded.startswith(".git:")


def _beyond_link(path: str, links: set[str]) -> str:
    parts = path.split("/")
    above = ("/".join(parts[:length]) for length in range(1, len(parts)))
    return "a path below a link of the same patch" if any(one in links for one in above) else ""


def _link_target(change: FileChange) -> str | None:
    """What a link points to after the change; None for what is no link.

    A section without modes may edit a link that is there: it looks like a one-line file without a newline at its end.
    """
    if change.new is None:
        return None
    known = change.new_mode or change.old_mode
    added = [line[1:] for hunk in change.hunks for line in hunk.lines if line[:1] == "+"]
    if known == LINK_MODE:
        return "\n".join(added) if added else None
    if known is None and change.old is not None and len(change.hunks) == 1:
        marks = "".join(line[:1] for line in change.hunks[0].lines)
        return added[0] if marks == "-\\+\\" else None
    return None


def _leaves(path: str, target: str) -> bool:
    """Whether a link may lead out of the repository.

    `..` may only stand in front: behind another component it could climb out of wherever a link there leads.
    """
    parts = target.split("/")
    climbs = 0
    while climbs < len(parts) and parts[climbs] == "..":
        climbs += 1
    rest = parts[climbs:]
    if target.startswith("/") or "\0" in target or "\n" in target or ".." in rest:
        return True
    return climbs > path.count("/") or any(_is_git(part) for part in rest)


# -- what is left out ----------------------------------------------------------------------------------------------


def _unwanted(change: FileChange, graded: frozenset[str]) -> str:
    if any(path in graded for path in change.paths):
        return "a graded test file"
    if change.binary:
        return "a binary file"
    if (change.old is None or change.moved) and change.new is not None and is_product(change.new):
        return "a build product"
    return ""


def is_product(path: str) -> bool:
    """Whether a new file is what tools leave behind. A tracked file of such a name may be changed."""
    *folders, name = path.split("/")
    if any(part in _PRODUCT_FOLDERS or part.endswith((".egg-info", ".dist-info")) for part in folders):
        return True
    return bool(folders and folders[0] in _PRODUCT_ROOTS) or _PRODUCT_FILES.search(name) is not None


def _shown(path: str) -> str:
    """A path for people: printable, bytes that are not UTF-8 as escapes, not too long."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    text = "".join(ch if ch.isprintable() else repr(ch)[1:-1] for ch in text)
    return text if len(text) <= 200 else f"{text[:197]}..."
