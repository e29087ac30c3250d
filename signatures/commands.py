"""The room's commands: `signatures` (list, measure) and `audit`.

Files are read as `credit` reads them: a row that cannot be read is named and counted on standard error, the rest goes
on.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgym_rtmc.signatures.base import Signature, describe_signatures

if TYPE_CHECKING:
    from agentgym_rtmc.importers.recorded import Recorded

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=False)

DEFAULT_MEASURED = (
    "commands", "operations", "operations:bucket", "operations:file", "edits", "workspace", "test_outcomes",
    "edits + test_outcomes", "observation",
)  # fmt: skip
SHOWN_PROBLEMS = 5
SHOWN_TURNS = (0, 1, 2, 3, 5, 7, 10, 14, 19)

Files = Annotated[
    list[Path], typer.Argument(metavar="FILE...", help="episodes.jsonl, step rows, .traj, .traj.json or chats")
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]


@app.callback(invoke_without_command=True)
def signatures(context: typer.Context, as_json: AsJson = False) -> None:
    """List the signatures, one line each; `signatures measure FILE…` measures them on episodes."""
    if context.invoked_subcommand is None:
        from agentgym_rtmc.tables import show_table

        show_table(describe_signatures(), as_json=as_json)


@app.command()
def measure(
    files: Files,
    signature: Annotated[
        list[str] | None, typer.Option("--signature", "-s", help="name, a + b, module:name, or operations:LEVEL")
    ] = None,
    plot: Annotated[Path, typer.Option(help="where to save the plot; its folder is made")] = Path("signatures.png"),
    no_plot: Annotated[bool, typer.Option("--no-plot", help="save no plot (which needs matplotlib)")] = False,
    effects_only: Annotated[bool, typer.Option(help="leave out commands without effect, such as echo")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, with the curves by turn")] = False,
) -> None:
    """Measure how often keys meet, how much they mix and how fast they are made."""
    from agentgym_rtmc.errors import ConfigError
    from agentgym_rtmc.signatures.measure import Measured, in_groups, is_constant
    from agentgym_rtmc.signatures.measure import measure as measured
    from agentgym_rtmc.tables import show_json, show_table

    chosen = {name: named_signature(name) for name in signature or DEFAULT_MEASURED}
    if not no_plot:  # what is missing is told before the work, not after it
        from agentgym_rtmc.signatures.measure_plot import check_target, save_plot

        check_target(plot)
    recorded = read_files(files)
    grouped = in_groups(recorded.episodes)
    if not grouped:
        raise ConfigError(
            f"none of {len(recorded.episodes)} episodes shares its task with another; company needs groups of two or "
            "more valid episodes of one task"
        )
    rows: list[Measured] = measured(chosen, grouped, effects_only=effects_only, unlabelled=recorded.unlabelled)
    if as_json:
        show_json([vars(row) for row in rows])
    else:
        turns = [turn for episode in grouped for turn in episode.turns]
        constant = sum(is_constant(turn, effects_only) for turn in turns)
        without = ", commands without effect" if effects_only else ""
        show_table([row.row() for row in rows], title="signatures")
        print(
            f"{len(turns) - constant} of {len(turns)} turns of {len(grouped)} episodes in "
            f"{len({e.group for e in grouped})} groups of two or more; {constant} turns are constant by nature "
            f"(unparsed, submissions, calls without arguments, bare status or diff{without}) and not counted.\n"
        )
        last = max(len(row.by_turn) for row in rows) - 1
        shown = [turn for turn in SHOWN_TURNS if turn <= last]
        names = {turn: f"turn {turn}{' on' if turn == last == SHOWN_TURNS[-1] else ''}" for turn in shown}
        curves = [
            {"signature": row.signature, "kind": row.kind, **{names[t]: row.by_turn[t] for t in shown}} for row in rows
        ]
        show_table(curves, title="share with company by turn")
    if not no_plot:
        save_plot(rows, plot)
        print(f"plot: {plot}", file=sys.stderr if as_json else sys.stdout)


def named_signature(name: str) -> Signature[Any]:
    """Build a signature as the command line names it: as `make_signature`, or `operations:LEVEL`."""
    from agentgym_rtmc.signatures.base import make_signature

    base, _, level = name.partition(":")
    if base == "operations" and level:
        return make_signature(base, level=level)
    return make_signature(name)


def audit(files: Files, as_json: AsJson = False) -> None:
    """Show attempts to cheat: turn, kind and evidence. Exit code 1 if there are any."""
    from agentgym_rtmc.signatures.audit import audit_episode
    from agentgym_rtmc.tables import show_json, show_table

    recorded = read_files(files)
    rows = [finding.row() for episode in recorded.episodes for finding in audit_episode(episode)]
    if as_json:
        problems = [vars(problem) for problem in recorded.problems]
        show_json({"findings": rows, "episodes": len(recorded.episodes), "problems": problems})
    else:
        if rows:
            show_table(rows, title="attempts to cheat")
        flagged = len({row["episode"] for row in rows})
        print(f"{len(rows)} findings in {flagged} of {len(recorded.episodes)} episodes")
    if rows:
        raise typer.Exit(1)


def read_files(files: Sequence[Path]) -> Recorded:
    """Read recorded episodes, those of unknown outcome too; say on standard error what could not be read.

    Raises EpisodeFileError where nothing could.
    """
    from agentgym_rtmc.errors import EpisodeFileError
    from agentgym_rtmc.importers.recorded import read_recorded

    recorded = read_recorded(files, keep_unlabelled=True)
    told = [f"{problem.where}: {problem.reason}" for problem in recorded.problems]
    if not recorded.episodes:
        raise EpisodeFileError("no episode could be read: " + ("; ".join(told[:SHOWN_PROBLEMS]) or "there is none"))
    if told:
        more = [f"… and {len(told) - SHOWN_PROBLEMS} more"] if len(told) > SHOWN_PROBLEMS else []
        lines = [f"not read: {len(told)} files or rows", *told[:SHOWN_PROBLEMS], *more]
        print("\n  ".join(lines), file=sys.stderr)
    return recorded
