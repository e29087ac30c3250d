"""Commands about sandboxes: `clean` removes what dead runs left, `prefetch` fetches container images.

Invariants: `clean` lists before it removes, and touches nothing of a living run; `prefetch` is the only command that
fetches an image.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress

from agentgym_rtmc.environments.sandbox.leftovers import Leftover, local_leftovers
from agentgym_rtmc.errors import AgentGymError, ConfigError, DependencyError, SandboxError, SandboxUnavailableError
from agentgym_rtmc.extras import install_hint
from agentgym_rtmc.registration import find_env, load, load_task_set
from agentgym_rtmc.settings import parse_override
from agentgym_rtmc.tables import Row, show_table
from agentgym_rtmc.tasks import Task

if TYPE_CHECKING:
    from agentgym_rtmc.environments.sandbox.docker.prefetch import Outcome

JsonOption = Annotated[bool, typer.Option("--json", help="print JSON")]


def clean(
    only_list: Annotated[bool, typer.Option("--list", help="list, remove nothing")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="remove without asking")] = False,
    as_json: JsonOption = False,
) -> None:
    """List what dead runs left behind (processes, mounts, folders, containers, images), and remove it.

    Nothing of a living run is touched. Containers of other machines count as left when they are past their time.
    """
    found = [*_engine_leftovers(), *local_leftovers()]
    _show(found, as_json)
    if not found or only_list:
        return
    if not yes:
        if as_json or not sys.stdin.isatty():
            print("nothing was removed; `agentgym-rtmc clean --yes` removes it", file=sys.stderr)
            return
        if input(f"remove these {len(found)}? [y/N] ").strip().lower() not in ("y", "yes"):
            return
    failures = _remove(found)
    print(f"removed {len(found) - len(failures)} of {len(found)}", file=sys.stderr)
    for failure in failures:
        print(failure, file=sys.stderr)
    if failures:
        raise typer.Exit(1)


def _show(found: list[Leftover], as_json: bool) -> None:
    rows: list[Row] = [{"kind": item.kind, "name": item.name, "detail": item.detail} for item in found]
    if rows or as_json:
        show_table(rows, as_json=as_json)
    else:
        print("nothing is left of any dead run")


def _engine_leftovers() -> list[Leftover]:
    """What an engine holds, where there is one; that there is none is told and no failure."""
    try:
        from agentgym_rtmc.environments.sandbox.docker.engine import connect
        from agentgym_rtmc.environments.sandbox.docker.leftovers import engine_leftovers

        return engine_leftovers(connect())
    except ModuleNotFoundError as error:
        print(f"containers were not looked at: {error.name} is missing, {install_hint('docker')}", file=sys.stderr)
    except (SandboxError, SandboxUnavailableError) as error:
        print(f"containers were not looked at: {error}", file=sys.stderr)
    return []


def _remove(found: list[Leftover]) -> list[str]:
    """Remove them in turn; return what went wrong."""
    failures = []
    for item in found:
        try:
            item.remove()
        except (OSError, SandboxError) as error:
            failures.append(f"{item.kind} {item.name}: {error}")
    return failures


def prefetch(
    images: Annotated[
        list[str] | None, typer.Argument(help="images, such as python:3.12-slim; '-' reads names from stdin")
    ] = None,
    env: Annotated[str | None, typer.Option("--env", help="the images of this environment's tasks")] = None,
    task_set: Annotated[str | None, typer.Option(help="with --env: registered task set or 'module:function'")] = None,
    split: Annotated[list[str] | None, typer.Option(help="with --env: this split only; may be given again")] = None,
    task_option: Annotated[list[str] | None, typer.Option(help="with --env: key=value for the task set")] = None,
    mirror: Annotated[str, typer.Option(help="fetch from this registry or prefix instead")] = "",
    jobs: Annotated[int, typer.Option(min=1, max=64, help="images at a time")] = 2,
    retries: Annotated[int, typer.Option(min=0, help="more attempts after a failed one")] = 5,
) -> None:
    """Fetch container images, so that sandboxes can be made of them.

    With --env the images that its tasks name, which are then prepared where the environment asks for that.
    Images that are there are skipped, and layers that have come are kept, so an interrupted run may be started again.
    """
    try:
        from agentgym_rtmc.environments.sandbox.docker.engine import connect
        from agentgym_rtmc.environments.sandbox.docker.prefetch import prefetch as fetch
    except ModuleNotFoundError as error:
        raise DependencyError(f"this needs {error.name}, which is not installed: {install_hint('docker')}") from error
    names = [name for given in images or [] for name in (sys.stdin.read().split() if given == "-" else [given])]
    tasks = _tasks(env, task_set, split, task_option) if env is not None else []
    names += [str(task.public["image"]) for task in tasks if "image" in task.public]
    if not names:
        raise ConfigError("no image was named")
    with _Bars.shown() as bars:
        results = fetch(connect(), names, bars, mirror=mirror, jobs=jobs, retries=retries)
    show_table([{"image": item.image, "outcome": item.outcome, "detail": item.detail} for item in results])
    there = {item.image for item in results if item.outcome != "failed"}
    failures = _prepare(env, [task for task in tasks if task.public.get("image") in there], jobs) if env else []
    for failure in failures:
        print(failure, file=sys.stderr)
    if len(there) < len(results) or failures:
        raise typer.Exit(1)


def _tasks(env: str, task_set: str | None, split: list[str] | None, options: list[str] | None) -> list[Task]:
    """The tasks of an environment's task set, those of the named splits alone where any are named."""
    entry = find_env(env)
    given = dict(parse_override(text) for text in options or [])
    loaded = load_task_set(entry.id, task_set, **{keys[0]: value for keys, value in given.items()})
    return [task for name in split or loaded.splits for task in loaded.split(name)]


