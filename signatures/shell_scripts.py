"""Reads a script's structure: lists, groups, loops, directories, variables, `set -e`; simple commands go to handlers.

Invariants: an item list is the script with its own spelling gone. Each item is joined to the one before by `;`, `&&`
or `||`. Statements without effect are dropped, reads in a row are sorted and merged, loops over fixed words unrolled.
"""

from __future__ import annotations

import re
from dataclasses import replace

from agentgym_rtmc.signatures import shell_tree as tree
from agentgym_rtmc.signatures.shell_builtins import leaves
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
    with_status,
)
from agentgym_rtmc.signatures.shell_pipes import read_pipeline
from agentgym_rtmc.signatures.shell_redirects import redirected
from agentgym_rtmc.signatures.shell_simple import read_simple
from agentgym_rtmc.signatures.shell_text import Line, ended, render, structure_line
from agentgym_rtmc.signatures.shell_words import Place, expand_braces

MAX_UNROLLED = 50
MAX_ITEMS = 2000
MAX_STEPS = 10_000
MAX_EXPORTED = 50
"""Bounds on what is read of one script, so that nested loops and long environments cost linear time."""
_ASSIGNS = re.compile(r"assign (\w+)$")
_CHANGES = re.compile(r"(?:assign|compute|unset|cd|pushd|popd)\b")
_STATUS = re.compile(r"\$(?:\?|\{(?:\?|PIPESTATUS)|_\b)")
"""Expansions that see how the command before ended, or what its last word was."""


