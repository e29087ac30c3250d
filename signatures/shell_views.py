"""Commands that show lines of files: cat, nl, head, tail, sed -n, awk on line numbers, pagers."""

from __future__ import annotations

import re
from dataclasses import replace

from agentgym_rtmc.signatures.shell_operations import Handler, Operation, Range, View, union, viewing
from agentgym_rtmc.signatures.shell_options import Options, read_options
from agentgym_rtmc.signatures.shell_text import Line, quote
from agentgym_rtmc.signatures.shell_tree import Word, text_word
from agentgym_rtmc.signatures.shell_words import Place, shape


def file_operands(words: tuple[Word, ...], place: Place) -> tuple[str, ...] | None:
    """Normalised operands, none for standard input (`-`). None: one is not fixed text, or `-` is one of several."""
    paths: list[str] = []
    for word in words:
        literal = word.literal
        if literal is None or (literal == "-" and len(words) > 1):
            return None
        if literal != "-":
            paths.append(place.path(literal))
    return tuple(paths)


def _plain(options: Options | None, place: Place, allowed: str, numbered: bool = False) -> Operation | None:
    if options is None or not options.only(*allowed):
        return None
    paths = file_operands(options.operands, place)
    return None if paths is None else viewing(View(paths), numbered)


_CAT_LONG = {"--number": "n", "--number-nonblank": "b", "--show-all": "A", "--show-ends": "E", "--show-tabs": "T",
             "--squeeze-blank": "s", "--show-nonprinting": "v"}  # fmt: skip


