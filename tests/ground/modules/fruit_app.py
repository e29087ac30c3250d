"""A command with commands of its own."""

import typer

from agentgym_rtmc.errors import AgentGymError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def count(kind: str = "apple") -> None:
    """Count fruit."""
    print(f"3 {kind}")


@app.command()
def peel() -> None:
    """Fail."""
    raise AgentGymError("pears cannot be peeled")


@app.command()
def leave() -> None:
    """Leave with a code."""
    raise typer.Exit(5)
