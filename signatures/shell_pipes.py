"""Pipelines: stages that only cut out lines are folded into the command before them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from agentgym_rtmc.signatures.shell_builtins import leaves
from agentgym_rtmc.signatures.shell_content import fixed_output
from agentgym_rtmc.signatures.shell_heredocs import Heredoc
from agentgym_rtmc.signatures.shell_operations import Item, Operation, View, as_one, combine, idle, viewing, within
from agentgym_rtmc.signatures.shell_redirects import streams
from agentgym_rtmc.signatures.shell_simple import simple_operation, unwrapped
from agentgym_rtmc.signatures.shell_text import Line, word_text
from agentgym_rtmc.signatures.shell_tree import Node, Pipeline, Redirect, Simple, Word, text_word
from agentgym_rtmc.signatures.shell_words import Place, expand_braces, shape

_FILTERS = {"head", "tail", "cat", "less", "more", "grep", "egrep", "fgrep", "sed", "awk", "sort", "uniq", "wc", "cut",
            "tr", "nl", "tac"}  # fmt: skip
_TAKES_FILE = {"grep", "egrep", "fgrep", "wc", "sed", "awk", "sort", "uniq", "cut", "head", "tail"}

StatementReader = Callable[[Node, Place], "list[Item]"]


def read_pipeline(node: Pipeline, place: Place, run: StatementReader) -> Operation:
    """Read a pipeline. Every stage runs in a subshell, so `place` does not change."""
    current: Operation | None = None
    content: str | None = None
    stages = [_merge_errors(stage, both) for stage, both in zip(node.stages, node.both, strict=True)]
    if any(map(leaves, stages)):
        place.refuse()
    for index, stage in enumerate(stages):
        last = index == len(stages) - 1
        inner = place.copy()
        if current is None and content is None:
            content = _fixed_content(stage, inner)
            if content is not None:
                continue
            current = _stage(stage, inner, run, piped=not last)
            if (current.idle or current.detail.startswith("assign ")) and not last:
                current, content = None, ""
            continue
        if current is None:
            assert content is not None
            if _is_identity(stage):
                continue
            if _ignores_input(stage):
                content = _fixed_content(stage, inner)  # it reads something else: what came before is lost
                current = None if content is not None else _stage(stage, inner, run, piped=not last)
                if current is not None and current.idle and not last:
                    current, content = None, ""
                continue
            current = _fed(stage, content, inner, run, piped=not last)
            continue
        current = _through(current, stage, inner, run, last)
    return current if current is not None else idle()


def _merge_errors(stage: Node, both: bool) -> Node:
    if both and isinstance(stage, Simple):
        return replace(stage, redirects=(*stage.redirects, Redirect(">&", 2, text_word("1"))))
    return stage


def _words(stage: Node, place: Place) -> tuple[Word, ...]:
    if not isinstance(stage, Simple):
        return ()
    return tuple(w for word in stage.words for w in expand_braces(place.expand(word)))


def _head(stage: Node) -> str:
    return (stage.words[0].literal or "").rpartition("/")[2] if isinstance(stage, Simple) and stage.words else ""


def _fixed_content(stage: Node, place: Place) -> str | None:
    if not isinstance(stage, Simple) or stage.assignments:
        return None
    to = streams(stage.redirects)
    words = _words(stage, place)
    if not words or to.out is not None or words[0].literal is None:
        return None
    return fixed_output(words[0].literal, words[1:], to.stdin, place)


def _stage(stage: Node, place: Place, run: StatementReader, piped: bool) -> Operation:
    words = _words(stage, place)
    if (
        isinstance(stage, Simple)
        and words
        and words[0].literal not in (None, "echo", "printf", "bash", "sh", "cd", "set", "export")
    ):
        head = words[0].literal or ""
        folder, _, name = head.rpartition("/")
        head = name if folder in ("/bin", "/usr/bin") else head
        assignments = tuple((name, place.expand(value)) for name, value in stage.assignments)
        words, assignments = unwrapped(words, assignments)
        command = Simple(words, assignments, stage.redirects)
        return simple_operation(words[0].literal or head, command, place, piped)
    if isinstance(stage, Simple) and words and words[0].literal in ("echo", "printf") and not stage.redirects:
        return Operation("say", Line(" ".join(map(word_text, words))), reads=True)
    items = run(stage, place)
    return as_one(items).operation


def _fed(stage: Node, content: str, place: Place, run: StatementReader, piped: bool) -> Operation:
    """A stage that reads fixed text."""
    if content.endswith("\n") and isinstance(stage, Simple) and streams(stage.redirects).stdin is None:
        fed = replace(stage, redirects=(Redirect("<<", heredoc=Heredoc(content, expand=False)), *stage.redirects))
        return _stage(fed, place, run, piped)
    source = Operation("say", Line(f"printf %s {word_text(text_word(content))}"), reads=True)
    return _piped(source, _stage(stage, place, run, piped), False)


def _ignores_input(stage: Node) -> bool:
    """Whether a stage reads something else, or nothing, so that what comes through the pipe is lost."""
    if not isinstance(stage, Simple):
        return False
    return streams(stage.redirects).stdin is not None or _head(stage) in ("true", ":", "echo", "printf")


def _is_identity(stage: Node) -> bool:
    """`cat`, `cat -n`, `nl -ba`, pagers: the same lines again."""
    if not isinstance(stage, Simple) or stage.assignments or _head(stage) not in ("cat", "nl", "less", "more"):
        return False
    to = streams(stage.redirects)
    if to.stdin is not None or to.out is not None or to.odd or to.others or to.crossed or isinstance(to.err, Word):
        return False
    options = [shape(word) for word in stage.words[1:]]
    if _head(stage) == "nl":
        return all(re.fullmatch(r"-(?:ba|b|a|w\d*|s.*|v\d*|n\w*)|a|\d+|\s*", option) for option in options)
    return all(re.fullmatch(r"-[nbuRFX]+|-", option) for option in options)


def _through(current: Operation, stage: Node, place: Place, run: StatementReader, last: bool) -> Operation:
    """One more stage behind an operation."""
    shows = current.reads or current.category in ("test", "execute")
    # The last stage decides how a pipeline ends, and what only cuts out lines ends well.
    ends = current.certain if place.pipefail else True
    if _is_identity(stage) and shows:
        numbers = _head(stage) == "nl" or any("n" in shape(word) for word in _words(stage, place)[1:])
        raw = current.output() + " | cat -n" if numbers else current.raw
        kept = None if numbers else current.kept
        return replace(current, raw=raw, kept=kept, certain=ends, status=current.line + " | cat")
    following = _stage(stage, place, run, piped=not last)
    to = streams(stage.redirects) if isinstance(stage, Simple) and not stage.assignments else None
    keeps = to is None or to.out is not None or to.stdin is not None or isinstance(to.err, Word)
    if to is None or keeps or to.odd or to.others or to.crossed or following.paths:
        return _piped(current, following, False)
    head, inner = _head(stage), following.view
    status = current.line + " | " + following.line
    if inner == View(()) and shows:
        return replace(current, certain=ends, status=status)
    if current.category == "test" and head in _FILTERS and not current.parts:
        return replace(current, certain=ends and inner is not None, status=status)
    if current.reads and head == "sort" and last and _only_orders(_words(stage, place)[1:]):
        return replace(current, raw=current.output() + " | " + following.line, kept=None, certain=ends, status=status)
    view = current.view
    if view is not None and len(view.paths) < 2 and view.tail is None:
        if inner is not None and inner.tail is None:
            lines = View(view.paths, within(view.ranges, inner.ranges))
            return replace(_numbered(viewing(lines), current, following), certain=ends, status=status)
        if inner is not None and view.ranges is None:
            lines = View(view.paths, tail=inner.tail)
            return replace(_numbered(viewing(lines), current, following), certain=ends, status=status)
        again = _reading(view, current.raw is not None, stage, place, run, last)
        if again is not None:
            return again
    return _piped(current, following, ends and inner is not None)


def _numbered(shown: Operation, current: Operation, following: Operation) -> Operation:
    """A part of a view with line numbers has them too."""
    if current.raw is None:
        return shown
    return replace(shown, raw=current.output() + " | " + following.line)


def _only_orders(words: tuple[Word, ...]) -> bool:
    return all(re.fullmatch(r"-[nrVhfdb]+", shape(word)) for word in words)


def _reading(
    view: View, numbered: bool, stage: Node, place: Place, run: StatementReader, last: bool
) -> Operation | None:
    """`cat f | grep x` as `grep x f`."""
    if (
        view.ranges is not None
        or len(view.paths) != 1
        or not isinstance(stage, Simple)
        or _head(stage) not in _TAKES_FILE
    ):
        return None
    path = view.paths[0]
    operand = Redirect("<", target=text_word(path if path.startswith(("/", "~")) else f"{place.root}/{path}"))
    again = _stage(replace(stage, redirects=(operand, *stage.redirects)), place, run, piped=not last)
    if numbered and not (again.category == "search" and re.fullmatch(r"[A-Za-z_|]+", again.detail)):
        return None
    return again if path in again.paths and " < " not in again.line.text else None


def _piped(current: Operation, following: Operation, certain: bool) -> Operation:
    """Both, one behind the other; `certain`: the second cannot fail."""
    # Line numbers do not matter to what only picks lines by their place or counts them.
    by_place = (following.view is not None and current.category != "list") or following.line.text == "wc -l"
    by_place = by_place and current.reads and (current.view is None or len(current.view.paths) < 2)  # or order matters
    line = current.line if by_place else (current.raw or current.line) if following.reads else current.output()
    line = line + (" 2>&1 | " if current.errors and not following.reads else " | ") + following.line
    reads = current.reads and following.reads
    if following.reads or following.category == "execute":
        kept = current if current.reads or following.reads else following
        if following.category in ("create", "append", "modify"):
            kept = following
        detail = kept.detail or line.flat()
        return kept.written(line, detail=detail, reads=reads, certain=certain, idle=False, silent=False, parts=())
    return replace(combine([current, following], line), reads=reads, silent=following.silent)
