"""Commands that change files: sed -i, perl -i, cp, mv, rm, mkdir, touch, tee, patch, python scripts that write."""

from __future__ import annotations

import ast
import re

from agentgym_rtmc.signatures.shell_operations import Category, Handler, Operation, path_quote
from agentgym_rtmc.signatures.shell_options import option_text, read_options
from agentgym_rtmc.signatures.shell_text import Line, quote, word_text
from agentgym_rtmc.signatures.shell_tree import Word
from agentgym_rtmc.signatures.shell_views import SED_LONG, file_operands
from agentgym_rtmc.signatures.shell_words import Place, shape


def sed_script(script: str) -> str:
    """Write a sed script one way: `s` commands with `/` where nothing needs escaping, no blanks around commands.

    >>> sed_script("s|a|b|g"), sed_script("s#x/y#z#")
    ('s/a/b/g', 's#x/y#z#')
    """
    script = re.sub(r"^(\d+),\1(?=\s*[a-zA-Z])", r"\1", script.lstrip())
    match = re.fullmatch(r"\s*((?:\d+(?:,(?:\d+|\$))?)?)\s*s(.)(.*)\s*", script, re.DOTALL)
    if match is None:
        return script.strip()
    address, delimiter, rest = match.groups()
    if delimiter.isalnum() or delimiter in "\\\n":
        return script.strip()
    pieces = re.split(r"(?<!\\)" + re.escape(delimiter), rest)
    if len(pieces) != 3 or "\\\\" in rest:
        return script.strip()
    old, new, flags = pieces
    if delimiter != "/" and ("/" in old + new or f"\\{delimiter}" in rest):
        return (
            f"{address}s{delimiter}{old}{delimiter}{new}{delimiter}{_flags(flags)}"
            if _is_flags(flags)
            else script.strip()
        )
    return f"{address}s/{old}/{new}/{_flags(flags)}" if _is_flags(flags) else script.strip()


def _is_flags(flags: str) -> bool:
    return re.fullmatch(r"[gGiIpme0-9]*", flags.strip()) is not None


def _flags(flags: str) -> str:
    return "".join(sorted(flags.strip().replace("i", "I")))


