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
    """Where a command's streams go. Outputs: None = shown, "null", or a word (a file); `append` as for `>>`.

    `err` "out": wherever the output goes. `crossed`: shown alike, but not on the stream a pipe takes (`>&2`,
    `2>&1 > f`). `odd`: in another way than this can say.
    """

    stdin: Redirect | None = None
    out: Word | str | None = None
    append: bool = False
    err: Word | str | None = None
    err_append: bool = False
    crossed: bool = False
    odd: bool = False
    others: tuple[Redirect, ...] = ()


def streams(redirects: tuple[Redirect, ...]) -> Streams:
    """Read redirections from left to right, as the shell does."""
    found = Streams()
    for redirect in redirects:
        operator, fd, target = redirect.operator, redirect.fd, redirect.target
        literal = target.literal if target is not None else None
        if operator in ("<", "<<", "<<<") and fd in (None, 0):
            found.odd = found.odd or found.stdin is not None
            found.stdin = redirect
        elif operator in ("&>", "&>>") or (operator == ">&" and fd is None and not (literal or "").isdigit()):
            found.odd = found.odd or isinstance(found.out, Word) or isinstance(found.err, Word)
            found.out, found.append, found.err = _file(target), operator == "&>>", "out"
        elif operator in (">", ">>", ">|") and fd in (None, 1):
            found.odd = found.odd or isinstance(found.out, Word)  # the first file is made all the same
            if found.err == "out":  # `2>&1 > f` leaves stderr where the output was
                found.crossed, found.err = True, found.out
            found.out, found.append = _file(target), operator == ">>"
            found.crossed = found.crossed or literal in ("/dev/stderr", "/dev/tty")
        elif operator in (">", ">>", ">|") and fd == 2:
            found.odd = found.odd or isinstance(found.err, Word)
            found.err, found.err_append = _file(target), operator == ">>"
            found.crossed = found.crossed or literal == "/dev/stdout"
        elif operator == ">&" and fd == 2 and literal == "1":
            found.odd = found.odd or isinstance(found.err, Word)
            found.err = "out"
        elif operator == ">&" and fd in (None, 1) and literal == "2":
            found.odd = found.odd or isinstance(found.out, Word) or isinstance(found.err, Word)
            if found.err != "out":
                found.out, found.crossed = ("null" if found.err == "null" else None), True
        else:
            found.others = (*found.others, redirect)
    return found


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
    if to.odd or to.others or (to.crossed and piped):
        return _as_given(operation, redirects, to, place)
    result = operation
    if to.stdin is not None:
        result = _with_input(result, to.stdin, place)
    if isinstance(to.out, Word):
        shown = not (result.silent and result.certain) and not (result.reads and result.certain)
        errors = " 2>&1" if to.err == "out" and shown else ""
        if isinstance(to.err, Word):
            errors = _to_file(to.err, to.err_append, place)
        elif to.err == "null" and not (result.reads or result.silent):
            errors = " 2> /dev/null"
        return _into_file(result, to.out, to.append, errors, place)
    if to.out == "null":
        if result.certain and result.reads:
            result = idle()
        elif result.reads and not result.silent:
            result = replace(result.wrapped(after=" > /dev/null"), category="other", view=None, silent=True)
        elif not result.silent and result.category != "test":
            both = " 2>&1" if to.err == "out" else ""
            result = replace(result.wrapped(after=" > /dev/null" + both), silent=bool(both))
    elif to.err == "out" and piped and result.reads and not result.certain:
        result = replace(result, errors=True)
    elif to.err == "out" and piped and not (result.reads or result.silent or result.category == "test"):
        result = result.wrapped(after=" 2>&1")
    if to.err == "null" and not (result.reads or result.silent or result.line.text.startswith("pytest")):
        result = result.wrapped(after=" 2> /dev/null")
    elif isinstance(to.err, Word):
        line = result.output() + _to_file(to.err, to.err_append, place)
        result = result.written(line, reads=False, certain=False, idle=False)
    return result


def _to_file(target: Word, append: bool, place: Place) -> str:
    return f" {'2>>' if append else '2>'} {quote_path(place.path_word(put_in(target, place)))}"


def _as_given(operation: Operation, redirects: tuple[Redirect, ...], to: Streams, place: Place) -> Operation:
    """The operation with redirections that only their own text says."""
    line = operation.output()
    for redirect in redirects:
        if redirect.target is not None and redirect.operator not in ("<<<", ">&", "<&"):
            redirect = replace(redirect, target=place.path_word(put_in(redirect.target, place)))
        line = line + " " + redirect_line(redirect)
    files = [word for word in (to.out, to.err) if isinstance(word, Word) and word.literal is not None]
    paths = tuple(sorted({*operation.paths, *(place.path(word.literal or "") for word in files)}))
    return operation.written(
        line, paths=paths, detail=line.flat(), reads=operation.reads and not files, certain=False, idle=False,
        silent=False, parts=(),
    )  # fmt: skip


def put_in(word: Word, place: Place) -> Word:
    """A redirection's target with variables put in; braces mean nothing there when they make several words."""
    words = expand_braces(place.expand(word))
    return words[0] if len(words) == 1 else word


def _with_input(operation: Operation, redirect: Redirect, place: Place) -> Operation:
    if redirect.target is not None and redirect.operator == "<":
        word = place.path_word(put_in(redirect.target, place))
        line: Line | str = f" < {quote_path(word)}"
        paths = (*operation.paths, word.literal) if word.literal is not None else operation.paths
        return replace(operation.wrapped(after=line), paths=paths, view=None)
    text = fixed_input(redirect, place)
    if text is not None:
        redirect = Redirect("<<", heredoc=Heredoc(text, expand=False))
    elif redirect.target is not None:
        return replace(operation.wrapped(after=f" <<< {word_text(put_in(redirect.target, place))}"), view=None)
    given = operation if text is None else replace(operation, detail=f"{operation.detail}\n{text}")
    return replace(given.wrapped(after=Line(" ") + redirect_line(redirect)), view=None)


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
    line = operation.output() + f" {operator} {quote_path(word)}{errors}"
    if operation.reads and not operation.silent:
        category: Category = "append" if append else "create"
        return operation.written(
            line, category=category, paths=paths, detail=operation.line.flat(), reads=False, certain=False, idle=False,
            silent=True, parts=(),
        )  # fmt: skip
    return operation.written(line, paths=tuple(sorted({*operation.paths, *paths})), certain=False)


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
