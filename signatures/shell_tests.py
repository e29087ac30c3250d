"""Commands that run tests: pytest and projects' own runners. Which tests run counts, not how much is printed."""

from __future__ import annotations

import re

from agentgym_rtmc.signatures.shell_operations import Operation, path_quote
from agentgym_rtmc.signatures.shell_text import Line, quote, word_text
from agentgym_rtmc.signatures.shell_tree import Word, text_word
from agentgym_rtmc.signatures.shell_words import Place, argument, shape

_TEST_FILE = re.compile(
    r"(?:^|/)(?:t|tests?|runtests|run_tests|test_[^/]*|[^/]*_tests?)\.py$|(?:^|/)bin/(?:test|doctest)$"
)


def is_test_file(path: str) -> bool:
    """Whether running this file runs tests, by its name.

    >>> is_test_file("tests/test_a.py"), is_test_file("t.py"), is_test_file("setup.py")
    (True, True, False)
    """
    return _TEST_FILE.search(path) is not None


_SHOWN = re.compile(
    r"-[qvs]+|-r\w+|--(?:quiet|verbose|tb|color|no-header|no-summary|show-capture|durations|durations-min|capture|"
    r"disable-warnings|disable-pytest-warnings|full-trace|code-highlight|verbosity|cache-clear)(?:=.*)?"
)
_SHOWN_VALUED = {"--tb", "--color", "--durations", "--capture", "-r", "--verbosity", "--show-capture"}
_LAST_WINS = {"-k", "-m", "-c", "-n", "--maxfail", "--rootdir", "--confcutdir", "--timeout", "--import-mode", "--ds",
              "--junitxml", "--basetemp"}  # fmt: skip
_IN_ORDER = {"-W", "-o", "-p", "--override-ini", "--pythonwarnings"}
_COLLECTED = {"--deselect", "--ignore"}
_PATHS = {"--deselect", "--ignore", "-c", "--rootdir", "--confcutdir", "--junitxml", "--basetemp"}
_VALUED = _SHOWN_VALUED | _LAST_WINS | _IN_ORDER | _COLLECTED
_PLUGINS = ("no:cacheprovider", "no:warnings", "no:sugar")
"""Plug-ins that may be off without another test being run."""


def pytest(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    """Read a pytest call; None where an option is not fixed text."""
    if place.directory is None:
        return None
    last: dict[str, str] = {}
    ordered: list[str] = []
    others: set[str] = set()
    paths: list[str] = []
    fixed: list[str] = []
    given = list(words)
    while given:
        word = given.pop(0)
        text = shape(word)
        if _SHOWN.fullmatch(text):
            continue
        if not text.startswith("-") or text == "-":
            file, colons, node = (word.literal or "").partition("::")
            target = place.path(file) + colons + node
            paths.append(place.path_text(word) if word.literal is None else quote(target))
            fixed += [] if word.literal is None else [target]
            continue
        if word.literal is None:
            return None
        name, equals, rest = text.partition("=")
        value: Word | None = text_word(rest) if equals else None
        if text[:2] in _VALUED and text[1] != "-":  # one letter, its value attached or next
            name, value = text[:2], text_word(text[2:]) if text[2:] else None
        if name in _VALUED and value is None:
            if not given:
                return None
            value = given.pop(0)
        if name in _SHOWN_VALUED or (name == "-p" and value is not None and shape(value) in _PLUGINS):
            continue
        if value is None:
            for flag in (f"-{letter}" for letter in text[1:]) if re.fullmatch(r"-[qvsxl]+", text) else (text,):
                if flag in ("-x", "--exitfirst"):
                    last["--maxfail"] = "1"
                elif flag not in ("-q", "-v", "-s"):
                    others.add("-l" if flag == "--showlocals" else quote(flag))
            continue
        written = place.path_text(value) if name in _PATHS else word_text(value)
        if name in _LAST_WINS:
            last[name] = written
        elif name in _IN_ORDER:
            ordered.append(f"{name} {written}")
        else:
            others.add(f"{name} {written}" if name in _COLLECTED else quote(text))
    if not paths and place.directory:
        paths, fixed = [path_quote(place.directory)], [place.directory]
    stops = "--maxfail" in last or any(other.startswith(("--sw", "--stepwise")) for other in others)
    singles = ["-x" if item == ("--maxfail", "1") else " ".join(item) for item in last.items()]
    options = [*sorted([*others, *singles]), *ordered]
    # Where the first failure ends the run, the order decides which tests are run.
    targets = list(dict.fromkeys(paths)) if stops else sorted(set(paths))
    line = Line(" ".join(["pytest", *options, *targets]))
    return Operation("test", line, tuple(sorted(set(fixed))), detail=" ".join(options))


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
    if not any(option.startswith(("--failfast", "-x", "-f", "--first")) for option in kept):
        tests = labels if not path.endswith(("manage.py", "setup.py")) else labels[1:]
        labels = [*labels[: len(labels) - len(tests)], *sorted(set(tests))]
    line = Line(" ".join(["python", quote(path), *sorted(set(kept)), *labels]))
    return Operation("test" if is_test else "execute", line, (path,), detail=" ".join([*sorted(set(kept)), *labels]))