class Interpreter:
    """Turns a tree into items, following the directory and variables in the given place. For one script."""

    def __init__(self) -> None:
        self._steps = 0

    def script(self, node: tree.Sequence, place: Place) -> list[Item]:
        """Read a whole script."""
        items = _without_unused_assignments(self.sequence(node, place))
        text = script_line(items).flat()
        several = len(items) > 1
        if (
            (several and _STATUS.search(text))
            or (place.nounset and "$" in text)
            or (place.pipefail and several and "|" in text.replace("||", ""))
        ):
            place.refuse()
        return items

    def sequence(self, node: tree.Node, place: Place) -> list[Item]:
        """Read statements in order."""
        if not isinstance(node, tree.Sequence):
            return self.statement(node, place)
        parts: list[tuple[bool, list[Item]]] = []
        guarded, place.unsure = place.unsure, False  # whatever may have failed before: here it has not
        asked, count = place.asked, 0
        for index, (child, background) in enumerate(zip(node.items, node.background, strict=True)):
            checked = place.errexit
            if checked and asked:
                place.refuse()  # where the status is asked for, `set -e` does not end anything
            place.asked = asked and index == len(node.items) - 1
            if place.unsure or place.lost:
                if self._is_idle(child, place):
                    continue
                place.refuse()
            part = self.statement(child, place.copy() if background else place)
            if background:
                part = [replace(_grouped(part), background=True)]
                place.jobs = True
            if checked and part:
                _check_errexit(child, part, place)
            if checked and isinstance(child, tree.Simple):
                place.unsure = False  # had it failed, nothing would follow
            parts.append((checked, part))
            count += len(part)
            if count > MAX_ITEMS:
                place.refuse()
                break
        place.unsure, place.asked = place.unsure or guarded, asked
        ends_well = bool(parts) and _ends_idly(parts[-1][1])
        return _tidy(_joined(parts), ends_well, in_order=asked)

    def _is_idle(self, node: tree.Node, place: Place) -> bool:
        return all(item.operation.idle for item in self.statement(node, replace(place.copy(), strict=False)))

    def statement(self, node: tree.Node, place: Place) -> list[Item]:
        """Read one statement; its first item's joint is `;`."""
        self._steps += 1
        if self._steps > MAX_STEPS or len(place.exported) > MAX_EXPORTED:
            place.refuse()
            return []
        if isinstance(node, tree.Simple):
            return read_simple(node, place, self.sequence)
        if isinstance(node, tree.AndOr):
            return self._and_or(node, place)
        if isinstance(node, tree.Pipeline):
            return [Item(";", read_pipeline(node, place, self.statement))]
        if isinstance(node, tree.Group):
            inside = place.copy() if node.subshell else place
            items = self.sequence(node.body, inside)
            if node.subshell:
                items = _without_unused_assignments(items, _ends_idly(items), place.asked)
                if inside.lost or leaves(node.body) or any(_CHANGES.match(i.operation.detail) for i in items):
                    place.refuse()
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
        asked, place.asked = place.asked, True
        alone = items = self.statement(node.first, place)
        certain = _ends_well(items)
        if len(items) > 1 and not certain and any(item.joint != "&&" for item in items[1:]):
            items = [_grouped(items)]
        items = _without_end(items)
        if all(item.operation.idle for item in items):
            items = []
        for index, (operator, part) in enumerate(node.rest):
            place.asked = asked or index < len(node.rest) - 1
            before = replace(place.copy(), unsure=place.unsure, lost=place.lost)
            added = self.statement(part, place)
            if operator == "||" and certain and not place.unsure:
                place.become(before)
                continue
            nothing = all(item.operation.idle for item in added)
            if not nothing and (before.lost or (before.unsure and operator == "||")):
                place.refuse()
            if (operator == "||" or not certain) and place.differs(before):
                if operator == "||":
                    place.refuse()
                place.unsure = True
            if nothing:
                certain = certain or operator == "||"
                place.lost = place.lost or (before.unsure and operator == "||")
                continue
            sure = _ends_well(added)
            if len(added) > 1 and any(item.joint != "&&" for item in added[1:]) and not (certain and operator == "&&"):
                added = [_grouped(added)]
            added = _without_end(added)
            first = added[0].operation
            # Views of one file succeed and fail together.
            same = first.view is not None and all(
                item.operation.view is not None and item.operation.paths == first.paths for item in items
            )
            joint = ";" if not items or (operator == "&&" and (certain or same)) else operator
            if joint != ";":
                items = [*items[:-1], replace(items[-1], operation=with_status(items[-1].operation))]
            items = [*items, Item(joint, first), *added[1:]]
            certain = sure and (certain or operator == "||")
        place.asked = asked
        if len(items) == 1 and len(alone) > 1:
            items = alone  # nothing was joined to the group
        if certain and not _ends_well(items):
            items = [*items, Item(";", idle())]
        return items or [Item(";", idle())]

    def _for(self, node: tree.For, place: Place) -> list[Item]:
        words = [w for word in node.words for w in expand_braces(place.expand(word))]
        values = [word.literal for word in words]
        loops = _has_loop_control(node.body)
        if node.redirects or loops or len(values) > MAX_UNROLLED or any(value is None for value in values):
            return self._compound(node, place)
        items: list[Item] = []
        asked = place.asked
        for index, value in enumerate(values):
            place.asked = asked and index == len(values) - 1
            if place.lost or (place.unsure and items):
                place.refuse()
            place.variables[node.variable] = value or ""
            items += self.sequence(node.body, place)
            if len(items) > MAX_ITEMS:
                place.refuse()
                break
        name = re.escape(node.variable)
        if any(re.search(rf"\$(?:{name}\b|\{{[#!]?{name}\b)", item.operation.line.flat()) for item in items):
            place.variables.pop(node.variable, None)
            return self._compound(node, place)
        place.asked = asked
        return _tidy(items, _ends_idly(items), in_order=asked) or [Item(";", idle())]

    def _compound(self, node: tree.Node, place: Place) -> list[Item]:
        """A command whose structure stays; its parts are written canonically."""
        parts: list[Operation] = []

        def inner(part: tree.Node) -> Line:
            inside = place.copy()
            inside.asked = id(part) in asked or place.asked
            items = self.sequence(part, inside) or [Item(";", idle())]
            if inside.differs(place.copy()):
                place.refuse()  # whether it happened is known to nobody
            if id(part) in asked:
                last = items[-1].operation
                items = [*items[:-1], replace(items[-1], operation=with_status(last))]
            parts.extend(item.operation for item in items)
            return script_line(items)

        # The parts whose exit status is asked for.
        asked = {id(condition) for condition, _ in node.branches} if isinstance(node, tree.If) else set()
        if isinstance(node, tree.While):
            asked = {id(node.condition)}
        if isinstance(node, tree.Not):
            asked = {id(node.node)}

        redirects: tuple[tree.Redirect, ...] = ()
        if isinstance(node, tree.If | tree.While | tree.For):
            if isinstance(node, tree.For):
                if place.directory and any(word.literal is None for word in node.words):
                    place.refuse()
                node = replace(node, words=tuple(place.expand(word) for word in node.words))
                place.variables.pop(node.variable, None)
            line, redirects = structure_line(node, inner), node.redirects
        elif isinstance(node, tree.Not):
            written = inner(node.node)
            line = Line("! ") + (parts[0].line if len(parts) == 1 else Line("{ " + ended(written) + " }"))
        elif isinstance(node, tree.Verbatim):
            line, redirects = Line(node.text), node.redirects
            place.lost = place.lost or not node.text.startswith("[[")
        else:
            line, place.lost = render(node), True  # a function
        if place.directory and not isinstance(node, tree.If | tree.While | tree.For | tree.Not):
            line = Line(f"( cd {place.path_text_of_directory()} && ") + line + " )"
        operation = combine(parts, line)
        return [Item(";", redirected(operation, redirects, place) if redirects else operation)]


