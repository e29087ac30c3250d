"""Reads a script's structure: lists, groups, loops, directories, variables, `set -e`; simple commands go to handlers.

Invariants: an item list is the script with its own spelling gone. Each item is joined to the one before by `;`, `&&`
or `||`. Statements without effect are dropped, reads in a row are sorted and merged, loops over fixed words unrolled.
"""

from __future__ import annotations

import re
from dataclasses import replace

from agentgym_rtmc.signatures import shell_tree as tree
from agentgym_rtmc.signatures.shell_operations import (
    Item,
    Operation,
    View,
    as_one,
    combine,
    idle,
    script_line,
    union,
    viewing,
)
from agentgym_rtmc.signatures.shell_pipes import read_pipeline
from agentgym_rtmc.signatures.shell_redirects import redirected
from agentgym_rtmc.signatures.shell_simple import read_simple
from agentgym_rtmc.signatures.shell_text import Line, render, structure_line
from agentgym_rtmc.signatures.shell_words import Place, expand_braces

MAX_UNROLLED = 50
MAX_ITEMS = 2000


class Interpreter:
    """Turns a tree into items, following the directory and variables in the given place."""

    def script(self, node: tree.Sequence, place: Place) -> list[Item]:
        """Read a whole script."""
        return _without_unused_assignments(self.sequence(node, place))

    def sequence(self, node: tree.Node, place: Place) -> list[Item]:
        """Read statements in order."""
        if not isinstance(node, tree.Sequence):
            return self.statement(node, place)
        parts: list[tuple[bool, list[Item]]] = []
        count = 0
        for child, background in zip(node.items, node.background, strict=True):
            checked = place.errexit
            part = self.statement(child, place.copy() if background else place)
            if background:
                part = [replace(_grouped(part), background=True)]
                place.jobs = True
            parts.append((checked, part))
            count += len(part)
            if count > MAX_ITEMS:
                break
        return _tidy(_joined(parts))

    def statement(self, node: tree.Node, place: Place) -> list[Item]:
        """Read one statement; its first item's joint is `;`."""
        if isinstance(node, tree.Simple):
            return read_simple(node, place, self.sequence)
        if isinstance(node, tree.AndOr):
            return self._and_or(node, place)
        if isinstance(node, tree.Pipeline):
            return [Item(";", read_pipeline(node, place, self.statement))]
        if isinstance(node, tree.Group):
            items = self.sequence(node.body, place.copy() if node.subshell else place)
            return self._redirected(items, node.redirects, place)
        if isinstance(node, tree.For):
            return self._for(node, place)
        if isinstance(node, tree.Sequence):
            return self.sequence(node, place)
        return self._compound(node, place)

    def _redirected(self, items: list[Item], redirects: tuple[tree.Redirect, ...], place: Place) -> list[Item]:
        if not redirects:
            return items
        quiet = [redirected(item.operation, redirects, place) for item in items]
        if all(q is item.operation for q, item in zip(quiet, items, strict=True)):
            return items
        one = _grouped(items)
        return [replace(one, operation=redirected(one.operation, redirects, place))]

    def _and_or(self, node: tree.AndOr, place: Place) -> list[Item]:
        alone = items = self.statement(node.first, place)
        sure = all(item.operation.certain for item in items)
        if len(items) > 1 and not sure and any(item.joint != "&&" for item in items[1:]):
            items = [_grouped(items)]
        certain = all(item.operation.certain for item in items)
        if all(item.operation.idle for item in items):
            items = []
        for operator, part in node.rest:
            before = place.copy()
            added = self.statement(part, place)
            if operator == "||" and certain:
                place.become(before)
                continue
            nothing = all(item.operation.idle for item in added)
            if nothing:
                certain = certain or operator == "||"
                continue
            if len(added) > 1 and any(item.joint != "&&" for item in added[1:]) and not (certain and operator == "&&"):
                added = [_grouped(added)]
            sure = all(item.operation.certain for item in added)
            first = added[0].operation
            # Views of one file succeed and fail together.
            same = first.view is not None and all(
                item.operation.view is not None and item.operation.paths == first.paths for item in items
            )
            joint = ";" if not items or (operator == "&&" and (certain or same)) else operator
            items = [*items, Item(joint, first), *added[1:]]
            certain = sure and (certain or operator == "||")
        if len(items) == 1 and len(alone) > 1:
            items = alone  # nothing was joined to the group
        return _mark_certain(items, certain) if items else [Item(";", idle())]

    def _for(self, node: tree.For, place: Place) -> list[Item]:
        words = [w for word in node.words for w in expand_braces(place.expand(word))]
        values = [word.literal for word in words]
        loops = _has_loop_control(node.body)
        if node.redirects or loops or len(values) > MAX_UNROLLED or any(value is None for value in values):
            return self._compound(node, place)
        saved = place.variables.get(node.variable)
        items: list[Item] = []
        for value in values:
            place.variables[node.variable] = value or ""
            items += self.sequence(node.body, place)
            if len(items) > MAX_ITEMS:
                break
        if saved is not None:
            place.variables[node.variable] = saved
        name = re.escape(node.variable)
        if any(re.search(rf"\$(?:{name}\b|\{{[#!]?{name}\b)", item.operation.line.flat()) for item in items):
            place.variables.pop(node.variable, None)
            return self._compound(node, place)
        return _tidy(items) or [Item(";", idle())]

    def _compound(self, node: tree.Node, place: Place) -> list[Item]:
        """A command whose structure stays; its parts are written canonically."""
        parts: list[Operation] = []

        def inner(part: tree.Node) -> Line:
            items = self.sequence(part, place.copy()) or [Item(";", idle())]
            parts.extend(item.operation for item in items)
            return script_line(items)

        redirects: tuple[tree.Redirect, ...] = ()
        if isinstance(node, tree.If | tree.While | tree.For):
            if isinstance(node, tree.For):
                node = replace(node, words=tuple(place.expand(word) for word in node.words))
                place.variables.pop(node.variable, None)
            line, redirects = structure_line(node, inner), node.redirects
        elif isinstance(node, tree.Not):
            line = Line("! ") + inner(node.node)
        elif isinstance(node, tree.Verbatim):
            line, redirects = Line(node.text), node.redirects
        else:
            line = render(node)
        if place.directory and not isinstance(node, tree.If | tree.While | tree.For | tree.Not):
            line = Line(f"( cd {place.path_text_of_directory()} && ") + line + " )"
        operation = combine(parts, line)
        return [Item(";", redirected(operation, redirects, place) if redirects else operation)]


