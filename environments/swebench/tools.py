"""The tools of an agent that works by tool calls: `bash`, `editor`, `submit`, over a sandbox.

Invariants: what an agent did wrong is told as the result of its call; only the sandbox's own failures raise. After
`submit` nothing more is done. Results are whole: whoever shows them cuts them (`observation.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeVar

from agentgym_rtmc.calls.tools import Tool, Toolbox
from agentgym_rtmc.environments.sandbox.base import ExecResult, Sandbox
from agentgym_rtmc.environments.swebench.editor import Editor
from agentgym_rtmc.errors import ToolError

T = TypeVar("T")
SHELL = ("bash", "-c")


def describe_result(result: ExecResult) -> str:
    """What a command printed, how it ended if not well, and which limit it passed."""
    lines = [result.stdout.rstrip("\n")] if result.stdout.strip() else []
    if result.note:
        lines.append(f"[{result.note}]")
    elif result.code:
        lines.append(f"[exit code {result.code}]")
    return "\n".join(lines) or "[no output]"


class RepositoryTools:
    """The tools of one episode. `shell` is put before every command: a shell in which the environment is active.

    `submitted` tells whether the agent is done, `last` what its last command left.
    """

    def __init__(self, sandbox: Sandbox, shell: Sequence[str] = SHELL) -> None:
        self._sandbox = sandbox
        self._shell = tuple(shell)
        self._editor = Editor(sandbox)
        self.submitted = False
        self.last: ExecResult | None = None
        self.toolbox = Toolbox([Tool(self.bash), Tool(self.editor), Tool(self.submit)])

    @classmethod
    def describe(cls) -> str:
        """Describe the tools to a model whose chat template does not."""
        bare = cls.__new__(cls)  # their signatures are enough, and there is no sandbox yet
        return Toolbox([Tool(bare.bash), Tool(bare.editor), Tool(bare.submit)]).instructions()

    def take_last(self) -> ExecResult | None:
        """What the last command left, once."""
        last, self.last = self.last, None
        return last

    def run(self, command: str) -> ExecResult:
        """Run a shell command."""
        self._check()
        self.last = self._sandbox.exec([*self._shell, command], merge=True)
        return self.last

    def bash(self, command: str) -> str:
        """Run a shell command in the repository and return what it prints.

        Args:
            command: the command, of one or several lines
        """
        if "\0" in command:
            raise ToolError("a command cannot contain a NUL byte")
        return describe_result(self.run(command))

    def editor(
        self,
        command: Literal["view", "create", "str_replace", "insert", "undo_edit"],
        path: str,
        file_text: str | None = None,
        old_str: str | None = None,
        new_str: str | None = None,
        insert_line: int | None = None,
        view_range: list[int] | None = None,
    ) -> str:
        """View and edit files.

        Args:
            command: view a file or a folder; create a file; replace the only occurrence of old_str by new_str; insert
                new_str behind line insert_line; undo the last edit of a file
            path: the file, absolute or from the repository down
            file_text: for create: the file's text
            old_str: for str_replace: the text to replace; it must match exactly and occur once
            new_str: for str_replace and insert: the new text
            insert_line: for insert: the line behind which to insert; 0 is the top
            view_range: for view: first and last line, e.g. [1, 40]; last may be -1
        """
        self._check()
        match command:
            case "view":
                return self._editor.view(path, view_range)
            case "create":
                return self._editor.create(path, _given(file_text, command, "file_text"))
            case "str_replace":
                # Replacing by nothing is often meant by leaving new_str out.
                return self._editor.str_replace(path, _given(old_str, command, "old_str"), new_str or "")
            case "insert":
                line = _given(insert_line, command, "insert_line")
                return self._editor.insert(path, line, _given(new_str, command, "new_str"))
        return self._editor.undo_edit(path)

    def submit(self) -> str:
        """Hand in the repository as it is now. Nothing can be done afterwards."""
        self._check()
        self.submitted = True
        return "submitted"

    def _check(self) -> None:
        if self.submitted:
            raise ToolError("the work is submitted already; nothing was done")


def _given(value: T | None, command: str, name: str) -> T:
    if value is None:
        raise ToolError(f"{command} needs {name}")
    return value
