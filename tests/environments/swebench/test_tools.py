"""The tools and the editor over a real sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentgym_rtmc.calls import Call
from agentgym_rtmc.calls.tools import render_results
from agentgym_rtmc.environments.sandbox.base import SandboxSpec
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.environments.swebench.editor import MAX_BYTES, Editor
from agentgym_rtmc.environments.swebench.tools import RepositoryTools
from agentgym_rtmc.errors import ProtocolError, SandboxUnavailableError, ToolError

TEXT = b"def f():\n    return 1\n\n\ndef g():\n    return 2\n"


@pytest.fixture
def testbed() -> Iterator[LocalSandbox]:
    """A sandbox with a small repository at /testbed, where official images have theirs."""
    try:
        made = LocalSandbox(SandboxSpec(workdir="/testbed"))
    except SandboxUnavailableError as error:
        pytest.skip(f"no sandbox on this machine: {str(error).splitlines()[0]}")
    with made:
        made.write("pkg/m.py", TEXT)
        made.write("run.sh", b"#!/bin/sh\necho hi\n", 0o755)
        made.write("docs/a/b/deep.txt", b"x")
        made.write(".hidden/x", b"x")
        assert made.exec(["ln", "-s", "/etc/passwd", "out"]).code == 0
        assert made.exec(["ln", "-s", "pkg", "alias"]).code == 0
        yield made


@pytest.fixture
def editor(testbed: LocalSandbox) -> Editor:
    return Editor(testbed)


def test_viewing(editor: Editor, testbed: LocalSandbox) -> None:
    assert editor.view("pkg/m.py") == editor.view("/testbed/pkg/m.py")
    assert editor.view("pkg/m.py").split("\n")[1] == "     2\t    return 1" and editor.view("pkg/m.py").count("\n") == 5
    assert editor.view("pkg/m.py", [5, -1]) == "     5\tdef g():\n     6\t    return 2"
    assert editor.view("pkg/m.py", [6, 99]) == "     6\t    return 2"
    for folder in (".", "/testbed", "/testbed/"):
        assert editor.view(folder).split("\n") == [
            "files in /testbed, two levels deep:",
            *(f"/testbed/{path}" for path in ("alias", "docs", "docs/a", "out", "pkg", "pkg/m.py", "run.sh")),
        ]
    assert (
        editor.view("docs/a")
        == "files in /testbed/docs/a, two levels deep:\n/testbed/docs/a/b\n/testbed/docs/a/b/deep.txt"
    )
    testbed.write("empty", b"")
    testbed.write("bytes", b"caf\xe9\r\nx")
    assert editor.view("empty") == "[the file is empty]" and editor.view("bytes") == "     1\tcaf\ufffd\n     2\tx"


@pytest.mark.parametrize(
    ("path", "complaint"),
    [
        ("nosuch.py", "there is no file nosuch.py"),
        ("/etc/passwd", "lies outside the workspace"),
        ("../x", r"climbs with '\.\.'"),
        ("out", "link"),
        ("alias/m.py", "link"),
        ("pkg/m.py/x", "pkg/m.py/x"),
        ("", "the workspace itself"),
        ("a\0b", "NUL"),
    ],
)
def test_what_is_no_file_of_the_repository(editor: Editor, testbed: LocalSandbox, path: str, complaint: str) -> None:
    with pytest.raises(ToolError, match=complaint):
        editor.str_replace(path, "a", "b")
    if path:
        with pytest.raises(ToolError, match=complaint):
            editor.view(path)
    if "link" in complaint:
        # The file behind a link is neither shown nor changed; a link at the very place is replaced by a file.
        with pytest.raises(ToolError):
            editor.insert(path, 0, "x")
        assert testbed.read("pkg/m.py") == TEXT


def test_replacing(editor: Editor, testbed: LocalSandbox) -> None:
    said = editor.str_replace("pkg/m.py", "    return 2\n", "    x = 2\n    return x\n")
    assert testbed.read("pkg/m.py") == TEXT.replace(b"    return 2\n", b"    x = 2\n    return x\n")
    assert said.split("\n")[0] == "edited pkg/m.py" and "     6\t    x = 2\n     7\t    return x" in said
    with pytest.raises(ToolError, match=r"occurs 2 times in pkg/m.py \(lines 2, 7\)"):
        editor.str_replace("pkg/m.py", "    return ", "")
    with pytest.raises(ToolError, match=r"does not occur in pkg/m.py"):
        editor.str_replace("pkg/m.py", "return 3", "")
    with pytest.raises(ToolError, match="nothing would change"):
        editor.str_replace("pkg/m.py", "x = 2", "x = 2")
    with pytest.raises(ToolError, match="old_str is empty"):
        editor.str_replace("pkg/m.py", "", "x")


def test_line_ends_bytes_and_bits_survive(editor: Editor, testbed: LocalSandbox) -> None:
    testbed.write("w.txt", b"a\r\ncaf\xe9\r\nb\r\n")
    editor.str_replace("w.txt", "a\n", "A\nB\n")
    editor.insert("w.txt", 3, "C\nD")
    assert testbed.read("w.txt") == b"A\r\nB\r\ncaf\xe9\r\nC\r\nD\r\nb\r\n"
    editor.str_replace("run.sh", "hi", "ho")
    assert testbed.exec(["./run.sh"]).stdout == "ho\n", "it is still executable"
    editor.undo_edit("run.sh")
    assert testbed.exec(["./run.sh"]).stdout == "hi\n"


@pytest.mark.parametrize(
    ("before", "line", "new", "after"),
    [
        (b"a\nb\n", 0, "x", b"x\na\nb\n"),
        (b"a\nb\n", 1, "x\n", b"a\nx\nb\n"),
        (b"a\nb\n", 2, "x", b"a\nb\nx\n"),
        (b"a\nb", 2, "x", b"a\nb\nx\n"),
        (b"a\nb", 1, "x", b"a\nx\nb"),
        (b"", 0, "x", b"x\n"),
        (b"\n", 1, "", b"\n\n"),
    ],
)
def test_inserting(editor: Editor, testbed: LocalSandbox, before: bytes, line: int, new: str, after: bytes) -> None:
    testbed.write("f", before)
    editor.insert("f", line, new)
    assert testbed.read("f") == after
    for wrong in (-1, 99):
        with pytest.raises(ToolError, match=r"insert_line must lie between 0 and \d+, the number of lines of f"):
            editor.insert("f", wrong, "x")


def test_creating_and_undoing(editor: Editor, testbed: LocalSandbox) -> None:
    assert editor.create("new/a.py", "x\n") == "created new/a.py"
    assert editor.create("/testbed/new/a.py", "y\n") == "replaced /testbed/new/a.py"
    assert editor.create("run.sh", "z") == "replaced run.sh"
    assert editor.undo_edit("new/a.py") == "undone: new/a.py is as it was before" and testbed.read("new/a.py") == b"x\n"
    assert editor.undo_edit("new/a.py") == "undone: new/a.py is gone again"
    with pytest.raises(ToolError, match=r"there is no edit of new/a.py to undo"):
        editor.undo_edit("new/a.py")
    testbed.exec(["sh", "-c", "echo more >> run.sh"])
    with pytest.raises(ToolError, match="changed by something else since"):
        editor.undo_edit("run.sh")
    with pytest.raises(ToolError, match="pkg: Is a directory"):
        editor.create("pkg", "x")
    with pytest.raises(ToolError, match="more than the editor takes"):
        editor.create("big", "x" * (MAX_BYTES + 1))
    testbed.write("big", b"x" * (MAX_BYTES + 1))
    for refused in (lambda: editor.view("big"), lambda: editor.insert("big", 0, "x")):
        with pytest.raises(ToolError, match="use bash"):
            refused()
    for wrong in ([1], [0, 2], [3, 2], [99, 100]):
        with pytest.raises(ToolError, match="view_range"):
            editor.view("pkg/m.py", wrong)


@given(st.binary(max_size=40), st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_undo_brings_every_byte_back(sandbox: LocalSandbox, content: bytes, data: Any) -> None:
    sandbox.write("edited", content)
    editor = Editor(sandbox)
    states = [content]
    for _ in range(data.draw(st.integers(1, 3))):
        text = states[-1].decode("utf-8", "surrogateescape")
        new = data.draw(st.text("ab\n\r ", max_size=4))
        try:
            if data.draw(st.booleans()) and text:
                at = data.draw(st.integers(0, len(text) - 1))
                editor.str_replace("edited", text[at : at + data.draw(st.integers(1, 5))], new)
            else:
                editor.insert("edited", data.draw(st.integers(0, text.count("\n") + 1)), new)
        except ToolError:
            assert sandbox.read("edited") == states[-1]
        else:
            states.append(sandbox.read("edited"))
    for state in reversed(states[:-1]):
        editor.undo_edit("edited")
        assert sandbox.read("edited") == state


# -- the tools -----------------------------------------------------------------------------------------------------


def call(name: str, **arguments: Any) -> Call:
    return Call(name=name, arguments=arguments)


def test_an_episode_by_tool_calls(testbed: LocalSandbox) -> None:
    tools = RepositoryTools(testbed)
    results = tools.toolbox.run(
        [
            call("bash", command="grep -n 'return' pkg/m.py; exit 3"),
            call("editor", command="str_replace", path="pkg/m.py", old_str="return 1\n", new_str="return 10\n"),
            call("editor", command="str_replace", path="pkg/m.py", old_str="return 1\n", new_str="return 10\n"),
            call("bash", command="python3 -c 'import pkg.m; print(pkg.m.f())'"),
            call("editor", command="view", path="pkg/m.py", view_range=[1, 2]),
            call("editor", command="insert", path="pkg/m.py", insert_line=0, new_str="# new"),
            call("editor", command="undo_edit", path="pkg/m.py"),
            call("editor", command="str_replace", path="pkg/m.py", old_str="\n\ndef g():\n    return 2\n"),
            call("editor", command="create", path="x.py"),
            call("bash", command="cd /tmp; true"),
            call("bash", command="pwd"),
            call("submit"),
            call("bash", command="echo late > late"),
            call("submit"),
        ]
    )
    texts = [result.text for result in results]
    assert texts[0] == "2:    return 1\n6:    return 2\n[exit code 3]"
    assert texts[3:5] == ["10", "     1\tdef f():\n     2\t    return 10"]
    assert texts[2].startswith("error: old_str does not occur in pkg/m.py")
    assert texts[8] == "error: create needs file_text" and texts[9:12] == ["[no output]", "/testbed", "submitted"]
    assert texts[12] == texts[13] == "error: the work is submitted already; nothing was done"
    assert tools.submitted and testbed.exec(["test", "-e", "late"]).code == 1
    assert testbed.read("pkg/m.py") == b"def f():\n    return 10\n"
    assert [result.ok for result in results].count(False) == 4
    assert "[2 editor]\nedited" in render_results(results)


def test_limits_are_told_and_the_shell_can_be_another(testbed: LocalSandbox) -> None:
    tools = RepositoryTools(testbed, ["env", "GREETING=hello", "bash", "-c"])
    assert tools.bash("echo $GREETING") == "hello"
    assert tools.last is not None and tools.last.code == 0
    quick = LocalSandbox(SandboxSpec(workdir="/testbed", timeout=0.5))
    with quick:
        assert RepositoryTools(quick).bash("echo a; sleep 9") == "a\n[killed: it ran longer than 0.5 s]"
    with pytest.raises(ToolError, match="NUL"):
        tools.bash("a\0b")


def test_what_models_are_told_of_the_tools(testbed: LocalSandbox) -> None:
    toolbox = RepositoryTools(testbed).toolbox
    assert [tool.usage for tool in toolbox.tools.values()] == [
        "bash(command: string)",
        "editor(command: 'view' | 'create' | 'str_replace' | 'insert' | 'undo_edit', path: string, "
        "file_text?: string | null, old_str?: string | null, new_str?: string | null, insert_line?: integer | null, "
        "view_range?: array of integer | null)",
        "submit()",
    ]
    for tool in toolbox.tools.values():
        assert tool.description and all(value.get("description") for value in tool.parameters["properties"].values())
    for wrong, complaint in (
        (call("editor", command="delete", path="x"), "argument 'command'"),
        (call("editor", path="x"), "argument 'command' is missing"),
        (call("bsh", command="ls"), "did you mean 'bash'"),
    ):
        with pytest.raises(ProtocolError, match=complaint):
            toolbox.run([call("submit"), wrong])
