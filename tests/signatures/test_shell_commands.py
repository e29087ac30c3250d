"""Canonical commands: a corpus of pairs, idempotence, and broken input."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgym_rtmc.signatures import canonical_command
from agentgym_rtmc.signatures.shell import parse
from agentgym_rtmc.signatures.shell_commands import read_command
from agentgym_rtmc.signatures.shell_text import render

HERE = Path(__file__).parent
SHARED = Path(os.environ.get("AGENTGYM_RTMC_SHARED_DATA", HERE.parents[2] / "shared" / "data"))


def groups(name: str) -> list[list[str]]:
    text = (HERE / name).read_text(encoding="utf-8").partition("\n\n")[2]
    decoded = text.replace("⏎", "\0").replace("⇥", "\t")
    return [[line.replace("\0", "\n") for line in block.splitlines()] for block in decoded.strip().split("\n\n")]


SAME = [(first, other) for first, *others in groups("same_commands.txt") for other in others]
DIFFERENT = [(left, right) for left, right in groups("different_commands.txt")]
COMMANDS = sorted({command for pair in SAME + DIFFERENT for command in pair})


def test_the_corpus_is_large_and_balanced():
    assert len(SAME) >= 150
    assert len(DIFFERENT) >= 150


HEADS = [
    "cat", "grep", "nl", "sed -n", r"python \w+\.py", "sed -i", r"python3 (?:\S*/)?\w+\.py", "ls", "echo", "rm",
    "pytest", "find", r"python -(?: |$)", "head", r"\./tests/runtests\.py", "git checkout", "python3? -c", "git diff",
    "git status", "mkdir", r"(?:\./)?bin/test", "git grep", "sphinx-build", "git add",
]  # fmt: skip
FEATURES = {
    "several lines": r"\n", "sed -n range": r"sed -n '?\d+,\d+p", "heredoc": r"<<'?\w", "pipe": r" \| ", ";": "; ",
    "cat > file <<": r"cat > \S+ <<", "numbered": r"cat -n|nl -ba", "grep -rn": r"grep -(?:rn|R|nR|In)", "&&": " && ",
    "| sed -n": r"\| sed -n", "|| true": r"\|\| true", "env prefix": r"^\w+=\S+ \w", "cd X &&": r"^cd \S+ &&",
    "absolute path": r"/testbed\b",
}  # fmt: skip


@pytest.mark.parametrize("pairs", [SAME, DIFFERENT], ids=["same", "different"])
def test_the_corpus_covers_what_agents_type(pairs):
    commands = {command for pair in pairs for command in pair}
    assert [head for head in HEADS if not any(re.match(head, command) for command in commands)] == []
    seen = {name for name, pattern in FEATURES.items() if any(re.search(pattern, command) for command in commands)}
    assert FEATURES.keys() - seen == set()


@pytest.mark.parametrize(("left", "right"), SAME)
def test_one_effect_one_key(left, right):
    assert canonical_command(left) == canonical_command(right)


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_different_effects_different_keys(left, right):
    assert canonical_command(left) != canonical_command(right)


def test_groups_of_the_corpus_do_not_merge_with_each_other():
    keys = [canonical_command(first) for first, *_ in groups("same_commands.txt")]
    assert len(set(keys)) == len(keys)


def test_canonical_commands_are_canonical():
    once = {command: canonical_command(command) for command in COMMANDS}
    assert {command: canonical_command(text) for command, text in once.items()} == once


def test_trees_are_written_back_as_they_were_read():
    trees = {command: parse(command) for command in COMMANDS}
    assert all(trees.values())
    assert {command: parse(render(tree).flat()) for command, tree in trees.items() if tree} == trees


def test_what_the_grammar_gets_wrong_is_put_right_or_left_alone():
    assert parse("cat - 2> err") != parse("cat 2> err")
    assert parse("F=m.py < list\nfor f in a; do ls; done") is None  # it takes the second line for words of the first
    assert parse("sort m.py > out \\\n  -r") == parse("sort m.py -r > out")


def test_another_root():
    assert canonical_command("cat /repo/m.py", root="/repo") == canonical_command("cd /repo && cat m.py", root="/repo")
    assert canonical_command("cat /testbed/m.py", root="/repo") == "cat /testbed/m.py"
    assert canonical_command("cat /testbeds/m.py") == "cat /testbeds/m.py"


def test_what_is_no_shell_stays_as_it_is():
    assert canonical_command("  if then 'x  ") == "if then 'x"
    assert not read_command("cat 'x").parsed
    assert canonical_command("") == "true"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("cd /testbed && nl -ba ./pkg/m.py | sed -n '5,9p' 2>/dev/null || true", "sed -n 5,9p pkg/m.py"),
        ("python3 -m pytest -q tests/ -k 'a or b' 2>&1 | tail -5", "pytest -k 'a or b' tests"),
        ("git --no-pager diff -- ./m.py | cat", "git diff -- m.py"),
    ],
)
def test_examples(command, expected):
    assert canonical_command(command) == expected


BREAKS = ["$(", "`", "<<EOF\n", "EOF\n", "'", '"', "\\", "|", "&&", ";", "\n", "(", ")", "{", "}", "\0", "\x1b[",
          "$((", "${", ">&", "2>", "\ud800", "é", "[[", "]]", "for x in", "do", "done", "if", "fi", "case"]  # fmt: skip
PIECES = [*COMMANDS, *BREAKS]
FULL = os.environ.get("HYPOTHESIS_PROFILE") == "full"
FUZZING = settings(max_examples=10_000 if FULL else 250, deadline=None, derandomize=not FULL)


@FUZZING
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=4), st.data())
def test_broken_shell_never_raises_and_is_idempotent(pieces, data):
    text = data.draw(st.sampled_from(["", " ", "\n", "; "])).join(pieces)
    cut = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(cut, len(text)))
    text = text[:cut] + data.draw(st.sampled_from(["", "x", *BREAKS])) + text[end:]
    once = canonical_command(text)
    assert canonical_command(once) == once


@FUZZING
@given(st.one_of(st.text(), st.binary().map(lambda b: b.decode("latin-1")), st.text("ab$'\"`\\(){}<>|&;\n #*?=-./")))
def test_noise_never_raises_and_is_idempotent(text):
    once = canonical_command(text)
    assert canonical_command(once) == once


@pytest.mark.parametrize(
    "text",
    [
        "(" * 5000, "$(" * 3000, "a;" * 50_000, "cat " + "x" * 300_000, "<<A " * 2000, "'" * 9999,
        "for i in {1..50}; do " * 8 + "cat $i" + "; done" * 8, "export A{1..99}=1; python t.py\n" * 2000,
    ],
)  # fmt: skip
def test_extreme_scripts_are_read_or_given_back(text):
    once = canonical_command(text)
    assert isinstance(once, str)


def shared_commands() -> list[str]:
    found = []
    for name in ("groups.jsonl.gz", "singles.jsonl.gz"):
        path = SHARED / "trajectories" / name
        if not path.exists():
            pytest.skip(f"no {path}; set AGENTGYM_RTMC_SHARED_DATA")
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                for step in json.loads(line)["steps"]:
                    arguments = step.get("args")
                    command = arguments.get("command") if isinstance(arguments, dict) else None
                    found += [c for c in (step.get("cmd"), command) if isinstance(c, str)]
    return sorted(set(found))


def test_every_command_of_real_agents_is_read():
    commands = shared_commands()
    assert len(commands) > 5000
    readings = [read_command(command) for command in commands]
    assert sum(not reading.parsed for reading in readings) <= 0.005 * len(commands)
    sample = random.Random(0).sample(readings, 3000)
    assert [r.text for r in sample] == [canonical_command(r.text) for r in sample]
