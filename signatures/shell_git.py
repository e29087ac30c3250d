"""git: what its commands show, change or take back."""

from __future__ import annotations

import re

from agentgym_rtmc.signatures.shell_operations import Operation
from agentgym_rtmc.signatures.shell_search import FILE_NAME, SEARCHES
from agentgym_rtmc.signatures.shell_text import Line, quote, word_text
from agentgym_rtmc.signatures.shell_tree import Word
from agentgym_rtmc.signatures.shell_words import Place, shape

_LOOKING_GLOBALS = {"--no-pager", "-P", "--paginate", "-p", "--literal-pathspecs"}
_COLOR = {"--no-color", "--color=never", "--color=auto", "--no-ext-diff", "--no-textconv", "--no-pager"}
_SHOWING = {"status", "diff", "log", "show", "blame", "ls-files", "branch", "rev-parse", "remote", "describe",
            "shortlog", "reflog", "tag", "config", "cat-file", "ls-tree", "rev-list", "merge-base"}  # fmt: skip
_VALUED = {"-n", "-L", "-S", "-G", "--max-count", "--grep", "--author", "--committer", "--since", "--after", "--until",
           "--before", "--format", "--date", "--skip", "--diff-filter"}  # fmt: skip
_QUIET = {"checkout", "restore", "reset", "stash", "commit", "clean", "rm", "mv", "apply", "am", "add", "fetch", "pull",
          "merge", "rebase", "cherry-pick", "revert", "switch", "clone", "init"}  # fmt: skip


