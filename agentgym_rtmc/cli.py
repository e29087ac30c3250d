"""The command line: a thin, lazy dispatcher.

Invariants: a command is a lazy `module:function` and is imported only when it runs, so `--help` imports no room. Typer
parses each command's own arguments. What a user, a file or a machine did wrong is one line on standard error and exit
code 2, never a traceback (`--debug` or AGENTGYM_RTMC_DEBUG=1 shows it); an interruption is 130, a broken pipe is quiet.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentgym_rtmc.errors import AgentGymError, ConfigError, nearest
from agentgym_rtmc.extras import missing_extra

PROGRAM = "agentgym-rtmc"

# Room -> command -> (target, one line of help). A target is a function for Typer, or a Typer app with sub-commands.
COMMANDS: dict[str, dict[str, tuple[str, str]]] = {
    "Training": {
        "train": ("agentgym_rtmc.trainer.commands:train", "train an agent and show how it did before and after"),
        "eval": ("agentgym_rtmc.trainer.commands:evaluate", "measure an agent on held-out tasks"),
        "rollout": ("agentgym_rtmc.trainer.commands:rollout", "collect episodes into a file, without learning"),
        "credit": ("agentgym_rtmc.trainer.credit_commands:credit", "assign credit to the turns of saved episodes"),
    },
    "Signatures": {
        "signatures": ("agentgym_rtmc.signatures.commands:app", "list signatures, measure them on episodes"),
        "audit": ("agentgym_rtmc.signatures.commands:audit", "show attempts to cheat in episodes"),
    },
    "Environments": {
        "envs": ("agentgym_rtmc.environments.commands:envs", "list the environments and their task sets"),
        "play": ("agentgym_rtmc.environments.commands:play", "play a task yourself in the terminal"),
        "validate": ("agentgym_rtmc.environments.commands:validate", "check that tasks are solvable, and not for free"),
        "grade": ("agentgym_rtmc.environments.swebench.commands:grade", "grade SWE-bench predictions (preds.json)"),
    },
    "This machine": {
        "prefetch": ("agentgym_rtmc.environments.sandbox_commands:prefetch", "fetch container images for sandboxes"),
        "clean": ("agentgym_rtmc.environments.sandbox_commands:clean", "remove what dead runs left behind"),
        "doctor": ("agentgym_rtmc.commands:doctor", "check what works here and what is missing"),
    },
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (default: this process's) and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = _take_debug(arguments)
    try:
        try:
            return _dispatch(arguments)
        finally:
            # Here, where a closed pipe can still be caught, and not while the interpreter goes down.
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except (AgentGymError, ModuleNotFoundError) as error:
        known = error if isinstance(error, AgentGymError) else missing_extra(error)
        if known is None:
            raise
        if debug:
            traceback.print_exception(error)
        print(f"error: {known}", file=sys.stderr)
        return 2


def _take_debug(arguments: list[str]) -> bool:
    """Take `--debug` out of the arguments, wherever it stands before a `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    given = "--debug" in arguments[:end]
    if given:
        arguments.remove("--debug")
    return given or os.environ.get("AGENTGYM_RTMC_DEBUG", "0") not in ("", "0")


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0 if arguments else 2
    if arguments[0] in ("-V", "--version"):
        from agentgym_rtmc import __version__

        print(f"{PROGRAM} {__version__}")
        return 0
    name, *rest = arguments
    targets = {command: target for room in COMMANDS.values() for command, (target, _) in room.items()}
    if name.startswith("-"):
        raise ConfigError(f"there is no option {name!r} before the command; see {PROGRAM} --help")
    if name not in targets:
        raise ConfigError(f"there is no command {name!r}{nearest(name, targets)}")
    return _run(name, targets[name], rest)


def _run(name: str, target: str, arguments: list[str]) -> int:
    import typer

    from agentgym_rtmc.registration import load

    # A user's own modules, named as 'module:name', lie in the folder the command is run from; last, to shadow nothing.
    sys.path.append(str(Path.cwd()))
    app: Any = load(target)
    if not isinstance(app, typer.Typer):
        function = app
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        app.command()(function)
    try:
        app(args=arguments, prog_name=f"{PROGRAM} {name}")
    except SystemExit as end:
        # Typer ends every command this way; an interruption within one arrives as 130, without a word.
        if end.code == 130:
            raise KeyboardInterrupt from end
        if isinstance(end.code, int):
            return end.code
        raise
    return 0


def _help() -> str:
    width = max(len(name) for room in COMMANDS.values() for name in room)
    lines = [
        f"usage: {PROGRAM} [--debug] COMMAND [ARGUMENTS]",
        "",
        "Reinforcement learning of language-model agents with step-level credit from rollout trees.",
    ]
    for room, commands in COMMANDS.items():
        lines += ["", f"{room}:", *(f"  {name:{width}}  {text}" for name, (_, text) in commands.items())]
    lines += ["", f"'{PROGRAM} COMMAND --help' explains a command; --debug shows tracebacks; --version the version."]
    return "\n".join(lines)
