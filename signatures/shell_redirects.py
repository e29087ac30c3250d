"""Redirections: what they change of an operation, and what they do not."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentgym_rtmc.signatures.shell_heredocs import Heredoc
from agentgym_rtmc.signatures.shell_operations import Category, Operation, idle
from agentgym_rtmc.signatures.shell_text import Line, quote, redirect_line, word_text
from agentgym_rtmc.signatures.shell_tree import Redirect, Word
from agentgym_rtmc.signatures.shell_words import Place, expand_braces, quote_path


@dataclass
class Streams:
    """Where a command's streams go. Outputs: None = shown, "null", or a word (a file); `append` as for `>>`."""

    stdin: Redirect | None = None
    out: Word | str | None = None
    append: bool = False
    err: Word | str | None = None
    err_append: bool = False
    others: tuple[Redirect, ...] = ()


def streams(redirects: tuple[Redirect, ...]) -> Streams:
    """Read redirections from left to right, as the shell does. `err` "out" means: wherever the output goes."""
    found = Streams()
    for redirect in redirects:
        operator, fd, target = redirect.operator, redirect.fd, redirect.target
        if operator in ("<", "<<", "<<<") and fd in (None, 0):
            found.stdin = redirect
        elif operator in ("&>", "&>>") or (operator == ">&" and fd is None and not _is_number(target)):
            found.out = found.err = _file(target)
            found.append = operator == "&>>"
            found.err = "out"
        elif operator in (">", ">>", ">|") and fd in (None, 1):
            if found.err == "out" and found.out is None:
                found.err = None  # `2>&1 > f` leaves stderr where the output was
            found.out, found.append = _file(target), operator == ">>"
        elif operator in (">", ">>", ">|") and fd == 2:
            found.err, found.err_append = _file(target), operator == ">>"
        elif operator == ">&" and fd == 2 and target is not None and target.literal == "1":
            found.err = "out"
        elif operator == ">&" and fd in (None, 1) and target is not None and target.literal == "2":
            continue
        else:
            found.others = (*found.others, redirect)
    return found


def _is_number(word: Word | None) -> bool:
    return word is not None and (word.literal or "").isdigit()


def _file(word: Word | None) -> Word | str | None:
    literal = word.literal if word is not None else None
    if literal == "/dev/null":
        return "null"
    return None if literal in ("/dev/stdout", "/dev/stderr", "/dev/tty") else word


def redirected(operation: Operation, redirects: tuple[Redirect, ...], place: Place, piped: bool = False) -> Operation:
    """The operation with its redirections; the same object where they change nothing.

    `piped`: its output goes into a pipe, so that `2>&1` decides what the next command sees.
    """
    to = streams(redirects)
    result = operation
    if to.stdin is not None:
        result = _with_input(result, to.stdin, place)
    if isinstance(to.out, Word):
        errors = " 2>&1" if to.err == "out" and not result.silent and not result.reads else ""
        return _into_file(result, to.out, to.append, errors, place)
    if to.out == "null":
        if result.certain and result.reads:
            result = idle()
        elif result.reads and not result.silent:
            result = replace(result, category="other", line=result.line + " > /dev/null", view=None, silent=True)
        elif not result.silent and result.category != "test":
            both = " 2>&1" if to.err == "out" else ""
            result = replace(result, line=result.line + " > /dev/null" + both, silent=bool(both))
    elif to.err == "out" and piped and not (result.reads or result.silent or result.category == "test"):
        result = replace(result, line=result.line + " 2>&1")
    if to.err == "null" and not (result.reads or result.silent or result.line.text.startswith("pytest")):
        result = replace(result, line=result.line + " 2> /dev/null")
    elif isinstance(to.err, Word):
        operator = "2>>" if to.err_append else "2>"
        target = quote_path(place.path_word(put_in(to.err, place)))
        result = replace(result, line=result.line + f" {operator} {target}", reads=False, view=None)
    for other in to.others:
        result = replace(result, line=result.line + " " + redirect_line(other), view=None)
    return result


