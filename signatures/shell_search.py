"""Commands that look for text or files: grep and its kin, find, ls, wc."""

from __future__ import annotations

import re

from agentgym_rtmc.signatures.shell_operations import Handler, Operation
from agentgym_rtmc.signatures.shell_options import option_text, read_options
from agentgym_rtmc.signatures.shell_text import Line, quote, word_text
from agentgym_rtmc.signatures.shell_tree import Word
from agentgym_rtmc.signatures.shell_words import Place, argument, quote_path, shape

GREP_LONG = {
    "--line-number": "n", "--recursive": "r", "--dereference-recursive": "R", "--ignore-case": "i",
    "--extended-regexp": "E", "--fixed-strings": "F", "--basic-regexp": "G", "--perl-regexp": "P", "--regexp": "e",
    "--word-regexp": "w", "--line-regexp": "x", "--files-with-matches": "l", "--files-without-match": "L",
    "--count": "c", "--invert-match": "v", "--only-matching": "o", "--max-count": "m", "--with-filename": "H",
    "--no-filename": "h", "--no-messages": "s", "--quiet": "q", "--silent": "q", "--after-context": "A",
    "--before-context": "B", "--context": "C", "--file": "f", "--text": "a", "--null": "Z",
    "--name-only": "l", "--max-depth": "--max-depth",
}  # fmt: skip
_GREP_VALUED = ("--regexp", "--file", "--max-count", "--after-context", "--before-context", "--context", "--include",
                "--exclude", "--exclude-dir", "--max-depth")  # fmt: skip

_LITERAL = re.compile(r"[\w\s\-/:,\"'=<>@#%&~;!]*")


_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\[[:=.].*?[:=.]\]|[^\]])*\]|.", re.DOTALL)
"""An escape, a bracket expression, or a character."""


def extended(pattern: str, dialect: str) -> str | None:
    """Write a pattern in the extended syntax: from basic `G`, extended `E`, fixed `F` or Perl `P`; None if it cannot.

    >>> extended(r"foo\\|bar(", "G"), extended("a.b", "F"), extended(r"\\d+", "P")
    ('foo|bar\\\\(', 'a\\\\.b', None)
    """
    if _LITERAL.fullmatch(pattern):
        return pattern
    if dialect == "E":
        return pattern
    if dialect == "F":
        return re.sub(r"([\\.^$*+?{}()\[\]|])", r"\\\1", pattern)
    if dialect == "P":
        # Where both syntaxes agree: no backslash classes, no (?…), no lazy or possessive quantifiers.
        same = re.fullmatch(r"(?:[^\\]|\\[.^$*+?{}()\[\]|bwWsS])*", pattern)
        return pattern if same and not re.search(r"\(\?|[*+?}][?+]|\[[^\]]*\\|\{,", pattern) else None
    out: list[str] = []
    for token in _TOKEN.findall(pattern):
        if token in (r"\(", r"\)", r"\{", r"\}", r"\|", r"\+", r"\?"):
            out.append(token[1])
        elif token in "(){}|+?":
            out.append("\\" + token)
        elif token == "*" and (not out or out[-1] in ("(", "|", "^")):
            out.append("\\*")
        else:
            out.append(token)
    return "".join(out)


def alternatives(pattern: str) -> list[str]:
    """Split an extended pattern at its outermost `|`."""
    out, depth, current = [], 0, ""
    for token in _TOKEN.findall(pattern):
        depth += (token == "(") - (token == ")")
        if token == "|" and depth == 0:
            out.append(current)
            current = ""
        else:
            current += token
    return [*out, current]


FILE_NAME = re.compile(
    r"\w\.(?:py|pyx|pyi|c|h|cc|cpp|js|ts|go|rs|txt|rst|md|cfg|toml|ini|json|ya?ml|html|css|sh|patch|diff)$"
)
"""Names that only files have."""
_EQUAL_FLAGS = {"n": None, "H": None, "s": None, "y": "i", "R": "r"}


