"""Commands that run code: python and installers."""

from __future__ import annotations

import re

from agentgym_rtmc.signatures.shell_edits import written_files
from agentgym_rtmc.signatures.shell_operations import Category, Handler, Operation
from agentgym_rtmc.signatures.shell_tests import is_test_file, pytest, runner
from agentgym_rtmc.signatures.shell_text import Line, quote, word_text
from agentgym_rtmc.signatures.shell_tree import Word
from agentgym_rtmc.signatures.shell_words import Place, argument, shape

_RUNNERS = re.compile(r"(?:^|/)(?:runtests\.py|manage\.py|bin/test|bin/doctest|setup\.py|run_tests\.py)$")
PYTHON = re.compile(r"python3?")


def python(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    """Read a call of the Python interpreter."""
    index = 0
    flags: list[str] = []
    while index < len(words):
        text = shape(words[index])
        if text in ("-u", "-B", "-q", "-bb"):
            index += 1
        elif text in ("-c", "-m", "-") or not text.startswith("-"):
            break
        elif text in ("-W", "-X") and index + 1 < len(words):
            flags.append(f"{text} {word_text(words[index + 1])}")
            index += 2
        else:
            flags.append(word_text(words[index]))
            index += 1
    rest = words[index:]
    start = " ".join(["python", *sorted(flags)])
    if place.directory and (not rest or rest[0].literal in ("-", "-c")):
        return None
    if not rest:
        return Operation("execute", Line(start))
    first = rest[0].literal
    if first == "-m" and len(rest) > 1 and rest[1].literal is not None:
        return _module(start, rest[1].literal, rest[2:], place)
    if first == "-c" and len(rest) > 1:
        code = rest[1].literal
        if code is None:
            return Operation("execute", Line(" ".join([start, *map(word_text, rest)])), detail=shape(rest[1]))
        return python_code(code, place, start, rest[2:])
    if first == "-":
        return Operation("execute", Line(" ".join([start, *map(word_text, rest)])))
    if first is None:
        return Operation("execute", Line(" ".join([start, place.path_text(rest[0]), *map(word_text, rest[1:])])))
    path = place.path(first)
    if _RUNNERS.search(path):
        return runner(path, rest[1:], place)
    if place.directory != "":
        return None  # the script may look for files beside it: the directory matters
    category: Category = "test" if is_test_file(path) else "execute"
    arguments = [argument(word, place) for word in rest[1:]]
    return Operation(category, Line(" ".join([start, quote(path), *arguments])), (path,), detail=" ".join(arguments))


def python_code(code: str, place: Place, start: str = "python", arguments: tuple[Word, ...] = ()) -> Operation:
    """The operation of a piece of Python code, however it reached the interpreter."""
    body = code.strip("\n")
    if '"""' not in body and "'''" not in body:  # else white space at a line's end may be text
        body = "\n".join(line.rstrip() for line in body.split("\n"))
    line = Line(" ".join([start, "-c", quote(body), *map(word_text, arguments)]))
    written = written_files(code)
    if written is None:
        return Operation("execute", line, detail=body)
    paths = tuple(sorted({place.path(path) for path in written if path != "?"}))
    return Operation("modify", line, paths, detail=body)


def _module(start: str, module: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    if module in ("pytest", "py.test"):
        return pytest("pytest", words, place) if start == "python" else None
    if module == "unittest":
        kept = [word_text(w) for w in words if shape(w) not in ("-v", "-q", "--verbose", "--quiet", "-b", "--buffer")]
        if place.directory != "":
            return None
        labels = tuple(k for k in kept if not k.startswith("-"))
        said = Line(" ".join([start, "-m unittest", *map(word_text, words)]))
        return Operation("test", Line(" ".join([start, "-m unittest", *kept])), labels, raw=said, kept=said)
    if module == "pip":
        return pip("pip", words, place)
    if place.directory != "":
        return None
    arguments = [argument(word, place) for word in words]
    category: Category = "test" if module in ("doctest", "nose", "trial") else "execute"
    return Operation(category, Line(" ".join([start, "-m", quote(module), *arguments])), detail=f"-m {module}")


def pip(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    """Read a pip call."""
    quiet = {"-q", "--quiet", "-qq", "--disable-pip-version-check", "--no-input", "--progress-bar=off", "-y", "--yes"}
    kept = [argument(w, place) for w in words if shape(w) not in quiet]
    what = kept[:1]
    rest = ["-U" if k == "--upgrade" else k for k in kept[1:]]
    if not any(k.startswith("-") and k != "-U" for k in rest):  # else a name may belong to the option before it
        rest = sorted(set(rest))
    line = Line(" ".join(["pip", *what, *rest]))
    if what and what[0] in ("show", "list", "freeze", "index", "download", "--version"):
        return Operation("inspect", line, detail="pip", reads=what[0] != "download")
    return Operation("install", line, detail=" ".join(rest))


def _tox(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    kept = [argument(w, place) for w in words if shape(w) not in ("-q", "-v", "-qq", "-vv")]
    return Operation("test", Line(" ".join([head, *kept])), detail=" ".join(kept))


def _apt(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    kept = [word_text(w) for w in words if shape(w) not in ("-q", "-qq", "-y", "--yes", "-yq")]
    return Operation("install", Line(" ".join([head, *kept])), detail=" ".join(kept))


RUNS: dict[str, Handler] = {
    "pytest": pytest, "py.test": pytest, "pip": pip, "pip3": pip, "tox": _tox, "nox": _tox,
    "apt": _apt, "apt-get": _apt, "conda": _apt, "npm": _apt,
}  # fmt: skip