def put_in(word: Word, place: Place) -> Word:
    """A redirection's target with variables put in; braces mean nothing there when they make several words."""
    words = expand_braces(place.expand(word))
    return words[0] if len(words) == 1 else word


def _with_input(operation: Operation, redirect: Redirect, place: Place) -> Operation:
    if redirect.target is not None and redirect.operator == "<":
        word = place.path_word(put_in(redirect.target, place))
        line: Line | str = f" < {quote_path(word)}"
        paths = (*operation.paths, word.literal) if word.literal is not None else operation.paths
        return replace(operation, line=operation.line + line, paths=paths, view=None)
    text = fixed_input(redirect, place)
    if text is not None:
        redirect = Redirect("<<", heredoc=Heredoc(text, expand=False))
    elif redirect.target is not None:
        return replace(operation, line=operation.line + f" <<< {word_text(put_in(redirect.target, place))}", view=None)
    given = operation if text is None else replace(operation, detail=f"{operation.detail}\n{text}")
    return replace(given, line=given.line + " " + redirect_line(redirect), view=None)


def fixed_input(redirect: Redirect | None, place: Place) -> str | None:
    """The text a here-document or here-string feeds in, where it is fixed and ends in a newline."""
    if redirect is None:
        return None
    if redirect.heredoc is not None:
        body = unescaped(redirect.heredoc)
        return body if body is None or body.endswith("\n") or not body else body + "\n"
    if redirect.operator == "<<<" and redirect.target is not None:
        literal = put_in(redirect.target, place).literal
        return None if literal is None else literal + "\n"
    return None


def unescaped(heredoc: Heredoc) -> str | None:
    """The body as the command sees it; None where the shell would put something in."""
    if not heredoc.expand:
        return heredoc.body
    out: list[str] = []
    position = 0
    body = heredoc.body
    while position < len(body):
        char = body[position]
        if char == "\\" and position + 1 < len(body) and body[position + 1] in "$`\\\n":
            out.append("" if body[position + 1] == "\n" else body[position + 1])
            position += 2
            continue
        following = body[position + 1 : position + 2]
        if char == "`" or (
            char == "$" and (following.isalnum() or following in ("_", "{", "(", "?", "$", "!", "@", "*", "#", "-"))
        ):
            return None
        out.append(char)
        position += 1
    return "".join(out)


def _into_file(operation: Operation, target: Word, append: bool, errors: str, place: Place) -> Operation:
    word = place.path_word(put_in(target, place))
    paths = (word.literal,) if word.literal is not None else ()
    operator = ">>" if append else ">"
    line = (operation.raw or operation.line) + f" {operator} {quote_path(word)}{errors}"
    if operation.reads and not operation.silent:
        category: Category = "append" if append else "create"
        return replace(
            operation, category=category, line=line, paths=paths, detail=operation.line.flat(), view=None,
            reads=False, certain=False, idle=False, silent=True, parts=(), raw=None,
        )  # fmt: skip
    return replace(operation, line=line, paths=tuple(sorted({*operation.paths, *paths})), view=None, certain=False)


def writing(content: str, target: Word, append: bool, place: Place) -> Operation:
    """The operation that puts fixed text into a file."""
    word = place.path_word(put_in(target, place))
    paths = (word.literal,) if word.literal is not None else ()
    operator = ">>" if append else ">"
    path = quote_path(word)
    category: Category = "append" if append else "create"
    if content and not content.endswith("\n"):
        line = Line(f"printf %s {quote(content)} {operator} {path}")
    elif not content:
        line = Line(f"true {operator} {path}")
    else:
        line = Line(f"cat {operator} {path} ") + redirect_line(Redirect("<<", heredoc=Heredoc(content, expand=False)))
    return Operation(category, line, paths, detail=content, silent=True)
