"""Canonical keys against what commands really do, in a sandbox on one small repository.

An effect is the file tree afterwards (and what git knows), and the repository's lines that were shown; every line of
the repository is unlike any other, so shown lines are found in the output whatever stands around them. Tests and
programs that ran leave a file or a line.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from agentgym_rtmc.calls.base import Call
from agentgym_rtmc.errors import SandboxUnavailableError
from agentgym_rtmc.signatures import canonical_call, canonical_command

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
    "nonl.txt": "<s03> first\n<s04> last",
    ".hid.py": "# <s05> alpha hidden\n",
    "d.e/in.py": "# <s06> alpha\n# <s07> beta\n",
    "list.txt": "m.py\npkg/n.py\n",
    "env.py": "import os\nopen('env-' + os.environ.get('A', 'none'), 'w').close()\n",
    "args.py": "import os, sys\n\nprint('<z01> ran', sys.argv[1:])\nwith open('args.log', 'a') as log:\n"
    "    log.write(repr((sys.argv, os.environ.get('A'), os.getcwd())) + '\\n')\n",
    "fail.py": "import sys\n\nprint('<z02> out')\nprint('<z03> err', file=sys.stderr)\nsys.exit(3)\n",
    "run.sh": "echo ran >> sh.log\necho '<z04>' sh $1\n",
    "t.py": "import unittest\n\n\nclass Case(unittest.TestCase):\n"
    "    def test_one(self):\n        open('ran-one', 'w').close()\n\n"
    "    def test_two(self):\n        open('ran-two', 'w').close()\n\n\n"
    "if __name__ == '__main__':\n    unittest.main()\n",
    "fix.patch": "--- a/m.py\n+++ b/m.py\n@@ -1,2 +1,2 @@\n" + f"-{LINES[0]}\n+# fixed\n {LINES[1]}\n",
}


def plain(text: str) -> str:
    return text.replace("⏎", "\n").replace("⇥", "\t")


def blocks(name: str) -> list[list[str]]:
    text = (HERE / name).read_text(encoding="utf-8").partition("\n\n")[2]
    return [[plain(line) for line in block.splitlines()] for block in text.strip().split("\n\n")]


SAME = blocks("real_effects.txt")
DIFFERENT = blocks("real_differences.txt")
SCRIPTS = [line for block in blocks("real_scripts.txt") for line in block]
SOME_SCRIPTS = SCRIPTS[::6]

DRIVER = r"""
import json, os, subprocess

commands = json.load(open("/testbed/task.json"))
git = "status --porcelain -b", "stash list", "log --oneline", "branch", "tag"
os.environ.update(GIT_AUTHOR_DATE="2020-01-01T00:00:00Z", GIT_COMMITTER_DATE="2020-01-01T00:00:00Z")
subprocess.run("rm -f /testbed/task.json /testbed/results.json; cp -a /testbed /tmp/.pristine", shell=True, check=True)


def restore():
    again = "rm -rf /testbed/* /testbed/.[!.]* /tmp/*; cp -a /tmp/.pristine/. /testbed/"
    subprocess.run(again, shell=True, check=True)


def content(path):
    if os.path.islink(path):
        return os.readlink(path)
    with open(path, errors="replace") as file:
        return f"{os.access(path, os.X_OK)} {file.read()}"


results = {}
for command in commands:
    restore()
    done = subprocess.run(["bash", "-c", command], cwd="/testbed", stdin=subprocess.DEVNULL, capture_output=True)
    tree = {}
    for top in ("/testbed", "/tmp"):
        for folder, names, inside in os.walk(top):
            names[:] = [n for n in names if n not in (".git", "__pycache__", ".pristine")]
            tree.update({os.path.join(folder, n): "/" for n in names})
            tree.update({path: content(path) for path in (os.path.join(folder, n) for n in inside)})
    said = [subprocess.run(["git", *words.split()], cwd="/testbed", capture_output=True, text=True) for words in git]
    tree[".git"] = "".join(one.stdout for one in said)
    results[command] = [tree, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")]
restore()
json.dump(results, open("/testbed/results.json", "w"))
"""
SETUP = (
    "git init -q -b main . && git config user.name a && git config user.email a@b && git add -A && git commit -qm start"
)


def run_for_real(commands):
    """The effect of every command and of its canonical text, each run on the repository made anew in one sandbox."""
    commands = sorted({*commands, *map(canonical_command, commands)})
    spec = base.SandboxSpec(workdir="/testbed", timeout=600.0, cpu_seconds=600)
    try:
        sandbox = local.LocalSandbox(spec)
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    with sandbox:
        for path, text in FILES.items():
            sandbox.write(path, text.encode())
        made = sandbox.exec(["bash", "-c", SETUP])
        assert made.code == 0, made
        results = {}
        for start in range(0, len(commands), 100):
            sandbox.write("task.json", json.dumps(commands[start : start + 100]).encode())
            done = sandbox.exec(["python3", "-c", DRIVER])
            assert done.code == 0, done
            results |= json.loads(sandbox.read("results.json"))
    return {command: effect(command, *result) for command, result in results.items()}


ERROR = re.compile(r"^.*(?:No such file|cannot|can't|not set|too many|expected|operand|not found).*$", re.MULTILINE)


def effect(command, tree, output, errors):
    """The tree without durations and wordings of errors; lines shown of the repository, else names or counts."""
    tree = {path: ERROR.sub("error", re.sub(r"in [0-9.]+s", "in 0s", text)) for path, text in tree.items()}
    shown = frozenset(line.strip() for line in re.findall(r"<[mnsz]\d\d>.*", output + errors))
    counts = re.findall(r"^\s*(\d+)(?: \S+)?\s*$", output, re.MULTILINE)
    # A name that the command itself gives (rm -v) is no news.
    names = [name for name in re.findall(r"(?:^|[/\s])([\w.]+\.(?:py|txt|patch))\b", output) if name not in command]
    return tree, shown or frozenset(counts or names)


@pytest.fixture(scope="module")
def effects():
    return run_for_real({command for block in SAME + DIFFERENT for command in block} | set(SOME_SCRIPTS))


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


@pytest.mark.parametrize("script", SOME_SCRIPTS)
def test_the_canonical_text_does_the_same(effects, script):
    assert effects[canonical_command(script)] == effects[script]


@pytest.mark.full
def test_every_canonical_text_does_the_same():
    effects = run_for_real(SCRIPTS)
    assert [script for script in SCRIPTS if effects[canonical_command(script)] != effects[script]] == []


@pytest.mark.parametrize(
    ("tool", "arguments", "after"),
    [
        ("delete_lines", {"from_line": 2, "to_line": "3"}, "1\n4\n"),
        ("replace_in_file", {"from_line": 2, "to_line": 2, "content": "  a\\n b\n\tc'\n"}, "1\n  a\\n b\n\tc'\n3\n4\n"),
        ("replace_in_file", {"from_line": 1, "to_line": 4, "content": "one"}, "one\n"),
        ("replace_in_file", {"from_line": 3, "to_line": 4, "content": ""}, "1\n2\n"),
    ],
)
def test_line_edits_of_tools_do_what_their_shell_twins_do(tool, arguments, after):
    call = Call(name=tool, arguments={"file_path": "four.txt", **arguments})
    effects = run_for_real([f"printf '1\\n2\\n3\\n4\\n' > four.txt; {canonical_call(call)}"])
    assert all(tree["/testbed/four.txt"] == f"False {after}" for tree, _ in effects.values())