def _grep(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    in_git = head == "git grep"
    # A number by itself is a context: grep -3 = grep -C 3.
    options = read_options(words, "efmABCd", _GREP_VALUED, GREP_LONG)
    if options is None or options.has("f", "--exclude-from", "--open-files-in-pager", "O", "--and", "--or", "--not"):
        return None
    if options.has("--include") and options.has("--exclude"):
        return None  # the last that matches a name decides
    dialect = {"egrep": "E", "fgrep": "F"}.get(head, "G")
    looks: list[tuple[str, str | None]] = []
    patterns: list[str] = []
    kept: list[tuple[str, str | None]] = []
    for name, value in options.options:
        if name in ("E", "F", "G", "P"):
            dialect = name
        elif name == "e":
            patterns.append(value or "")
        elif name in _EQUAL_FLAGS:
            if (flag := _EQUAL_FLAGS[name]) is not None:
                kept.append((flag, None))
        elif name in ("--color", "--colour", "--no-color", "--line-buffered"):
            if value == "always":
                looks.append(("--color", value))
        elif name == "--binary-files" and value == "without-match":
            kept.append(("I", None))
        elif name == "C" and value is not None:
            kept += [("A", value), ("B", value)]
        elif name.isdigit():
            return None
        else:
            kept.append((name, value))
    operands = options.operands
    if not patterns:
        if not operands:
            return None
        first = operands[0]
        if first.literal is None:
            return _dynamic_grep(head, kept, dialect, operands, place, in_git)
        patterns, operands = [first.literal], operands[1:]
    if dialect == "P" and any(name == "o" for name, _ in kept):
        return None  # which part of a line matches depends on the dialect
    converted = [extended(line, dialect) for pattern in patterns for line in pattern.split("\n")]
    if operands and all(FILE_NAME.search(word.literal or "") for word in operands):
        kept = [option for option in kept if option[0] != "r"]  # nothing lies below a file
    recursive = in_git or any(name == "r" for name, _ in kept)
    paths = [place.path_text(word) for word in operands]
    if recursive and not paths:
        paths = ["."] if not place.directory else [quote(place.directory)]
    if all(text is not None for text in converted):
        spread = [part for text in converted for part in alternatives(text or "")]
        literal = all(_LITERAL.fullmatch(part) for part in spread) and len(set(spread)) == 1
        pattern = "|".join(sorted(set(spread)))
        if not literal:
            kept.append(("E", None))
        shown = [pattern]
    else:
        kept.append((dialect, None))
        shown = sorted(set(patterns))
        pattern = "\n".join(shown)
    if not operands and not recursive:
        paths = []
    base = head.replace("egrep", "grep").replace("fgrep", "grep").split()
    simple = len(shown) == 1 and not shown[0].startswith("-")
    rest = [quote(shown[0])] if simple else [f"-e {quote(text)}" for text in shown]
    rest += sorted(set(paths))
    line = Line(" ".join([*base, *option_text(kept), *rest]))
    looks += [(name, None) for name, _ in options.options if name in ("n", "H")]
    raw = Line(" ".join([*base, *option_text([*kept, *looks]), *rest])) if looks else None
    fixed = [place.path(word.literal) for word in operands if word.literal is not None]
    scope = tuple(sorted(set(fixed))) or ((place.directory or ".",) if recursive else ())
    quiet = any(name == "q" for name, _ in kept)
    return Operation("search", line, scope, detail=pattern, reads=True, silent=quiet, raw=raw)


def _dynamic_grep(
    head: str, kept: list[tuple[str, str | None]], dialect: str, operands: tuple[Word, ...], place: Place, in_git: bool
) -> Operation:
    """A grep whose pattern holds an expansion."""
    recursive = in_git or any(name == "r" for name, _ in kept)
    paths = [place.path_text(word) for word in operands[1:]]
    if recursive and not paths:
        paths = [quote(place.directory or ".")]
    flags = [*kept, (dialect, None)] if dialect != "G" else kept
    pattern = word_text(operands[0])
    base = head.replace("egrep", "grep").replace("fgrep", "grep")
    line = " ".join([*base.split(), *option_text(flags), pattern, *sorted(set(paths))])
    return Operation("search", Line(line), (), detail=pattern, reads=True)


_FIND_LEADING = ("-L", "-H", "-P")
_FIND_EFFECTS = {"-exec", "-execdir", "-ok", "-okdir", "-delete", "-fprint", "-fprintf", "-fls"}


def _find(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    index = 0
    paths: list[str] = []
    fixed: list[str] = []
    leading: list[str] = []
    while index < len(words) and shape(words[index]) in _FIND_LEADING:
        if shape(words[index]) != "-P":
            leading.append(shape(words[index]))
        index += 1
    while index < len(words):
        text = shape(words[index])
        if text.startswith("-") or text in ("(", ")", "!", ","):
            break
        paths.append(place.path_text(words[index]))
        if words[index].literal is not None:
            fixed.append(place.path(text))
        index += 1
    if not paths:
        paths, fixed = [quote(place.directory or ".")], [place.directory or "."]
    tests: list[str] = []
    bounds: list[str] = []
    effects = False
    # Where something else is done than printing, and between alternatives, printing has its place.
    grouped = any(t in _FIND_EFFECTS | {"-o", "-or", ",", "-prune", "-quit", "-print0", "-ls", "-printf"} for t in
                  map(shape, words))  # fmt: skip
    while index < len(words):
        word = words[index]
        text = shape(word)
        effects = effects or text in _FIND_EFFECTS
        if text in ("-maxdepth", "-mindepth") and index + 1 < len(words):
            bounds.append(f"{text} {word_text(words[index + 1])}")
            index += 2
            continue
        if text in ("-a", "-and", "-print") and not grouped and (text != "-print" or index == len(words) - 1):
            index += 1
            continue
        spelled = {"-not": "!", "-or": "-o"}.get(text)
        tests.append(quote(spelled) if spelled else word_text(word))
        index += 1
    pieces = ["find", *leading, *sorted(set(paths)), *sorted(bounds), *tests]
    if effects:
        return Operation("delete" if "-delete" in tests else "execute", Line(" ".join(pieces)), tuple(fixed))
    return Operation("list", Line(" ".join(pieces)), tuple(sorted(set(fixed))), detail=" ".join(tests), reads=True)


_LS_LONG = {"--all": "a", "--almost-all": "a", "--recursive": "R", "--human-readable": "h", "--classify": "F",
            "--directory": "d", "--reverse": "r"}  # fmt: skip


_LS_ORDER = frozenset([*"FphtSUrvXCxm", "--sort", "--group-directories-first"])


def _ls(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    options = read_options(words, "IwT", ("--ignore", "--hide", "--sort"), _LS_LONG)
    if options is None:
        return None
    kept: list[tuple[str, str | None]] = []
    looks: list[tuple[str, str | None]] = []
    for name, value in options.options:
        # How names are laid out, sorted or coloured shows the same names; -l, -a, -d, -R, -s and the rest do not.
        if name in _LS_ORDER or (name == "--color" and value in (None, "always")):
            looks.append((name, value))
        elif name not in ("1", "--color"):
            kept.append(("a" if name == "A" else name, value))
    paths = [place.path_text(word) for word in options.operands]
    fixed = [place.path(word.literal) for word in options.operands if word.literal is not None]
    if not paths:
        paths, fixed = [quote(place.directory or ".")], [place.directory or "."]
    here = paths == ["."]
    rest = [] if here else sorted(set(paths))
    line = Line(" ".join(["ls", *option_text(kept), *rest]))
    raw = Line(" ".join(["ls", *option_text([*kept, *looks]), *rest])) if looks else None
    return Operation("list", line, tuple(sorted(set(fixed))), reads=True, certain=here, raw=raw)


def _wc(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    options = read_options(words, "", (), {"--lines": "l", "--words": "w", "--bytes": "c", "--chars": "m"})
    if options is None:
        return None
    paths = [place.path_text(word) for word in options.operands]
    fixed = tuple(sorted({place.path(w.literal) for w in options.operands if w.literal is not None}))
    pieces = ["wc", *option_text(options.options), *sorted(paths)]
    return Operation("inspect", Line(" ".join(pieces)), fixed, detail="count", reads=True)


_TAKES_PATHS = {"file", "stat", "du", "tree", "diff", "cmp", "md5sum", "sha1sum", "sha256sum", "xxd", "od", "hexdump",
                "strings"}  # fmt: skip


def _looking(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    """Commands that only show: file, stat, du, tree, which, diff, md5sum, sort, uniq, cut, tr, column …"""
    if place.directory and head not in _TAKES_PATHS:
        return None
    pieces = [head]
    fixed: list[str] = []
    for word in words:
        literal = word.literal
        if literal is not None and head in _TAKES_PATHS and not literal.startswith("-"):
            fixed.append(place.path(literal))
            pieces.append(quote_path_text(place, word))
        else:
            pieces.append(argument(word, place) if head == "test" and not place.directory else word_text(word))
    if head == "sort" and any(shape(w).startswith(("-o", "--output")) for w in words):
        return None
    return Operation("inspect", Line(" ".join(pieces)), tuple(fixed), detail=head, reads=True)


def quote_path_text(place: Place, word: Word) -> str:
    """A path operand as canonical text."""
    return quote_path(place.path_word(word))


SEARCHES: dict[str, Handler] = {
    "grep": _grep, "egrep": _grep, "fgrep": _grep, "zgrep": _grep, "git grep": _grep,
    "find": _find, "ls": _ls, "wc": _wc,
    **dict.fromkeys(
        ["file", "stat", "du", "df", "tree", "which", "whereis", "type", "diff", "cmp", "md5sum", "sha1sum",
         "sha256sum", "xxd", "od", "hexdump", "strings", "sort", "uniq", "cut", "tr", "column", "tac", "rev", "comm",
         "basename", "dirname", "realpath", "readlink", "env", "printenv", "uname", "id", "hostname", "date", "locale",
         "jq", "test", "rg", "ag", "ack"],
        _looking,
    ),
}  # fmt: skip
