"""Simple commands: builtins, wrappers and the hand-over to the handlers of the other files."""

from __future__ import annotations

import re
from dataclasses import replace

from agentgym_rtmc.signatures.shell import parse
from agentgym_rtmc.signatures.shell_builtins import assigned, builtin, changes_shell, leaves
from agentgym_rtmc.signatures.shell_content import fixed_output
from agentgym_rtmc.signatures.shell_edits import CHANGES
from agentgym_rtmc.signatures.shell_git import git
from agentgym_rtmc.signatures.shell_operations import Handler, Item, Operation, ScriptReader, View, as_one, idle
from agentgym_rtmc.signatures.shell_options import read_options
from agentgym_rtmc.signatures.shell_redirects import fixed_input, put_in, redirected, streams, writing
from agentgym_rtmc.signatures.shell_runs import PYTHON, RUNS, python, python_code
from agentgym_rtmc.signatures.shell_search import SEARCHES
from agentgym_rtmc.signatures.shell_tests import runner
from agentgym_rtmc.signatures.shell_text import Line, quote, render, word_text
from agentgym_rtmc.signatures.shell_tree import Part, Redirect, Sequence, Simple, Word, simple_commands, text_word
from agentgym_rtmc.signatures.shell_views import VIEWS
from agentgym_rtmc.signatures.shell_words import Place, argument, expand_braces, merge, shape

_WITHOUT_EFFECT = {"PAGER", "GIT_PAGER", "TERM", "NO_COLOR", "LESS", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE",
                   "PIP_DISABLE_PIP_VERSION_CHECK", "PIP_PROGRESS_BAR", "PYTHONIOENCODING", "FORCE_COLOR"}  # fmt: skip
_SHELLS = {"bash", "sh"}
_BINARIES = {"", "/bin", "/usr/bin", "/usr/local/bin"}
_READERS = {"cat", "nl", "head", "tail", "sed", "grep", "egrep", "fgrep", "wc", "awk", "less", "more"}


_SHOWING = {"cat", "nl", "head", "tail", "less", "more"}


def read_simple(node: Simple, place: Place, run: ScriptReader) -> list[Item]:
    """Read a simple command; changes `place` where the command does (cd, variables, `set -e`)."""
    words = tuple(w for word in node.words for w in expand_braces(place.expand(word)))
    assignments = tuple((name, place.expand(value)) for name, value in node.assignments)
    words, assignments = unwrapped(words, assignments)
    command = replace(node, words=words, assignments=assignments)
    if not words:
        return assigned(command, place)
    head = words[0].literal
    if head is None:
        return [Item(";", _other(command, place))]
    folder, _, name = head.rpartition("/")
    # Another interpreter may stand in another folder; the plain tools are the same everywhere.
    if folder in _BINARIES and not name.startswith(("python", "pip", "pytest")):
        head = name or head
    done = builtin(head, words[1:], node, place)
    if done is not None:
        return [Item(";", operation) for operation in done]
    if head in _SHELLS:
        inner = _inner_script(head, words[1:], node, place)
        if inner is not None and not assignments:
            return _run_inside(inner, node.redirects, place, run)
    operation = simple_operation(head, command, place)
    _check_guard(command, operation, place)
    return [Item(";", operation)]


def _check_guard(command: Simple, operation: Operation, place: Place) -> None:
    """Give up where a `cd` that may have failed kept a command from running, and no path of it says so."""
    if place.doubted and place.directory and not operation.idle:
        if any(re.match(r"\.\.(?:/|$)", shape(word)) for word in command.words[1:]):
            return  # named from there
        here = rf"(?:^|[\s'\"=]){re.escape(place.directory)}(?:[/\s'\"]|$)"
        if not re.search(here, operation.line.flat()):
            place.refuse()


