"""Commands of the shell itself: what they say, and what they change for the commands after them."""

from __future__ import annotations

import re

from agentgym_rtmc.signatures.shell_operations import Item, Operation, idle
from agentgym_rtmc.signatures.shell_redirects import redirected, streams, writing
from agentgym_rtmc.signatures.shell_text import Line, render, word_text
from agentgym_rtmc.signatures.shell_tree import Node, Redirect, Simple, Word, simple_commands
from agentgym_rtmc.signatures.shell_words import Place, shape

_IDLE = {"true", ":", "pwd", "clear", "date", "whoami", "hostname"}
_WAITING = {"sleep", "wait"}
_SUBMITTING = re.compile(r"COMPLETE_TASK_AND_SUBMIT|MINI_SWE_AGENT_FINAL_OUTPUT")
_LOSING = {"eval", "source", ".", "trap", "alias", "unalias", "shopt", "declare", "typeset", "local", "readonly", "let",
           "mapfile", "readarray", "getopts", "enable", "hash", "umask", "ulimit", "exec", "shift"}  # fmt: skip
"""What they do to the commands after them is not followed."""
_LEAVING = {"exit", "return", "exec", "set", "trap", "eval", "source", ".", "kill", "shift"}
_CHANGING = {"cd", "pushd", "popd", "set", "export", "unset", "read"}
_SEEN_BY_ALL = {"PATH", "HOME", "IFS", "PWD", "OLDPWD", "CDPATH", "PYTHONPATH", "LANG", "LC_ALL", "TMPDIR", "GIT_DIR",
                "BASH_ENV", "GLOBIGNORE"}  # fmt: skip
"""Variables that are exported already, or that the shell itself heeds."""


def builtin(head: str, words: tuple[Word, ...], node: Simple, place: Place) -> list[Operation] | None:
    """The operations of a command of the shell; None if this is none of them, or none that is read in full."""
    to = streams(node.redirects)
    plain = not (to.odd or to.others or isinstance(to.out, Word) or isinstance(to.err, Word))
    if head in _LOSING or (not plain and head in _CHANGING):
        place.lost = True
        if place.directory:
            place.refuse()
        return None
    if head in _IDLE and plain and not (words and head in ("hostname", "date")):
        return [] if not node.assignments else [idle()]
    if head in _WAITING and not node.redirects and not place.jobs:
        return []
    if head in ("cd", "pushd", "popd"):
        return _entered(head, words, place)
    if head == "set":
        return _set(words, place)
    if head == "export":
        return _export(words, place)
    if head in ("unset", "read"):
        for word in words:
            place.variables.pop(word.literal or "", None)
            place.exported.pop(word.literal or "", None)
        if head == "read" and place.directory:
            place.refuse()
        return [_said(head, words)] if head == "unset" else None
    if head in ("echo", "printf") and plain:
        if words and _SUBMITTING.search(words[0].literal or ""):
            return [Operation("finish", Line(" ".join([head, *map(word_text, words)])), certain=True)]
        if all(_harmless(word) for word in words) and "-v" not in map(shape, words[:1]):
            return []
        operation = Operation("say", Line(" ".join([head, *map(word_text, words)])), reads=True, certain=True)
        return [redirected(operation, node.redirects, place)]
    return None


def changes_shell(head: str) -> bool:
    """Whether a command means something to the shell it stands in, and nothing in one of its own."""
    return head in _LOSING or head in _CHANGING or head in _LEAVING


def leaves(node: Node) -> bool:
    """Whether a script may end its own shell early, so that it cannot stand in another one's place."""
    commands = (node,) if isinstance(node, Simple) else simple_commands(node)
    return any(c.words and c.words[0].literal in _LEAVING for c in commands)


def _said(head: str, words: tuple[Word, ...]) -> Operation:
    return Operation("other", Line(" ".join([head, *map(word_text, words)])), detail=head)


def _entered(head: str, words: tuple[Word, ...], place: Place) -> list[Operation]:
    given = [word for word in words if shape(word) not in ("-P", "-L", "--")]
    target = given[0].literal if given else "~"
    if len(given) > 1 or (head == "pushd" and not given):
        place.lost = True
    old = place.directory
    if head == "popd":
        place.directory, place.stack = (place.stack[0], place.stack[1:]) if place.stack else (None, ())
        place.previous = old
    else:
        place.enter("~" if target is None else target)
        place.stack = (old, *place.stack) if head == "pushd" else place.stack
    return [_said(head, words)] if target is None or place.directory is None else []


def _set(words: tuple[Word, ...], place: Place) -> list[Operation] | None:
    letters: list[tuple[bool, str]] = []
    texts = iter([shape(word) for word in words])
    for text in texts:
        if text[:1] not in ("-", "+") or len(text) < 2:
            place.lost = True
            return None
        letters += [(text[0] == "-", letter if letter != "o" else next(texts, "")) for letter in text[1:]]
    for on, letter in letters:
        if letter in ("e", "errexit"):
            place.errexit = on
        elif letter in ("u", "nounset"):
            place.nounset = place.nounset or on
        elif letter == "pipefail":
            place.pipefail = place.pipefail or on
        elif letter not in ("x", "v", "xtrace", "verbose"):
            place.lost = True
            return None
    return []


def _harmless(word: Word) -> bool:
    """Whether printing the word shows nothing that was not known."""
    return all(
        part.kind == "text"
        or (part.kind == "expand" and part.script is None and re.fullmatch(r"\$(?:[?$#!]|\{\?\})", part.text))
        for part in word.parts
    )


def _export(words: tuple[Word, ...], place: Place) -> list[Operation] | None:
    for word in words:
        name, equals, value = (word.literal or "").partition("=")
        if not re.fullmatch(r"\w+", name) or (not equals and name not in place.variables):
            place.lost = True
            return None
        place.exported[name] = value if equals else place.variables[name]
        place.variables[name] = place.exported[name]
    return []


def assigned(node: Simple, place: Place) -> list[Item]:
    """The operations of a command without words: assignments, redirections."""
    if node.assignments and any(r.target is not None and r.operator not in (">&", "<&") for r in node.redirects):
        place.lost = True  # a file is made or looked for as well
        return [Item(";", Operation("other", render(node), detail=render(node).flat()))]
    operations: list[Operation] = []
    for name, value in node.assignments:
        literal = value.literal
        if name in _SEEN_BY_ALL:
            place.lost = True
        if literal is not None:
            place.variables[name] = literal
            if name in place.exported:
                place.exported[name] = literal
            line = Line(f"{name}={word_text(value)}")
            operations.append(Operation("other", line, detail=f"assign {name}", certain=True))
        else:
            place.lost = place.lost or name in place.exported
            place.variables.pop(name, None)
            operations.append(Operation("other", Line(f"{name}={word_text(value)}"), detail=f"compute {name}"))
    if not node.assignments:
        return [Item(";", _only_redirects(node.redirects, place))]
    return [Item(";", operation) for operation in operations]


def _only_redirects(redirects: tuple[Redirect, ...], place: Place) -> Operation:
    to = streams(redirects)
    if isinstance(to.out, Word):
        return writing("", to.out, to.append, place)
    return idle()