def _joined(parts: list[tuple[bool, list[Item]]]) -> list[Item]:
    """Put statements together; those read under `set -e` are joined by `&&` where that says the same."""
    parts = [one for checked, part in parts for one in _split(checked, part)]
    plain = all(len(part) == 1 and not part[0].background for checked, part in parts if checked)
    items: list[Item] = []
    marked = False
    for checked, part in parts:
        if checked and not plain and not marked:
            items.append(Item(";", Operation("other", Line("set -e"), detail="set -e")))
            marked = True
        part = [i for i in part if not (plain and checked and i.operation.idle)]
        if not part:
            continue
        if checked and plain and items and not items[-1].background and not items[-1].operation.certain:
            part = [replace(part[0], joint="&&"), *part[1:]]
        items.extend(part)
    return items


def _grouped(items: list[Item]) -> Item:
    """Make one item of a statement list."""
    return as_one(_tidy(items))


def _split(checked: bool, part: list[Item]) -> list[tuple[bool, list[Item]]]:
    """Statements that only stand one after the other are statements of their own."""
    if all(item.joint == ";" for item in part):
        return [(checked, [item]) for item in part]
    return [(checked, part)]


def _mark_certain(items: list[Item], certain: bool) -> list[Item]:
    """Note on the last item that the list it ends cannot fail."""
    if not certain:
        return items
    last = items[-1]
    return [*items[:-1], replace(last, operation=replace(last.operation, certain=True))]


def _has_loop_control(node: tree.Node) -> bool:
    return any(
        simple.words and simple.words[0].literal in ("break", "continue") for simple in tree.simple_commands(node)
    )


def _tidy(items: list[Item]) -> list[Item]:
    """Drop statements without effect; sort and merge reads that stand in a row."""
    chains: list[list[Item]] = []
    for item in items:
        if item.joint == ";" or not chains:
            chains.append([item])
        else:
            chains[-1].append(item)
    chains = [chain for chain in chains if not (len(chain) == 1 and chain[0].operation.idle)]
    out: list[Item] = []
    run: list[Operation] = []

    def flush() -> None:
        out.extend(Item(";", operation) for operation in _merged(run))
        run.clear()

    for chain in chains:
        only = chain[0]
        if len(chain) == 1 and only.operation.reads and not only.background:
            run.append(only.operation)
        else:
            flush()
            out.extend(chain)
    flush()
    if out and out[0].joint != ";":
        out[0] = replace(out[0], joint=";")
    return out


def _merged(reads: list[Operation]) -> list[Operation]:
    if len(reads) < 2:
        return list(reads)
    views: dict[str, list[View]] = {}
    others: dict[str, Operation] = {}
    whole: set[str] = set()
    for operation in reads:
        view = operation.view
        if view is not None and view.paths and view.ranges is None and view.tail is None:
            whole.update(view.paths)
        elif view is not None and len(view.paths) == 1 and view.tail is None:
            views.setdefault(view.paths[0], []).append(view)
        else:
            others[operation.line.flat()] = operation
    shown = [viewing(View(tuple(sorted(whole))))] if whole else []
    for path, group in views.items():
        if path not in whole:
            shown.append(viewing(View((path,), union([r for view in group for r in view.ranges or ()]))))
    for operation in shown:
        others[operation.line.flat()] = operation
    return [others[text] for text in sorted(others)]


def _without_unused_assignments(items: list[Item]) -> list[Item]:
    """Drop assignments whose values were put in wherever they are used."""
    kept: list[Item] = []
    for index, item in enumerate(items):
        name = re.fullmatch(r"assign (\w+)", item.operation.detail)
        if name is not None:
            use = re.compile(
                rf"\$(?:{name.group(1)}\b|\{{[#!]?{name.group(1)}\b)|\b(?:eval|source|export|declare|local)\b"
            )
            if not any(use.search(later.operation.line.flat()) for later in items[index + 1 :]):
                continue
        kept.append(item)
    return _tidy(kept)
