"""How fast keys are made, and that the cost of a turn does not grow with the episode.

    python benchmarks/signatures.py                         # made-up episodes
    python benchmarks/signatures.py FILE…                   # recorded episodes of any format

Speed: turns per second of CPU for state and action keys together, on commands that all differ (nothing comes from a
cache), beside the bare parser (tree-sitter, no tree of ours) on the same commands in the same run. Linearity: CPU time
per turn in one episode of 1,250 to 10,000 turns.
"""

from __future__ import annotations

import sys
import time

import tree_sitter
import tree_sitter_bash

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.signatures import episode_keys, make_signature
from agentgym_rtmc.signatures.shell import parse
from agentgym_rtmc.signatures.shell_commands import canonical_command, forget_commands
from agentgym_rtmc.tables import show_table
from agentgym_rtmc.tasks import Task

NAMES = ("commands", "operations", "edits", "workspace", "test_outcomes", "observation", "tool_state")
FORMS = (
    "sed -n '{a},{b}p' pkg/mod{k}.py",
    "nl -ba pkg/mod{k}.py | sed -n '{a},{b}p'",
    "grep -rn 'name_{a}' --include='*.py' . | head -{k}",
    "cd /testbed && python -m pytest -q tests/test_{k}.py -k case_{a} 2>&1 | tail -20",
    "sed -i 's/old_{a}/new_{b}/' pkg/mod{k}.py && git --no-pager diff -- pkg/mod{k}.py",
    "cat > repro_{a}.py <<'EOF'\nimport pkg\nprint(pkg.call({a}, {b}))\nEOF\npython3 repro_{a}.py",
    "python - <<'PY'\nfrom pathlib import Path\np = Path('pkg/mod{k}.py')\n"
    "p.write_text(p.read_text().replace('{a}', '{b}'))\nPY",
    "git checkout -q -- pkg/mod{k}.py || true; echo 'back to {a}'",
)
OUTPUT = (
    "E   assert {a} == {b}\nFAILED tests/test_{k}.py::test_{a} - assert\n==== 1 failed, {k} passed in 0.{a}s ====\n"
)


def episode(turns: int, first: int = 0) -> Episode:
    made = []
    for i in range(first, first + turns):
        values = {"a": i + 1, "b": i + 40, "k": i % 60}
        command = FORMS[i % len(FORMS)].format(**values)
        made.append(
            Turn(
                text=command,
                calls=(Call(name="shell", arguments={"command": command}),),
                observation=OUTPUT.format(**values) * 3,
                reward=0.0,
                info={"database": f"d{i % 7}"},
            )
        )
    return Episode(id="bench", group="bench", opening=Opening(task=Task(id="bench"), observation=""), turns=tuple(made))


def seconds(function, *arguments) -> float:
    start = time.process_time()
    function(*arguments)
    return max(1e-9, time.process_time() - start)


def speed(episodes: list[Episode]) -> list[dict]:
    commands = [
        str(call.arguments["command"])
        for episode in episodes
        for turn in episode.turns
        for call in turn.calls
        if isinstance(call.arguments.get("command"), str)
    ]
    turns = sum(len(episode.turns) for episode in episodes)
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))
    encoded = [command.encode("utf-8", "replace").translate(bytes(range(128)) + b"%" * 128) for command in commands]
    bare = len(commands) / seconds(lambda: [parser.parse(text) for text in encoded])
    rows = [{"what": "bare parser", "per second": bare, "of the bare parser": 1.0}]

    def row(what: str, count: int, took: float) -> None:
        rows.append({"what": what, "per second": count / took, "of the bare parser": count / took / bare})

    row("own tree", len(commands), seconds(lambda: [parse(command) for command in commands]))
    forget_commands()
    row("canonical_command", len(commands), seconds(lambda: [canonical_command(command) for command in commands]))
    for name in NAMES:
        signature = make_signature(name)
        forget_commands()
        row(name, turns, seconds(lambda s=signature: [episode_keys(s, episode) for episode in episodes]))
    return rows


def linearity() -> list[dict]:
    rows = []
    for name in NAMES:
        signature = make_signature(name)
        row: dict = {"signature": name}
        for turns in (1250, 2500, 5000, 10_000):
            long = episode(turns)
            forget_commands()
            row[f"{turns} turns, µs a turn"] = 1e6 * seconds(episode_keys, signature, long) / turns
        rows.append(row)
    return rows


def main() -> None:
    if len(sys.argv) > 1:
        from agentgym_rtmc.importers.recorded import read_recorded

        episodes = read_recorded(sys.argv[1:], keep_unlabelled=True).episodes
    else:
        episodes = [episode(200, 200 * i) for i in range(20)]
    show_table(speed(episodes), title="speed")
    show_table(linearity(), title="linearity")


if __name__ == "__main__":
    main()