def _cat(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    options = read_options(words, aliases=_CAT_LONG)
    if options is None:
        return None
    # Line numbers add nothing; -A, -e, -t, -v, -E, -T show white space, which is something else.
    return _plain(options, place, "nbu", options.has("n", "b"))


def _nl(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    options = read_options(words, "bdfhilnsvw", ("--body-numbering", "--number-width"), {"--body-numbering": "b"})
    if options is None or any(name == "b" and value not in ("a", "t") for name, value in options.options):
        return None
    return _plain(options, place, "bnsvwi", numbered=True)


def _pager(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    options = read_options(words)
    if options is None or any(shape(word).startswith("+") for word in options.operands):
        return None
    return _plain(options, place, "NRSFX", options.has("N"))


def _head(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    first = words[0].literal if words else None
    if first is not None and re.fullmatch(r"-\d+", first):
        words = (text_word("-n"), text_word(first[1:]), *words[1:])
    count, paths = _count_and_paths(words, place)
    if paths is None or not re.fullmatch(r"\d+", count) or int(count) == 0:
        return None
    return viewing(View(paths, ((1, int(count)),)))


def _tail(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    count, paths = _count_and_paths(_old_count(words), place)
    if paths is None:
        return None
    if re.fullmatch(r"\+\d+", count):
        first = max(1, int(count[1:]))
        if first == 1 and len(paths) > 1:
            return None  # it names the files, unlike cat
        return viewing(View(paths, None if first == 1 else ((first, None),)))
    if re.fullmatch(r"-?\d+", count) and int(count.lstrip("-")) > 0:
        return viewing(View(paths, tail=int(count.lstrip("-"))))
    return None


def _count_and_paths(words: tuple[Word, ...], place: Place) -> tuple[str, tuple[str, ...] | None]:
    """What `head` or `tail` is given; no paths where they are not fixed, or something else is asked for."""
    options = read_options(words, "nc", ("--lines", "--bytes"), {"--lines": "n", "--bytes": "c", "--quiet": "q"})
    if options is None or not options.only("n", "q") or (options.has("q") and len(options.operands) > 1):
        return "", None
    return options.value("n") or "10", file_operands(options.operands, place)


def _old_count(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Spell `-20` and `+20` as `-n 20` and `-n +20`; with several files that is no option of `tail`."""
    if words and len(words) < 3 and (match := re.fullmatch(r"-(\d+)|(\+\d+)", words[0].literal or "")):
        return (text_word("-n"), text_word(match.group(1) or match.group(2)), *words[1:])
    return words


_ADDRESS = re.compile(r"\s*(\d+)\s*(?:,\s*(\+?\d+|\$)\s*)?(?:p|\{\s*p\s*;?\s*\})\s*")
_QUIT = re.compile(r"\s*(\d+)\s*q\s*")


def sed_ranges(script: str) -> list[Range] | None:
    """Line ranges that `sed -n script` prints, or None when the script does anything else.

    >>> sed_ranges("5,9p;20p"), sed_ranges("5,$p"), sed_ranges("/x/p")
    ([(5, 9), (20, 20)], [(5, None)], None)
    """
    ranges: list[Range] = []
    limit: int | None = None
    for piece in re.split(r"[;\n](?![^{]*\})", script):
        if not piece.strip():
            continue
        if quits := _QUIT.fullmatch(piece):
            limit = int(quits.group(1))
            continue
        match = _ADDRESS.fullmatch(piece)
        if match is None and piece.strip() == "p":
            ranges.append((1, None))
            continue
        if match is None and piece.strip() == "$p":
            return None
        if match is None or int(match.group(1)) == 0:
            return None
        first = int(match.group(1))
        end = match.group(2)
        if end is None:
            ranges.append((first, first))
        elif end == "$":
            ranges.append((first, None))
        elif end.startswith("+"):
            ranges.append((first, first + int(end[1:])))
        else:
            ranges.append((first, max(first, int(end))))
    if limit is not None:
        ranges = [(a, limit if b is None else min(b, limit)) for a, b in ranges if a <= limit]
    return ranges or None


def _sed(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    options = read_options(words, "efl", ("--expression", "--file"), SED_LONG)
    if options is None or not options.only("n", "e", "E", "r", "u", "l"):
        return None
    scripts = [value or "" for name, value in options.options if name == "e"]
    operands = options.operands
    if not scripts:
        if not operands or operands[0].literal is None:
            return None
        scripts, operands = [operands[0].literal], operands[1:]
    paths = file_operands(operands, place)
    if paths is None:
        return None
    script = "\n".join(scripts)
    ranges: list[Range] | None = None
    if options.has("n"):
        ranges = sed_ranges(script)
        if ranges is None and script.strip() == "$p" and len(paths) < 2:
            return viewing(View(paths, tail=1))
    elif quits := _QUIT.fullmatch(script):
        ranges = [(1, int(quits.group(1)))]
    elif kept := re.fullmatch(r"\s*(\d+)\s*,\s*(\d+|\$)\s*!\s*d\s*", script):
        ranges = sed_ranges(f"{kept.group(1)},{kept.group(2)}p")
    if ranges is not None and len(paths) < 2:
        shown = viewing(View(paths, union(ranges)))
        if not _overlap(ranges):
            return shown
        again = ";".join(f"{first},{'$' if last is None else last}p" for first, last in ranges)  # lines shown twice
        return replace(shown, raw=Line(" ".join(["sed", "-n", quote(again), *map(quote, paths)])))
    given = {"E" if name == "r" else name for name, _ in options.options}
    flags = "".join(sorted(given & {"n", "E"}))
    pieces = ["sed", *(["-" + flags] if flags else []), quote(script), *(path for path in map(quote, paths))]
    return Operation("view", Line(" ".join(pieces)), paths, detail=script, reads=not re.search(r"\bw\b|e\s*$", script))


def _overlap(ranges: list[Range]) -> bool:
    reached = 0
    for first, last in sorted(ranges, key=lambda r: r[0]):
        if first <= reached:
            return True
        reached = 10**12 if last is None else last
    return False


SED_LONG = {"--quiet": "n", "--silent": "n", "--expression": "e", "--in-place": "i", "--regexp-extended": "E",
            "--file": "f", "--separate": "s", "--null-data": "z", "--unbuffered": "u"}  # fmt: skip

_AWK_TEST = re.compile(
    r"NR\s*==\s*(?P<one>\d+)|NR\s*>=?\s*\d+\s*&&\s*NR\s*<=?\s*\d+|NR\s*<=?\s*\d+\s*&&\s*NR\s*>=?\s*\d+"
    r"|NR\s*==\s*\d+\s*,\s*NR\s*==\s*\d+|NR\s*>=?\s*\d+|NR\s*<=?\s*\d+"
)
_AWK_PRINT = re.compile(r"\{\s*print(?:f?\s*\(?.*\$0\s*\)?)?\s*;?\s*\}")


def awk_range(program: str) -> list[Range] | None:
    """The lines an awk program on line numbers prints, or None.

    >>> awk_range("NR>=5 && NR<=9 {print NR\\": \\"$0}"), awk_range("NR==3"), awk_range("{print $1}")
    ([(5, 9)], [(3, 3)], None)
    """
    program = program.strip()
    test, _, action = program.partition("{")
    test = test.strip().strip("()").strip()
    if action and not _AWK_PRINT.fullmatch("{" + action):
        return None
    if not test:
        return [(1, None)] if action else None
    if not _AWK_TEST.fullmatch(test):
        return None
    if single := re.fullmatch(r"NR\s*==\s*(\d+)(?:\s*,\s*NR\s*==\s*(\d+))?", test):
        first = int(single.group(1))
        return [(first, max(first, int(single.group(2) or first)))] if first else None
    low, high = 1, None
    for operator, number in re.findall(r"NR\s*([<>]=?)\s*(\d+)", test):
        value = int(number)
        if operator.startswith(">"):
            low = value + (operator == ">")
        else:
            high = value - (operator == "<")
    low = max(1, low)
    return [(low, high)] if high is None or high >= low else None


def _awk(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    if not words or words[0].literal is None:
        return None
    paths = file_operands(words[1:], place)
    ranges = awk_range(words[0].literal)
    if ranges is None or paths is None or len(paths) > 1 or any(re.match(r"-|\w+=", p) for p in paths):
        return None
    return viewing(View(paths, union(ranges)))


VIEWS: dict[str, Handler] = {
    "cat": _cat, "nl": _nl, "less": _pager, "more": _pager, "head": _head, "tail": _tail, "sed": _sed,
    "awk": _awk, "gawk": _awk, "mawk": _awk,
}  # fmt: skip