def _check_errexit(child: tree.Node, part: list[Item], place: Place) -> None:
    """Give up under `set -e` where a statement may fail without ending the script, or end it from within."""
    certain = _ends_well(part) if isinstance(child, tree.AndOr) else all(item.operation.certain for item in part)
    plain = isinstance(child, tree.Simple | tree.Pipeline) and len(part) == 1 and not part[0].background
    if not (certain or plain):
        place.refuse()


def _joined(parts: list[tuple[bool, list[Item]]]) -> list[Item]:
    """Put statements together; those read under `set -e` are joined by `&&`."""
    items: list[Item] = []
    well = True
    for checked, part in parts:
        ends_well = _ends_well(part)
        part = [i for i in part if not (checked and i.operation.idle)]
        if not part:
            continue
        if checked and items and not well and not items[-1].background:
            part = [replace(part[0], joint="&&"), *part[1:]]
            items[-1] = replace(items[-1], operation=with_status(items[-1].operation))
        items.extend(part)
        well = ends_well
    return items


def _grouped(items: list[Item]) -> Item:
    """Make one item of a statement list, ending with the exit status it was given with."""
    items = _tidy(items, _ends_idly(items), in_order=True)
    if len(items) > 1:
        items[-1] = replace(items[-1], operation=with_status(items[-1].operation))
    return as_one(items)


def _ends_well(items: list[Item]) -> bool:
    """Whether statements end with exit status 0 whatever happens."""
    return _ends_idly(items) or all(item.operation.certain for item in items)


def _without_end(items: list[Item]) -> list[Item]:
    """The statements without the one that only makes them end well."""
    return items[:-1] if len(items) > 1 and _ends_idly(items) else items


def _ends_idly(items: list[Item]) -> bool:
    """Whether the last statement has no effect, and so makes whatever it ends end well."""
    return not items or (items[-1].operation.idle and items[-1].joint == ";")


def _has_loop_control(node: tree.Node) -> bool:
    return any(
        simple.words and simple.words[0].literal in ("break", "continue") for simple in tree.simple_commands(node)
    )


def _tidy(items: list[Item], ends_well: bool = False, in_order: bool = False) -> list[Item]:
    """Drop statements without effect; sort and merge reads that stand in a row.

    For what asks for the exit status: with `ends_well` one without effect stays at the end, with `in_order` the reads
    at the end stay in their order.
    """
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
    if in_order and not ends_well:
        out.extend(Item(";", operation) for operation in run)
    else:
        flush()
    if out and out[0].joint != ";":
        out[0] = replace(out[0], joint=";")
    if ends_well and out and not (len(out) == 1 and out[0].operation.certain):
        out.append(Item(";", idle()))
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


def _without_unused_assignments(items: list[Item], ends_well: bool = False, in_order: bool = False) -> list[Item]:
    """Drop assignments whose values were put in wherever they are used."""
    kept: list[Item] = []
    for index, item in enumerate(items):
        name = _ASSIGNS.match(item.operation.detail)
        if name is not None:
            use = re.compile(
                rf"\$(?:{name.group(1)}\b|\{{[#!]?{name.group(1)}\b)|\b(?:eval|source|export|declare|local)\b"
            )
            if not any(use.search(later.operation.line.flat()) for later in items[index + 1 :]):
                continue
        kept.append(item)
    return _tidy(kept, ends_well, in_order)
