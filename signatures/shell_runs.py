"""Commands that run code: python, test runners, installers, and the wrappers around them."""

from __future__ import annotations

import re

from agentgym_rtmc.signatures.shell_edits import written_files
from agentgym_rtmc.signatures.shell_operations import Category, Handler, Operation, path_quote
from agentgym_rtmc.signatures.shell_text import Line, quote, word_text
from agentgym_rtmc.signatures.shell_tree import Word
from agentgym_rtmc.signatures.shell_words import Place, argument, shape

_TEST_FILE = re.compile(
    r"(?:^|/)(?:t|tests?|runtests|run_tests|test_[^/]*|[^/]*_tests?)\.py$|(?:^|/)bin/(?:test|doctest)$"
)
_RUNNERS = re.compile(r"(?:^|/)(?:runtests\.py|manage\.py|bin/test|bin/doctest|setup\.py|run_tests\.py)$")
PYTHON = re.compile(r"python3?")


def is_test_file(path: str) -> bool:
    """Whether running this file runs tests, by its name.

    >>> is_test_file("tests/test_a.py"), is_test_file("t.py"), is_test_file("setup.py")
    (True, True, False)
    """
    return _TEST_FILE.search(path) is not None


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
    body = "\n".join(line.rstrip() for line in code.strip("\n").split("\n"))
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


_PYTEST_SHOWN = re.compile(
    r"-[qvs]+|-r\w+|--(?:quiet|verbose|tb|color|no-header|no-summary|show-capture|durations|durations-min|capture|"
    r"disable-warnings|disable-pytest-warnings|full-trace|code-highlight|verbosity|cache-clear)(?:=.*)?"
)
_PYTEST_VALUED = {"-k", "-m", "-p", "-c", "-o", "-n", "-W", "--tb", "--maxfail", "--deselect", "--ignore", "--rootdir",
                  "--color", "--durations", "--timeout", "--confcutdir", "--capture", "--import-mode", "--junitxml",
                  "--basetemp", "--ds", "-r", "--override-ini", "--verbosity", "--show-capture"}  # fmt: skip


def pytest(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    """Read a pytest call; how much it prints does not matter, which tests it runs does."""
    options: set[str] = set()
    paths: list[str] = []
    fixed: list[str] = []
    index = 0
    while index < len(words):
        word = words[index]
        text = shape(word)
        index += 1
        if text in _PYTEST_VALUED and index < len(words):
            value = words[index]
            index += 1
            if text in ("--tb", "--color", "--durations", "--capture", "-r", "--verbosity", "--show-capture"):
                continue
            if text == "-p" and shape(value) in ("no:cacheprovider", "no:warnings", "no:sugar"):
                continue
            if text == "--maxfail" and shape(value) == "1":
                options.add("-x")
                continue
            if text in ("--deselect", "--ignore", "-c", "--rootdir") and value.literal is not None:
                options.add(f"{text} {place.path_text(value)}")
                continue
            options.add(f"{text} {word_text(value)}")
        elif _PYTEST_SHOWN.fullmatch(text):
            continue
        elif text.startswith("-") and text != "-":
            name, equals, value_text = text.partition("=")
            if word.literal is None:
                return None
            if text in ("-x", "--exitfirst") or text == "--maxfail=1":
                options.add("-x")
            elif text == "--showlocals":
                options.add("-l")
            elif re.fullmatch(r"-[qvsxl]{2,}", text):
                options.update(f"-{letter}" for letter in text[1:] if letter in "xl")
            elif equals and name in ("--deselect", "--ignore", "--rootdir"):
                options.add(f"{name} {path_quote(place.path(value_text))}")
            elif equals and name in _PYTEST_VALUED:
                options.add(f"{name} {quote(value_text)}")
            elif text.startswith("-p") and text[2:] in ("no:cacheprovider", "no:warnings", "no:sugar"):
                continue
            else:
                options.add(quote(text))
        else:
            literal = word.literal
            if literal is None:
                paths.append(place.path_text(word))
                continue
            file, colons, node = literal.partition("::")
            target = place.path(file) + colons + node
            paths.append(quote(target))
            fixed.append(target)
    if not paths and place.directory:
        paths, fixed = [quote(place.directory)], [place.directory]
    if place.directory is None:
        return None
    pieces = ["pytest", *sorted(options), *sorted(set(paths))]
    return Operation("test", Line(" ".join(pieces)), tuple(sorted(set(fixed))), detail=" ".join(sorted(options)))


def runner(path: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    """Read a call of a project's own test runner (`tests/runtests.py`, `bin/test`, `manage.py test`)."""
    kept: list[str] = []
    labels: list[str] = []
    index = 0
    while index < len(words):
        text = shape(words[index])
        word = words[index]
        index += 1
        if re.fullmatch(
            r"(?:-v|--verbosity)(?:=?\d)?|--parallel(?:=\d+)?|--noinput|--no-input|-C|--no-colors|--timing", text
        ):
            if text in ("-v", "--verbosity", "--parallel") and index < len(words) and shape(words[index]).isdigit():
                index += 1
            continue
        if text.startswith("-"):
            if text in ("-k", "--settings", "--tag", "--exclude-tag"):
                if index == len(words):
                    return None
                value = words[index].literal
                kept.append(f"{text}={word_text(words[index])}" if value is None else quote(f"{text}={value}"))
                index += 1
            else:
                kept.append(word_text(word))
        else:
            labels.append(argument(word, place))
    is_test = not path.endswith(("manage.py", "setup.py")) or labels[:1] == ["test"]
    ordered = (
        sorted(set(labels)) if not path.endswith(("manage.py", "setup.py")) else [*labels[:1], *sorted(set(labels[1:]))]
    )
    line = Line(" ".join(["python", quote(path), *sorted(set(kept)), *ordered]))
    return Operation("test" if is_test else "execute", line, (path,), detail=" ".join([*sorted(set(kept)), *ordered]))


def pip(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    """Read a pip call."""
    quiet = {"-q", "--quiet", "-qq", "--disable-pip-version-check", "--no-input", "--progress-bar=off", "-y", "--yes"}
    kept = [argument(w, place) for w in words if shape(w) not in quiet]
    what = kept[:1]
    rest = sorted({"-U" if k == "--upgrade" else k for k in kept[1:]})
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
