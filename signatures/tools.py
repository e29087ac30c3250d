"""Structured tool calls as operations: editor tools are read as their shell twins, others by name and arguments.

Invariants: a call with the name of a shell tool and a `command` is that command; two calls that do the same to the same
lines get the same operation as the shell command that does it. Unknown tools keep their name and canonical JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.signatures.shell_commands import DEFAULT_ROOT, read_command
from agentgym_rtmc.signatures.shell_operations import Operation, View, viewing
from agentgym_rtmc.signatures.shell_redirects import writing
from agentgym_rtmc.signatures.shell_text import Line, quote
from agentgym_rtmc.signatures.shell_tree import text_word
from agentgym_rtmc.signatures.shell_words import Place

SHELL_TOOLS = frozenset({"shell", "bash", "run_bash_cmd", "execute_bash", "terminal", "run_command", "execute_command"})
_PATHS = ("file_path", "path", "filename", "file")
_FINISHING = frozenset({"finish", "submit", "done", "exit", "attempt_completion"})


def canonical_call(call: Call, root: str = DEFAULT_ROOT) -> str:
    """Return the canonical text of a call: of its shell twin where it has one, else `name {arguments}`.

    >>> canonical_call(Call(name="show_file", arguments={"file_path": "/testbed/m.py", "start_line": 5, "end_line": 9}))
    'sed -n 5,9p m.py'
    """
    if call.name in SHELL_TOOLS and isinstance(call.arguments.get("command"), str):
        return read_command(str(call.arguments["command"]), root).text
    return "; ".join(operation.line.flat() for operation in read_call(call, root))


def read_call(call: Call, root: str = DEFAULT_ROOT) -> tuple[Operation, ...]:
    """Return what a call does."""
    arguments = call.arguments
    command = arguments.get("command")
    if call.name in SHELL_TOOLS and isinstance(command, str):
        return read_command(command, root).operations
    name = call.name
    if name in ("str_replace_editor", "str_replace_based_edit_tool", "edit_file", "editor") and isinstance(
        command, str
    ):
        name = command
    place = Place(root=root.rstrip("/") or "/")
    path = next((place.path(str(arguments[key])) for key in _PATHS if isinstance(arguments.get(key), str)), None)
    found = _editor(name, path, arguments, place) or _search(name, path, arguments, root)
    if found is not None:
        return found
    if name in _FINISHING:
        return (Operation("finish", Line(name)),)
    if name == "git_diff":
        return read_command("git diff", root).operations
    if name in ("think", "plan", "note"):
        return (Operation("say", Line(name), idle=True, reads=True),)
    if name == "run_tests" and isinstance(arguments.get("test_cmd"), str):
        return read_command(str(arguments["test_cmd"]), root).operations
    given = {k: place.path(v) if k in _PATHS and isinstance(v, str) else v for k, v in arguments.items()}
    text = f"{call.name} {json.dumps(given, sort_keys=True, ensure_ascii=False)}" if arguments else call.name
    return (Operation("execute", Line(text), (path,) if path else (), detail=text),)


def _number(value: Any) -> int | None:
    try:
        return int(str(value))
    except ValueError:
        return None


def _range(arguments: Mapping[str, Any]) -> tuple[int, int | None] | None:
    given = arguments.get("view_range")
    if isinstance(given, Sequence) and not isinstance(given, str) and len(given) == 2:
        first, last = _number(given[0]), _number(given[1])
    else:
        first = _number(arguments.get("start_line", arguments.get("from_line")))
        last = _number(arguments.get("end_line", arguments.get("to_line")))
    if first is None:
        return None
    first = max(1, first)
    return first, None if last is None or last < first else last


def _editor(name: str, path: str | None, arguments: Mapping[str, Any], place: Place) -> tuple[Operation, ...] | None:
    if path is None:
        return None
    target = quote(path)
    if name in ("view", "show_file", "view_file", "read_file", "open_file", "get_file_content"):
        lines = _range(arguments)
        if lines == (1, None):
            lines = None
        return (viewing(View((path,), None if lines is None else (lines,))),)
    if name == "view_around_line":
        line, around = _number(arguments.get("line_number")), _number(arguments.get("context", 10))
        if line is None or around is None:
            return None
        return (viewing(View((path,), ((max(1, line - around), line + around),))),)
    if name in ("create", "create_file", "write_file", "set_file_content"):
        content = next((str(arguments[k]) for k in ("file_text", "content", "text") if k in arguments), "")
        return (writing(content, text_word(path if path.startswith("/") else f"{place.root}/{path}"), False, place),)
    if name == "count_lines":
        return (Operation("inspect", Line(f"wc -l {target}"), (path,), detail="count", reads=True),)
    edit = _line_edit(name, arguments)
    if edit is not None:
        return read_command(f"sed -i {quote(edit)} {quote(path)}", place.root).operations
    edits = {
        "str_replace": "modify", "replace_in_file": "modify", "find_and_replace_text": "modify",
        "replace_between": "modify", "regex_replace_in_file": "modify", "delete_lines": "modify", "insert": "insert",
        "insert_lines_at": "insert", "insert_lines": "insert", "undo_edit": "revert",
    }  # fmt: skip
    category = edits.get(name)
    if category is None:
        return None
    told = {key: value for key, value in arguments.items() if key not in (*_PATHS, "command")}
    detail = json.dumps(told, sort_keys=True, ensure_ascii=False)
    text = Line(f"{name} {target} {detail}")
    return (Operation(category, text, (path,), detail=f"{name} {detail}", silent=True),)  # type: ignore[arg-type]


def _line_edit(name: str, arguments: Mapping[str, Any]) -> str | None:
    """The sed script of a tool that deletes or replaces a range of lines; None for anything else.

    >>> print(_line_edit("replace_in_file", {"from_line": "5", "to_line": 6, "content": "x\\n"}))
    5,6c\\
    x
    """
    if name not in ("delete_lines", "replace_in_file", "replace_lines"):
        return None
    first = _number(arguments.get("from_line", arguments.get("start_line")))
    last = _number(arguments.get("to_line", arguments.get("end_line")))
    if first is None or last is None or not 0 < first <= last:
        return None
    where = str(first) if first == last else f"{first},{last}"
    if name == "delete_lines" or arguments.get("content") == "":
        return f"{where}d"
    content = arguments.get("content", arguments.get("new_content"))
    if not isinstance(content, str):
        return None
    text = content.removesuffix("\n").replace("\\", "\\\\").replace("\n", "\\\n")
    return f"{where}c\\\n{text}"


def _search(name: str, path: str | None, arguments: Mapping[str, Any], root: str) -> tuple[Operation, ...] | None:
    place = next(
        (str(arguments[k]) for k in ("directory", "path", "file_path") if isinstance(arguments.get(k), str)), "."
    )
    pattern = next(
        (str(arguments[k]) for k in ("pattern", "query", "search_term") if isinstance(arguments.get(k), str)), None
    )
    if (
        name in ("search_in_directory", "search_dir", "search_code", "search_in_file", "search_file")
        and pattern is not None
    ):
        regular = str(arguments.get("use_regex", "")).lower() == "true"
        recursive = "" if name in ("search_in_file", "search_file") else "r"
        file_pattern = arguments.get("file_pattern")
        include = f" --include={quote(str(file_pattern))}" if file_pattern else ""
        flags = recursive + ("E" if regular else "F")
        return read_command(f"grep -{flags}{include} -e {quote(pattern)} {quote(place)}", root).operations
    if name in ("find_file", "find_files"):
        wanted = next(
            (str(arguments[k]) for k in ("filename", "file_name", "name_pattern", "pattern") if k in arguments), "*"
        )
        return read_command(f"find {quote(place)} -name {quote(wanted)}", root).operations
    if name in ("list_files", "list_directory"):  # as agents' tools do it: with sizes and hidden files
        return read_command(f"ls -la {quote(place)}", root).operations
    if name == "ls":
        return read_command(f"ls {quote(place)}", root).operations
    return None
