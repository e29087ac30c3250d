"""The room's commands: `signatures` (list, measure) and `audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from agentgym_rtmc.signatures.base import Signature, describe_signatures

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, no_args_is_help=False)

DEFAULT_MEASURED = (
    "commands", "operations", "operations:bucket", "operations:file", "edits", "workspace", "test_outcomes",
    "edits + test_outcomes", "observation",
)  # fmt: skip


@app.callback(invoke_without_command=True)
def signatures(
    context: typer.Context, as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False
) -> None:
    """List the signatures, one line each; `signatures measure FILE…` measures them on episodes."""
    if context.invoked_subcommand is None:
        from agentgym_rtmc.tables import show_table

        show_table(describe_signatures(), as_json=as_json)


@app.command()
def measure(
    files: Annotated[list[Path], typer.Argument(help="episodes.jsonl, or step rows (.jsonl, .jsonl.gz)")],
    signature: Annotated[
        list[str] | None, typer.Option("--signature", "-s", help="name, a + b, module:name, or operations:LEVEL")
    ] = None,
    plot: Annotated[Path, typer.Option(help="where to save the plot; its folder is made")] = Path("signatures.png"),
    effects_only: Annotated[bool, typer.Option(help="leave out commands without effect, such as echo")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, with the curves by turn")] = False,
) -> None:
    """Measure how often keys meet, how much they mix and how fast they are made."""
    from agentgym_rtmc.importers.files import load_episodes
    from agentgym_rtmc.signatures.measure import in_groups, is_constant, save_plot
    from agentgym_rtmc.signatures.measure import measure as measured
    from agentgym_rtmc.tables import show_json, show_table

    names = signature or list(DEFAULT_MEASURED)
    episodes = load_episodes(files)
    rows = measured({name: named_signature(name) for name in names}, episodes, effects_only=effects_only)
    if as_json:
        show_json([{**row.row(), "by_turn": row.by_turn} for row in rows])
    else:
        grouped = in_groups(episodes)
        turns = [turn for episode in grouped for turn in episode.turns]
        constant = sum(is_constant(turn, effects_only) for turn in turns)
        without = ", commands without effect" if effects_only else ""
        show_table([row.row() for row in rows], title="signatures")
        print(
            f"{len(turns) - constant} of {len(turns)} turns of {len(grouped)} episodes in "
            f"{len({e.group for e in grouped})} groups of two or more; {constant} turns are constant by nature "
            f"(unparsed, submissions, calls without arguments, bare status or diff{without}) and not counted."
        )
    plot.parent.mkdir(parents=True, exist_ok=True)
    save_plot(rows, str(plot))
    if not as_json:
        print(f"plot: {plot}")


def named_signature(name: str) -> Signature[Any]:
    """Build a signature as the command line names it: as `make_signature`, or `operations:LEVEL`."""
    from agentgym_rtmc.signatures.base import make_signature

    base, _, level = name.partition(":")
    if base == "operations" and level:
        return make_signature(base, level=level)
    return make_signature(name)


def audit(
    files: Annotated[list[Path], typer.Argument(help="episodes.jsonl, or step rows (.jsonl, .jsonl.gz)")],
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show attempts to cheat: turn, kind and evidence. Exit code 1 if there are any."""
    from agentgym_rtmc.importers.files import load_episodes
    from agentgym_rtmc.signatures.audit import audit_episode
    from agentgym_rtmc.tables import show_table

    episodes = load_episodes(files)
    rows = [finding.row() for episode in episodes for finding in audit_episode(episode)]
    show_table(rows, as_json=as_json)
    if not as_json:
        flagged = len({row["episode"] for row in rows})
        print(f"{len(rows)} findings in {flagged} of {len(episodes)} episodes")
    if rows:
        raise typer.Exit(1)