def _prepare(env: str, tasks: list[Task], jobs: int) -> list[str]:
    """Make what the environment makes of its tasks' images, `jobs` at a time; return what went wrong."""
    reference = find_env(env).prepare
    if reference is None:
        return []
    prepare: Callable[[Task], str] = load(reference)

    def one(task: Task) -> str:
        try:
            print(f"{task.id}: {prepare(task)}", file=sys.stderr, flush=True)
        except AgentGymError as error:
            return f"{task.id}: {error}"
        return ""

    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="prepare") as workers:
        return [failure for failure in workers.map(one, tasks) if failure]


class _Bars:
    """A bar for each image that is being fetched, or a line for each event where there is no terminal."""

    def __init__(self, console: Console, rich: RichProgress) -> None:
        self._console = console
        self._rich = rich
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskID] = {}

    @classmethod
    @contextmanager
    def shown(cls) -> Iterator[_Bars]:
        """Show bars until the end of the block."""
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
        rich = RichProgress(*columns, console=console, disable=not console.is_terminal)
        with rich:
            yield cls(console, rich)

    def begin(self, image: str) -> None:
        """See `prefetch.Progress`."""
        with self._lock:
            if image not in self._tasks:
                self._tasks[image] = self._rich.add_task(image, total=None)
        if not self._console.is_terminal:
            self._say(f"fetching {image}")

    def bytes(self, image: str, done: int, total: int) -> None:
        """See `prefetch.Progress`."""
        self._rich.update(self._tasks[image], completed=done, total=total or None)

    def again(self, image: str, attempt: int, reason: str) -> None:
        """See `prefetch.Progress`."""
        self._console.print(
            f"{image}: attempt {attempt} failed, trying again: {reason}", markup=False, highlight=False, soft_wrap=True
        )

    def end(self, image: str, outcome: Outcome, detail: str) -> None:
        """See `prefetch.Progress`."""
        if image in self._tasks:
            self._rich.remove_task(self._tasks.pop(image))
        self._say(f"{image}: {outcome}")

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)