def _sed(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    # -i takes its suffix only when attached: "-i.bak", "-i" alone; "-zi" works, "-iE" would mean suffix E.
    options = read_options(words, "efl", ("--expression", "--file"), SED_LONG)
    if options is None or options.has("f"):
        return None
    in_place = next((shape(w) for w in words if re.match(r"-[nEruzs]*i|--in-place", shape(w))), None)
    if in_place is None:
        return None
    suffix = in_place.partition("=")[2] if in_place.startswith("--") else in_place.partition("i")[2]
    clustered = [] if in_place.startswith("--") else list(in_place[1:].partition("i")[0])
    letters = {name for name, value in options.options if value is None and len(name) == 1 and name in "nErz"}
    # Letters behind the i are the suffix, not options.
    letters -= set(suffix) - set(clustered)
    scripts = [value or "" for name, value in options.options if name == "e"]
    operands = options.operands
    if not scripts:
        if not operands or operands[0].literal is None:
            return _dynamic(head, words, place)
        scripts, operands = [operands[0].literal], operands[1:]
    if not operands:
        return None
    script = "\n".join(sed_script(s) for s in scripts)
    flags = "".join(sorted({"E" if letter == "r" else letter for letter in letters}))
    paths = [place.path_text(word) for word in operands]
    fixed = tuple(sorted({place.path(w.literal) for w in operands if w.literal is not None}))
    pieces = [
        "sed",
        *([f"-{flags}"] if flags else []),
        f"-i{quote(suffix) if suffix else ''}",
        quote(script),
        *sorted(set(paths)),
    ]
    inserts = re.fullmatch(r"\s*(?:\d+|\$|/.*/)?\s*[ai]\b.*", script, re.DOTALL) is not None
    detail = (f"-{flags} " if flags else "") + script
    return Operation("insert" if inserts else "modify", Line(" ".join(pieces)), fixed, detail=detail, silent=True)


def _dynamic(head: str, words: tuple[Word, ...], place: Place) -> Operation:
    last = words[-1].literal
    fixed = (place.path(last),) if last is not None else ()
    text = " ".join([head, *map(word_text, words[:-1]), place.path_text(words[-1])])
    return Operation("modify", Line(text), fixed, detail=text, silent=True)


def _perl(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    flags = [shape(w) for w in words if shape(w).startswith("-")]
    if not any(re.match(r"-[0-9a-zA-Z]*i", flag) for flag in flags) or len(words) < 2:
        return None
    return _dynamic(head, words, place)


def _two_paths(category: Category) -> Handler:
    def handle(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
        options = read_options(
            words,
            "tS",
            ("--target-directory",),
            {"--recursive": "r", "--force": "f", "--verbose": "v", "--archive": "a"},
        )
        if options is None or options.has("t", "--target-directory") or len(options.operands) < 2:
            return None
        if head == "ln" and options.has("s"):
            return None  # what a link says is relative to where it lies
        kept = [("r" if name == "R" else name, value) for name, value in options.options if name not in ("f", "v")]
        paths = [place.path_text(word) for word in options.operands]
        fixed = tuple(place.path(w.literal) for w in options.operands if w.literal is not None)
        target = paths[-1] + ("/" if shape(options.operands[-1]).endswith("/") and paths[-1] != "/" else "")
        pieces = [head, *option_text(kept), *sorted(paths[:-1]), target]
        touched = fixed if category == "move" else fixed[-1:]
        return Operation(category, Line(" ".join(pieces)), touched, detail=" ".join(paths), silent=True)

    return handle


def _rm(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    options = read_options(words, aliases={"--recursive": "r", "--force": "f", "--verbose": "v"})
    if options is None or not options.operands:
        return None
    kept = [("r" if name == "R" else name, value) for name, value in options.options if name not in ("f", "v")]
    paths = [place.path_text(word) for word in options.operands]
    paths = paths if head == "rmdir" else sorted(set(paths))
    fixed = tuple(sorted({place.path(w.literal) for w in options.operands if w.literal is not None}))
    forced = Line(" ".join([head, *option_text([*kept, ("f", None)]), *paths])) if options.has("f") else None
    return Operation("delete", Line(" ".join([head, *option_text(kept), *paths])), fixed, silent=True, status=forced)


def _making(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    options = read_options(words, "m", ("--mode",), {"--parents": "p", "--verbose": "v"})
    if options is None or not options.operands or (place.directory and options.has("p")):
        return None  # it would make a directory that was to be entered
    nested = any("/" in (place.path(w.literal) if w.literal is not None else "/") for w in options.operands)
    kept = [o for o in options.options if o[0] != "v" and not (head == "mkdir" and o[0] == "p" and not nested)]
    paths = [place.path_text(word) for word in options.operands]
    if head == "touch" or options.has("p"):  # else a folder may have to be there before the next
        paths = sorted(set(paths))
    fixed = tuple(sorted({place.path(w.literal) for w in options.operands if w.literal is not None}))
    line = Line(" ".join([head, *option_text(kept), *paths]))
    lenient = Line(" ".join([head, *option_text([*kept, ("p", None)]), *paths])) if options.has("p") else None
    return Operation("create", line, fixed, detail=head, silent=True, status=lenient if lenient != line else None)


def _changing_mode(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    if len(words) < 2:
        return None
    paths = [place.path_text(word) for word in words[1:]]
    fixed = tuple(place.path(w.literal) for w in words[1:] if w.literal is not None)
    text = " ".join([head, word_text(words[0]), *sorted(set(paths))])
    return Operation("other", Line(text), fixed, detail="mode", silent=True)


def _patch(head: str, words: tuple[Word, ...], place: Place) -> Operation | None:
    options = read_options(
        words,
        "pidFzo",
        ("--strip", "--input", "--directory"),
        {"--strip": "p", "--input": "i", "--silent": "s", "--quiet": "s"},
    )
    if options is None or options.has("d") or place.directory:
        return None
    kept = [(name, value) for name, value in options.options if name not in ("s", "i", "u")]
    source = options.value("i")
    fed = f" < {path_quote(place.path(source))}" if source else ""
    paths = file_operands(options.operands, place) or ()
    text = " ".join(["patch", *option_text(kept), *map(path_quote, paths)]) + fed
    return Operation("modify", Line(text), paths, detail=text, silent=True)


CHANGES: dict[str, Handler] = {
    "sed": _sed, "perl": _perl, "cp": _two_paths("create"), "mv": _two_paths("move"), "ln": _two_paths("create"),
    "rm": _rm, "rmdir": _rm, "unlink": _rm, "mkdir": _making, "touch": _making, "chmod": _changing_mode,
    "chown": _changing_mode, "patch": _patch,
}  # fmt: skip

_WRITES = re.compile(
    r"\.write_(?:text|bytes)\(|\bopen\([^)]*,\s*(?:mode\s*=\s*)?[frbu]*['\"][rbt]*[wax+]|\.write\(|os\.(?:remove|rename|replace)"
)


def written_files(code: str) -> tuple[str, ...] | None:
    """Files a Python script writes, as far as its own literals tell; None if it writes none.

    >>> written_files("p = 'a.py'\\ns = open(p).read()\\nopen(p, 'w').write(s.replace('x', 'y'))")
    ('a.py',)
    """
    if not _WRITES.search(code):
        return None
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    names: dict[str, str] = {}
    written: set[str] = set()

    def path_of(node: ast.AST | None) -> str | None:
        if isinstance(node, ast.Constant):
            return node.value if isinstance(node.value, str) else None
        if isinstance(node, ast.Name):
            return names.get(node.id)
        if isinstance(node, ast.Call) and node.args:
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in ("Path", "PurePath", "open", "resolve"):
                return path_of(node.args[0])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return path_of(node.func.value)
        return None

    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            path = path_of(node.value)
            if path is not None and "\n" not in path and len(path) < 300:
                names.setdefault(node.targets[0].id, path)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("write_text", "write_bytes"):
            path = path_of(node.func.value)
        elif _called(node) == "open":
            mode = next(
                (k.value for k in node.keywords if k.arg == "mode"), node.args[1] if len(node.args) > 1 else None
            )
            if isinstance(node.func, ast.Attribute) and not isinstance(node.func.value, ast.Name):
                mode, path = node.args[0] if node.args else mode, path_of(node.func.value)
            else:
                path = path_of(node.args[0]) if node.args else None
            if not (isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) & set("wax+")):
                continue
        else:
            continue
        written.add(path if path is not None else "?")
    return tuple(sorted(written)) or None


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
