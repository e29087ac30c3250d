"""Canonical keys against what commands really do, in a sandbox on one small repository.

An effect is the file tree afterwards and the repository's lines that were shown; every line of the repository is
unlike any other, so shown lines are found in the output whatever stands around them. Tests that ran leave a file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentgym_rtmc.errors import SandboxUnavailableError
from agentgym_rtmc.signatures import canonical_command

local = pytest.importorskip("agentgym_rtmc.environments.sandbox.local")
base = pytest.importorskip("agentgym_rtmc.environments.sandbox.base")

HERE = Path(__file__).parent
WORDS = ("alpha", "beta", "f(x)", "delta")
MODULE = "".join(f"# <m{n:02}> {WORDS[n % 4]} {WORDS[(n + 1) % 4]} {WORDS[n % 4]}\n" for n in range(1, 31))
LINES = MODULE.splitlines()
FILES = {
    "m.py": MODULE,
    "pkg/n.py": "".join(f"# <n{n:02}> {WORDS[n % 3]}\n" for n in range(1, 13)),
    "pkg/__init__.py": "",
    "a b.txt": "<s01> one\n<s02> two\n",
    "env.py": "import os\nopen('env-' + os.environ['A'], 'w').close()\n",
    "t.py": "import unittest\n\n\nclass Case(unittest.TestCase):\n"
    "    def test_one(self):\n        open('ran-one', 'w').close()\n\n"
    "    def test_two(self):\n        open('ran-two', 'w').close()\n\n\n"
    "if __name__ == '__main__':\n    unittest.main()\n",
    "fix.patch": "--- a/m.py\n+++ b/m.py\n@@ -1,2 +1,2 @@\n" + f"-{LINES[0]}\n+# fixed\n {LINES[1]}\n",
}


def blocks(name: str) -> list[list[str]]:
    text = (HERE / name).read_text(encoding="utf-8").partition("\n\n")[2]
    return [[line.replace("⏎", "\n") for line in block.splitlines()] for block in text.strip().split("\n\n")]


SAME = blocks("real_effects.txt")
DIFFERENT = blocks("real_differences.txt")


DRIVER = r"""
import json, os, shutil, subprocess, sys
files, commands = json.load(open(".git/task.json"))
results = {}
for command in commands:
    for name in os.listdir("."):
        if name != ".git":
            shutil.rmtree(name) if os.path.isdir(name) else os.remove(name)
    for path, text in files.items():
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        open(path, "w").write(text)
    done = subprocess.run(["bash", "-c", command], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    tree = {}
    for folder, names, inside in os.walk("."):
        names[:] = [n for n in names if n not in (".git", "__pycache__")]
        tree.update({os.path.join(folder, n): "/" for n in names})
        tree.update({os.path.join(folder, n): open(os.path.join(folder, n), errors="replace").read() for n in inside})
    results[command] = [tree, done.stdout.decode(errors="replace")]
json.dump(results, open(".git/results.json", "w"))
"""


@pytest.fixture(scope="module")
def effects():
    """The effect of every command, each run on the repository made anew in one sandbox."""
    commands = {command for block in SAME + DIFFERENT for command in block}
    commands |= {canonical_command(command) for command in commands}
    spec = base.SandboxSpec(workdir="/testbed", timeout=300.0, cpu_seconds=120)
    try:
        sandbox = local.LocalSandbox(spec)
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    with sandbox:
        for path, text in FILES.items():
            sandbox.write(path, text.encode())
        setup = "git init -q . && git add -A && git -c user.name=a -c user.email=a@b commit -q -m start"
        made = sandbox.exec(["bash", "-c", setup])
        assert made.code == 0, made
        sandbox.write(".git/task.json", json.dumps([FILES, sorted(commands)]).encode())
        done = sandbox.exec(["python3", "-c", DRIVER])
        assert done.code == 0, done
        results = json.loads(sandbox.read(".git/results.json"))
    return {command: effect(command, tree, output) for command, (tree, output) in results.items()}


def effect(command: str, tree: dict[str, str], output: str) -> tuple[dict[str, str], frozenset[str]]:
    """The tree without durations, and the lines shown: of the repository's files, else names, else counts."""
    tree = {path: re.sub(r"in [0-9.]+s", "in 0s", text) for path, text in tree.items()}
    shown = frozenset(line.strip() for line in re.findall(r"<[mns]\d\d>.*", output))
    counts = re.findall(r"^\s*(\d+)(?: \S+)?\s*$", output, re.MULTILINE)
    # A name that the command itself gives (rm -v) is no news.
    names = [name for name in re.findall(r"(?:^|[/\s])([\w.]+\.(?:py|txt|patch))\b", output) if name not in command]
    return tree, shown or frozenset(counts or names)


def test_there_are_enough_pairs():
    assert sum(len(spellings) - 1 for spellings in SAME) + len(DIFFERENT) >= 60


@pytest.mark.parametrize("spellings", SAME, ids=lambda spellings: spellings[0][:40])
def test_one_key_means_one_effect(effects, spellings):
    keys = {canonical_command(command) for command in spellings}
    assert len(keys) == 1
    for command in (*spellings[1:], *keys):
        assert effects[command] == effects[spellings[0]], command


@pytest.mark.parametrize(("left", "right"), DIFFERENT)
def test_different_effects_have_different_keys(effects, left, right):
    assert effects[left] != effects[right]
    assert canonical_command(left) != canonical_command(right)