def simple_operation(head: str, command: Simple, place: Place, piped: bool = False) -> Operation:
    """The operation of a command with a fixed head (given without its folder) and its redirections."""
    words, redirects, plain = command.words, command.redirects, not command.assignments
    to = streams(redirects)
    content = fixed_output(head, words[1:], to.stdin, place)
    strange = to.odd or bool(to.others) or isinstance(to.err, Word) or (to.crossed and piped)
    if strange and content is not None:
        return _other(command, place, piped)
    if content is not None and plain:
        if isinstance(to.out, Word):
            return writing(content, to.out, to.append, place)
        if not piped and to.out in (None, "null"):
            return idle()
    text = fixed_input(to.stdin, place)
    # Whatever shows the whole of a fixed text is `cat`.
    if content is None and text is not None and plain:
        again = _handled(head, words[1:], place)
        if again is not None and again.view == View(()):
            return simple_operation("cat", replace(command, words=words[:1]), place, piped)
    teed = tee_target(words, redirects) if text is not None and not (piped or strange) else None
    if teed is not None and text is not None:
        return writing(text, *teed, place)
    is_python = PYTHON.fullmatch(head) is not None
    if is_python and text is not None and len(words) <= 2 and all(w.literal == "-" for w in words[1:]):
        operation = python_code(text, place)
        if place.directory:
            operation = operation.wrapped(f"( cd {place.path_text_of_directory()} && ", " )")
        redirects = tuple(r for r in redirects if r.operator not in ("<<", "<<<"))
    else:
        found = _handled(head, words[1:], place)
        feed = to.stdin
        alone = found is not None and found.reads and not found.paths and all(w.literal is not None for w in words)
        if alone and feed is not None and feed.operator == "<" and head in _READERS and not to.odd:
            target = None if feed.target is None else put_in(feed.target, place)
            fixed = target is not None and target.literal is not None
            again = _handled(head, (*words[1:], target), place) if fixed and target is not None else None
            if again is not None and target is not None:
                given = Simple(words, redirects=(replace(feed, target=place.path_word(target)),))
                found = replace(again, kept=render(given))
                redirects = tuple(r for r in redirects if r is not feed)
        if found is None:
            return _other(replace(command, redirects=redirects), place, piped)
        operation = found
        saving = isinstance(to.err, Word) or (to.err == "out" and isinstance(to.out, Word))
        operation = _with_output(operation, words, place, errors=saving)
    operation = _with_environment(operation, command.assignments, place)
    return redirected(operation, redirects, place, piped)


def _with_output(operation: Operation, words: tuple[Word, ...], place: Place, errors: bool) -> Operation:
    """Note the command to the letter where that decides what it says: how much, how paths and errors are spelled."""
    in_full = operation.category == "execute" or (operation.view is not None and not errors)
    if in_full or operation.kept is not None or operation.line.text.startswith("python "):
        return operation
    said = " ".join(map(word_text, words))
    given = Line(f"( cd {place.path_text_of_directory()} && {said} )" if place.directory else said)
    return replace(operation, kept=given, raw=operation.raw if operation.reads else given)


def tee_target(words: tuple[Word, ...], redirects: tuple[Redirect, ...]) -> tuple[Word, bool] | None:
    """The one file that `tee` writes, and whether it appends; None for anything else."""
    if not words or words[0].literal != "tee" or isinstance(streams(redirects).out, Word):
        return None
    operands = [word for word in words[1:] if not shape(word).startswith("-")]
    options = {shape(word) for word in words[1:]} - {shape(word) for word in operands}
    if len(operands) != 1 or not options <= {"-a", "--append"}:
        return None
    return operands[0], bool(options)


