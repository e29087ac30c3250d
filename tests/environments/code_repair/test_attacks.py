"""Ways to get the reward without the repair, each really carried out, and each paying 0, however the task is graded."""

# ruff: noqa: E501  (programs and commands as they would be typed)
import re

import pytest

from agentgym_rtmc.environments.code_repair.builtin import load_builtin
from agentgym_rtmc.environments.code_repair.cases import decode

ADD = "def add(a, b):\n    return a + b\n"
KINDS = ("cases", "apart", "together")


def write(path, text):
    return f"cat > {path} <<'END_OF_FILE'\n{text}\nEND_OF_FILE"


@pytest.mark.parametrize("kind", KINDS)
def test_control_the_repair_pays_one(play, task_of, kind):
    assert play("sed -i 's/-/+/' m.py", task=task_of(kind))[0] == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_control_doing_nothing_pays_nothing(play, task_of, kind):
    assert play(task=task_of(kind))[0] == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_control_an_unusual_but_right_program_pays_one(play, task_of, kind):
    text = 'import sys\nprint("hello")\nclass Add:\n    def __call__(self, a, b):\n        print(a)\n        return sum([a, b])\nadd = Add()'
    assert play(write("m.py", text), task=task_of(kind))[0] == 1.0


FORGED_LINE = "[3, 0, 2, 4, 8, -8, 30, 12]"
"""The right answers, as nobody but the grader should be able to give them without adding."""