def git(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    """Read a git command."""
    index = 0
    inner = place
    while index < len(words):
        text = words[index].literal
        if text is None:
            return None
        if text in _LOOKING_GLOBALS:
            index += 1
        elif text == "-C" and index + 1 < len(words) and words[index + 1].literal is not None:
            inner = inner.copy()
            inner.enter(words[index + 1].literal or ".")
            index += 2
        elif text == "-c" and index + 1 < len(words):
            if not shape(words[index + 1]).startswith(("color.", "core.pager", "advice.", "pager.")):
                return None
            index += 2
        else:
            break
    if index >= len(words):
        return None
    command = words[index].literal or ""
    rest = words[index + 1 :]
    if command == "grep":
        return SEARCHES["grep"]("git grep", rest, inner)
    if command in _SHOWING:
        return _show(command, rest, inner)
    if command in ("checkout", "restore"):
        return _revert(command, rest, inner)
    return _change(command, rest, inner)


def _split(words: tuple[Word, ...]) -> tuple[list[Word], list[Word], bool]:
    """Words before and after `--`, and whether it stands there."""
    for index, word in enumerate(words):
        if word.literal == "--":
            return list(words[:index]), list(words[index + 1 :]), True
    return list(words), [], False


def _show(command: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    before, after, _ = _split(words)
    options: list[str] = []
    looks: list[str] = []
    operands: list[Word] = []
    index = 0
    while index < len(before):
        word = before[index]
        text = shape(word)
        index += 1
        if not text.startswith("-") or text == "-":
            operands.append(word)
            continue
        name = text.partition("=")[0]
        if text in _COLOR:
            continue
        if text in ("--color", "--color=always"):
            looks.append("--color")
        elif (
            command in ("log", "show", "blame", "reflog", "shortlog", "rev-list")
            and text in _VALUED
            and index < len(before)
        ):
            value = word_text(before[index])
            index += 1
            options.append(
                f"-n {value}" if text == "--max-count" else f"{text}{'=' if text[:2] == '--' else ' '}{value}"
            )
        elif command in ("log", "show", "reflog") and text[1:].isdigit():
            options.append(f"-n {text[1:]}")
        elif command == "log" and (text.startswith("-n") and text[2:].isdigit()):
            options.append(f"-n {text[2:]}")
        elif name == "--max-count":
            options.append(f"-n {quote(text.partition('=')[2])}")
        elif command == "status" and text in ("-s", "--short", "--porcelain", "-b", "--branch", "-sb", "--long", "-v"):
            looks.append(text)
        elif command == "status" and re.match(r"-u|--untracked-files", text):
            mode = re.sub(r"^(?:-u|--untracked-files=?)", "", text) or "all"
            options += [f"--untracked-files={mode}"] if mode != "normal" else []
        elif command == "diff":
            spelled = {"--staged": "--cached", "-u": "", "-p": "", "--patch": ""}.get(text)
            options.append(word_text(word) if spelled is None else spelled)
        else:
            options.append(word_text(word))
    if "--no-index" in options:
        return None  # two files, in their order
    paths = [place.path_text(word) for word in after]
    fixed = [place.path(word.literal) for word in after if word.literal is not None]
    revisions: list[str] = []
    for word in operands:
        literal = word.literal
        if literal is None:
            revisions.append(word_text(word))
        elif command in ("diff", "status", "ls-files", "blame", "log") and _is_path(literal):
            paths.append(place.path_text(word))
            fixed.append(place.path(literal))
        else:
            revisions.append(quote(literal))
    here = any(re.search(r":\.\.?/", revision) for revision in revisions)
    if place.directory and (here or (not paths and command in ("status", "ls-files", "branch"))):
        return None
    pieces = ["git", command, *sorted(o for o in options if o), *revisions]
    pieces += ["--", *sorted(set(paths))] if paths else []
    bare = command == "status" and not paths
    sure = command == "status" or (
        command == "diff" and not any(o in ("--exit-code", "--quiet", "--check") for o in options)
    )
    return Operation(
        "inspect",
        Line(" ".join(pieces)),
        tuple(sorted(set(fixed))),
        detail=command,
        reads=True,
        certain=(sure and not revisions) or bare,
        raw=Line(" ".join([*pieces[:2], *sorted(set(looks)), *pieces[2:]])) if looks else None,
    )


def _is_path(text: str) -> bool:
    """Whether an operand before `--` is rather a path than a revision."""
    if text in (".", "..") or text.startswith(("./", "/", "../")) or text.endswith("/"):
        return True
    return FILE_NAME.search(text) is not None and not re.search(r"\.\.|[~^:@]", text)


def _revert(command: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    before, after, dashes = _split(words)
    options = [shape(w) for w in before if shape(w).startswith("-")]
    operands = [w for w in before if not shape(w).startswith("-")]
    options = [o for o in options if o not in ("-q", "--quiet", "-f", "--force", "--no-progress", "--progress")]
    if command == "restore":
        options = [o for o in options if o not in ("-W", "--worktree")]
    if not dashes and not options and operands and all(_is_path(w.literal or "") for w in operands):
        after, operands = operands, []
    if command == "restore" and not dashes:
        after, operands = [*operands, *after], []
    if options or operands or not after or any(w.literal is None for w in after):
        return _change(command, words, place)
    paths = tuple(sorted({place.path(w.literal or "") for w in after}))
    return Operation("revert", Line(" ".join(["git checkout --", *map(quote, paths)])), paths, silent=True)


def _change(command: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    before, after, _ = _split(words)
    kept = [w for w in before if not (command in _QUIET and shape(w) in ("-q", "--quiet", "--no-progress"))]
    everything = command == "add" and not after and all(shape(w) in ("-A", "--all", ".", "-u") for w in kept) and kept
    if everything and not any(shape(w) == "-u" for w in kept) and not place.directory:
        return Operation("vcs", Line("git add -A"), (), silent=True)
    pieces = ["git", command]
    fixed: list[str] = []
    pathy = command in ("add", "rm", "mv", "apply", "reset", "clean")
    for word in kept:
        literal = word.literal
        if pathy and literal is not None and not literal.startswith("-") and (command != "reset" or _is_path(literal)):
            fixed.append(place.path(literal))
            pieces.append(place.path_text(word))
        else:
            pieces.append(word_text(word))
    for word in after:
        pieces.append(place.path_text(word))
        if word.literal is not None:
            fixed.append(place.path(word.literal))
    if place.directory and pathy and (not fixed or command == "apply"):
        return None  # below a folder, only what lies there is applied
    category = {
        "apply": "modify",
        "rm": "delete",
        "mv": "move",
        "reset": "revert",
        "stash": "revert",
        "clean": "delete",
    }.get(command, "vcs")
    if command == "reset" and not any(shape(w) == "--hard" for w in kept):
        category = "vcs"
    if command == "stash" and any(shape(w) in ("pop", "apply", "list", "show") for w in kept):
        category = "vcs"
    if category == "revert":
        fixed = ["."]
    text = " ".join(pieces)
    return Operation(category, Line(text), tuple(sorted(set(fixed))), detail=text, silent=command in _QUIET)  # type: ignore[arg-type]