def _handled(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    if place.directory is None and head not in ("pip", "pip3", "apt-get", "apt"):
        return None
    if PYTHON.fullmatch(head):
        return python(head, words, place)
    if head == "git":
        return git(head, words, place)
    if head in ("submit", "finish"):
        return Operation("finish", Line(" ".join([head, *map(word_text, words)])))
    for table in (CHANGES, VIEWS, SEARCHES, RUNS):
        handler: Handler | None = table.get(head)
        operation = handler(head, words, place) if handler is not None else None
        if operation is not None:
            return operation
    path = place.path(head) if "/" in head else head
    if path.endswith(("runtests.py", "bin/test", "bin/doctest")) and "/" in head:
        return runner(path, words, place)
    return None


def _other(command: Simple, place: Place, piped: bool = False) -> Operation:
    """A command no handler knows: quotes, paths and redirections are put in order, the rest is kept."""
    words, assignments, redirects = command.words, command.assignments, command.redirects
    if place.directory != "":
        return _elsewhere(command, place)
    texts = [word_text(words[0], head=True)]
    head = words[0].literal
    if head is not None and "/" in head:
        path = place.path(head)
        texts = [quote(path if "/" in path else f"./{path}")]
    texts += [argument(word, place) for word in words[1:]]
    fixed = tuple(place.path(w.literal) for w in words[1:] if w.literal and re.fullmatch(r"[\w./-]+\.\w+", w.literal))
    text = " ".join(texts)
    shows = head in _SHOWING  # files that are not named, but chosen by a pattern
    operation = Operation("view" if shows else "execute", Line(text), fixed, detail=text, reads=shows)
    operation = _with_environment(operation, assignments, place)
    return redirected(operation, redirects, place, piped)


def _elsewhere(command: Simple, place: Place) -> Operation:
    """A command that no handler knows, run in another directory: all of it stays as it is."""
    if changes_shell(command.words[0].literal or ""):
        place.refuse()
    given = {name: text_word(value) for name, value in place.exported.items()} | dict(command.assignments)
    kept = tuple((name, given[name]) for name in sorted(given) if name not in _WITHOUT_EFFECT)
    redirects = tuple(replace(r, target=put_in(r.target, place)) if r.target else r for r in command.redirects)
    line = render(replace(command, assignments=kept, redirects=redirects))
    out = streams(redirects).out
    written = (place.path(out.literal),) if isinstance(out, Word) and out.literal is not None else ()
    if place.directory is not None:
        line = Line(f"( cd {place.path_text_of_directory()} && ") + line + " )"
    return Operation("execute", line, written, detail=line.flat())


def _with_environment(operation: Operation, assignments: tuple[tuple[str, Word], ...], place: Place) -> Operation:
    """Prefix the variables a command runs with, where it is one that can see them."""
    if operation.reads or operation.silent:
        return operation
    given = {name: text_word(value) for name, value in place.exported.items()}
    given.update(assignments)
    names = sorted(name for name in given if name not in _WITHOUT_EFFECT)
    if not names:
        return operation
    prefix = " ".join(f"{name}={word_text(given[name])}" for name in names)
    return operation.wrapped(before=prefix + " ")


def unwrapped(
    words: tuple[Word, ...], assignments: tuple[tuple[str, Word], ...]
) -> tuple[tuple[Word, ...], tuple[tuple[str, Word], ...]]:
    """Take off wrappers that change neither what a command does nor what it shows."""
    while len(words) > 1:
        head = words[0].literal
        following = words[1].literal or ""
        plain = not following.startswith("-")
        # A short time limit may well be met, a long one is a precaution.
        limited = head == "timeout" and re.fullmatch(r"[6-9]\ds?|\d{3,}s?|\d+[mh]", following) is not None
        if head in ("time", "nohup", "builtin", "command") and plain:
            words = words[1:]
        elif len(words) > 2 and (limited or (head == "stdbuf" and not plain)):
            words = words[2:]
        elif head == "env" and words[1].parts and re.match(r"\w+=", words[1].parts[0].text):
            name, _, rest = words[1].parts[0].text.partition("=")
            value = merge([Part("text", rest), *words[1].parts[1:]])
            assignments = (*assignments, (name, value))
            words = (words[0], *words[2:])
        elif head == "env" and not following.startswith("-"):
            words = words[1:]
        else:
            break
    return words, assignments


_NOT_IN_SH = re.compile(
    r"\[\[|<<<|&>|>&\s*[^\s\d-]|\{[^}\s]*(?:,|\.\.)|\$'|\(\(|\bsource\b|\|&|pipefail|\bfunction\b|<\(|=~|\\|\becho\s+-"
)


def _inner_script(head: str, words: tuple[Word, ...], node: Simple, place: Place) -> Sequence | None:
    """The script of `bash -c '…'` or of a here-document for the shell, where it could as well stand outside."""
    options = read_options(words, "", permute=False)
    if options is None:
        return None
    text: str | None = None
    if options.has("c") and options.only("c", "l", "i", "x"):
        text = options.operands[0].literal if len(options.operands) == 1 else None
    elif not options.operands and options.only("s", "l"):
        text = fixed_input(streams(node.redirects).stdin, place)
    if text is None or (head == "sh" and _NOT_IN_SH.search(text)):
        return None
    script = parse(text)
    if script is None or leaves(script):
        return None
    # Variables that nobody gave it are not the ones of the same name outside.
    return None if _expanded(text) - _bound(script) - set(place.exported) else script


def _expanded(text: str) -> set[str]:
    return {name for name in re.findall(r"\$\{?(\w+)", text) if name not in ("PWD", "HOME")}


def _bound(script: Sequence) -> set[str]:
    names = set(re.findall(r"\bfor (\w+)", render(script).flat()))
    for command in simple_commands(script):
        names |= {name for name, _ in command.assignments}
        if command.words and command.words[0].literal == "read":
            names |= {word.literal or "" for word in command.words[1:]}
    return names


def _run_inside(script: Sequence, redirects: tuple[Redirect, ...], place: Place, run: ScriptReader) -> list[Item]:
    """A script of its own shell: it knows exported variables only, and leaves none behind."""
    inner = place.copy()
    inner.variables = dict(inner.exported)
    inner.errexit = inner.pipefail = inner.nounset = False
    items = run(script, inner)
    if inner.lost or any(re.match(r"(?:assign|compute|unset|cd)\b", item.operation.detail) for item in items):
        place.refuse()
    outer = tuple(r for r in redirects if r.operator not in ("<<", "<<<"))
    if not outer:
        return items
    one = as_one(items)
    return [replace(one, operation=redirected(one.operation, outer, place))]