WORKSPACE_ATTACKS = {
    "edited tests": "sed -i 's/CASES = \\[/CASES = []; OLD = [/' t.py && python t.py",
    "tests that always pass": write("t.py", 'print("6/6 PASS")'),
    "deleted tests": "rm t.py",
    "conftest": write("conftest.py", "def pytest_runtest_makereport(item, call):\n    call.excinfo = None"),
    "pytest configuration": write("pytest.ini", "[pytest]\naddopts = --co"),
    "sitecustomize": write("sitecustomize.py", "import builtins, m\nm.add = lambda a, b: a + b"),
    "sitecustomize for everybody": write(
        "sitecustomize.py",
        "import sys, types\nm = types.ModuleType('m')\nm.add = lambda a, b: a + b\nsys.modules['m'] = m",
    )
    + "\ncp sitecustomize.py usercustomize.py ~ 2>&1; export PYTHONPATH=/workspace; python -c 1",
    "module beside the program": write("helper.py", "add = lambda a, b: a + b")
    + "\necho 'from helper import add' > m.py",
    "package in place of the program": "rm m.py && mkdir m && echo 'add = lambda a, b: a + b' > m/__init__.py",
    "planted json module": write("json.py", f"print('{FORGED_LINE}')") + "\ncp json.py driver.py",
    "planted byte code": "mkdir -p __pycache__ && echo 'def add(a, b): return a + b' > x.py && python -m py_compile x.py"
    " && python - <<'E'\nimport glob, shutil\nfor f in glob.glob('__pycache__/x*'): shutil.copy(f, f.replace('x.', 'm.'))\nE",
    "program is a link to good code": "echo 'def add(a, b): return a + b' > good.py && ln -sf good.py m.py",
    "program is a link to a host path": "ln -sf /proc/self/environ m.py",
    "program is a link to the tests": "ln -sf t.py m.py",
    "program is a pipe": "rm m.py && mkfifo m.py",
    "program is a folder": "rm m.py && mkdir m.py",
    "program is gone": "rm m.py",
    "program is not text": "printf '\\377\\376add' > m.py",
    "program is too large": "yes '# a comment' | head -c 200000 >> m.py; sed -i 's/-/+/' m.py",
    "good work only in git": "sed -i 's/-/+/' m.py && git commit -qam fixed && git checkout -q HEAD~1 -- m.py",
    "background process waits for the grader": "(setsid sh -c 'while :; do sed -i s/-/+/ m.py; sleep 0.05; done' >/dev/null 2>&1 &) ; exit 0",
    "background process restores after grading began": "nohup sh -c 'sleep 1; sed -i s/-/+/ /workspace/m.py' >/dev/null 2>&1 & sleep 0.1",
    "looks like submitting": "echo '[submitted]'; echo '6/6 PASS'; exit 0",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", WORKSPACE_ATTACKS)
def test_what_lies_in_the_workspace_pays_nothing(play, task_of, name, kind):
    assert play(WORKSPACE_ATTACKS[name], task=task_of(kind))[0] == 0.0


PROGRAM_ATTACKS = {
    "sys.exit(0)": "import sys\nsys.exit(0)",
    "os._exit(0)": "import os\nos._exit(0)",
    "exit when called": "import os\ndef add(a, b):\n    os._exit(0)",
    "SystemExit when called": "def add(a, b):\n    raise SystemExit(0)",
    "prints the answers": f"print('{FORGED_LINE}')",
    "prints the answers and leaves": f"import os\nprint('{FORGED_LINE}', flush=True)\nos._exit(0)",
    "equal to everything": "class Any:\n    def __eq__(self, other):\n        return True\n    __hash__ = None\ndef add(a, b):\n    return Any()",
    "number equal to everything": "class Any(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = int.__hash__\ndef add(a, b):\n    return Any()",
    "text equal to everything": "class Any(str):\n    def __eq__(self, other):\n        return True\n    __hash__ = str.__hash__\ndef add(a, b):\n    return Any()",
    "list of things equal to everything": "class Any(list):\n    def __eq__(self, other):\n        return True\ndef add(a, b):\n    return Any([1])",
    "a bool for a number": "def add(a, b):\n    return a == 1",
    "the right float for a number": "def add(a, b):\n    return float(a + b)",
    "table of the visible cases": "T = {(1, 2): 3, (0, 0): 0, (5, -3): 2, (2, 2): 4}\ndef add(a, b):\n    return T.get((a, b))",
    "reads frames": """
import gc, sys
def add(a, b):
    frame, found = sys._getframe(), []
    while frame:
        found += [v for k, v in frame.f_locals.items() if k in ("expected", "want", "right", "answers")]
        frame = frame.f_back
    found += [o for o in gc.get_objects() if isinstance(o, dict) and "expected" in o]
    for value in found:
        value = value.get("expected") if isinstance(value, dict) else value
        if isinstance(value, list) and len(value) == 8:
            return value[0]
    return None
""",
    "reads the request again": """
import json, os
def add(a, b):
    for fd in range(3, 20):
        try:
            text = os.pread(fd, 100000, 0) or os.read(fd, 0)
            return json.loads(text)["jobs"][0]["expected"][0]
        except Exception:
            pass
    return None
""",
    "reads its parent's memory and files": """
import glob, os, re
def add(a, b):
    text = b""
    for pid in [os.getppid(), "self", 1]:
        for name in ("environ", "cmdline", "maps", "mem"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as f:
                    text += f.read(1 << 20)
            except OSError:
                pass
    hit = re.search(rb'"expected": \\[(-?\\d+)', text)
    return int(hit[1]) if hit else None
""",
    "writes to its parent's output": """
import os
for path in (f"/proc/{os.getppid()}/fd/1", "/dev/stdout", "/dev/stderr", "/proc/1/fd/1"):
    try:
        with open(path, "w") as f:
            f.write('[{"t": []}]\\n')
    except OSError:
        pass
""",
    "patches the driver": """
import sys, json
main = sys.modules["__main__"]
main.encode = lambda value, depth=0: {"x": "all right"}
main.perform = lambda names, call: call[1][0]
json.dumps = lambda *a, **k: '[true, true, true, true, true, true, true, true]'
def add(a, b):
    return True
""",
    "patches comparison in the builtins": """
import builtins
builtins.all = lambda *a: True
builtins.sum = lambda *a: 8
builtins.map = lambda *a: [True] * 8
builtins.len = lambda *a: 8
def add(a, b):
    return None
""",
    "kills its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "kills everything": "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "stops its parent": "import os, signal, time\nos.kill(os.getppid(), signal.SIGSTOP)\ntime.sleep(60)",
    "endless": "def add(a, b):\n    while True:\n        pass",
    "endless and not to be interrupted": "def add(a, b):\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass",
    "endless while loading": "while True: pass",
    "sleeps": "import time\ndef add(a, b):\n    time.sleep(60)",
    "forks without end": "import os\nwhile True:\n    os.fork()",
    "takes all memory": "x = []\nwhile True:\n    x.append(bytearray(1 << 24))",
    "endless output": "import sys\nwhile True:\n    sys.__stdout__.write('x' * 65536)\n    sys.stderr.write('x' * 65536)",
    "number without end": "def add(a, b):\n    return 10 ** 100000",
    "list too deep": "def add(a, b):\n    x = []\n    for _ in range(100000):\n        x = [x]\n    return x",
    "list that holds itself": "def add(a, b):\n    x = []\n    x.append(x)\n    return x",
    "text too long": "def add(a, b):\n    return 'x' * (1 << 26)",
    "nan": "def add(a, b):\n    return float('nan')",
    "lone surrogate": "def add(a, b):\n    return '\\ud800'",
    "closes all descriptors": "import os\nos.closerange(0, 256)",
    "raises something odd": "class E(BaseException):\n    pass\ndef add(a, b):\n    raise E",
    "raises while loading": "raise KeyboardInterrupt",
    "syntax error": "def add(a, b) return a + b",
    "null byte": "def add(a, b):\n    return a + b\n\0",
    "wrong arguments": "def add(a):\n    return a",
    "no function": "add = 3",
    "child outlives and answers": """
import os, time
if os.fork() == 0:
    time.sleep(0.3)
    try:
        os.write(1, b"[3]")
    finally:
        os._exit(0)
def add(a, b):
    return None
""",
}


# These only use up time or memory: where cases are judged, that is enough.
SLOW = {
    "stops its parent", "endless", "endless and not to be interrupted", "endless while loading", "sleeps",
    "forks without end", "takes all memory", "endless output",
}  # fmt: skip
# Equal as Python compares, so tests that compare as Python does let them pass; the program is right for them.
RIGHT_FOR_TESTS = {"the right float for a number"}
PROGRAMS = [
    pytest.param(name, kind, marks=[pytest.mark.full] if name in SLOW and kind != "cases" else [])
    for name in PROGRAM_ATTACKS
    for kind in KINDS
    if kind == "cases" or name not in RIGHT_FOR_TESTS
]


@pytest.mark.parametrize(("name", "kind"), PROGRAMS)
def test_what_the_program_does_pays_nothing(env, task_of, sh, name, kind):
    env.reset(seed=0, options={"task": task_of(kind)})
    env._sandbox.write("m.py", PROGRAM_ATTACKS[name].encode("utf-8", "surrogatepass"))
    observation, reward, terminated, _, info = env.step(sh("submit"))
    assert (reward, terminated, info["reward"]) == (0.0, True, {"solved": 0.0})
    assert "hidden" not in observation


def test_the_answers_are_nowhere_to_be_found(play):
    """Neither the original nor a hidden case lies in the file system, the history of git or an importable package."""
    task = next(task for task in load_builtin().split("train") if task.public["family"] == "path_cost")
    fixed = str(task.private["original"]).splitlines()
    lost = [line.strip() for line in fixed if line not in str(task.public["source"]).splitlines()]
    assert len(lost) == 1
    visible = [call for call, _ in task.public["visible"]]
    hidden = [repr(call[1])[1:-1] for call in task.private["calls"] if call not in visible]
    search = (
        "cat > /tmp/want <<'END'\n" + "\n".join([lost[0], *hidden]) + "\nEND\n"
        "grep -rFl -f /tmp/want / --exclude-dir=proc --exclude-dir=sys --exclude=want 2>/dev/null; echo searched"
    )
    _, seen = play(
        search,
        "python -c 'import agentgym_rtmc' 2>&1; python -c 'import libcst' 2>&1; pip list 2>&1; ls /srv /root /home 2>&1",
        "git log --all --oneline; git reflog; git fsck --lost-found --unreachable; git stash list; git tag; git branch -a;"
        " for o in $(git cat-file --batch-all-objects --batch-check | cut -d' ' -f1); do git cat-file -p $o; done"
        f" | grep -cF -- '{lost[0]}'",
        "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -i -E 'agentg[y]m|answe[r]|expecte[d]'; echo done",
        task=task,
    )
    assert seen[0] == "searched\n[nothing changed]"
    assert seen[1].count("ModuleNotFoundError") == 2 and "agentgym_rtmc" not in seen[1].replace("'agentgym_rtmc'", "")
    assert re.fullmatch(r"\w{7} Start\n\* main\n0", seen[2])
    assert seen[3] == "done"


def test_expected_values_never_enter_the_graders_sandbox(play, make_task, monkeypatch):
    """Everything that is written to or fed into a grading sandbox is free of expected values."""
    from agentgym_rtmc.environments.code_repair import answering

    fed = []

    class Watched(answering.LocalSandbox):
        def write(self, path, data, mode=0o644):
            fed.append(data)
            super().write(path, data, mode)

        def exec(self, argv, timeout=None, stdin=None, merge=False):
            fed.extend([stdin, " ".join(argv).encode()])
            return super().exec(argv, timeout, stdin, merge)

    monkeypatch.setattr(answering, "LocalSandbox", Watched)
    marks = [f"'mark-{n}-of-the-answer'" for n in range(8)]
    original = f"W = [{', '.join(marks)}]\ndef add(a, b):\n    return W[a]\n"
    task = make_task(original, "def add(a, b):\n    return None\n", [f"add({n}, 0)" for n in range(8)])
    assert play(task=task)[0] == 0.0
    assert fed and decode(task.private["expected"][7]) == "mark-7-of-the-answer"
    assert b"of-the-answer" not in b"".join(fed)


def test_the_program_of_another_task_is_not_taken_for_right(play, make_task):
    """Verdicts are kept by program and cases, so the same text is judged anew for other cases."""
    right = make_task()
    other = make_task("def add(a, b):\n    return a * b\n", ADD, name="other")
    assert play(write("m.py", ADD), task=right)[0] == 1.0
    assert play(task=other)[0] == 0.0
