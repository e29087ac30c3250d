"""`validate`: tasks that do what they say, tasks that do not, and every way to leave."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentgym_rtmc.cli import main
from agentgym_rtmc.environments.known_bad import read_known_bad, write_known_bad
from agentgym_rtmc.environments.sandbox.local import LocalSandbox
from agentgym_rtmc.environments.validation import validate_tasks
from agentgym_rtmc.errors import SandboxUnavailableError
from agentgym_rtmc.registration import find_env, load_task_set

MODULE = '''
"""Tasks that are broken in every way, and fine ones."""
import os, time
import agentgym_rtmc
from agentgym_rtmc import Task, TaskSet
from agentgym_rtmc.calls import ShellProtocol
from agentgym_rtmc.environments import AgentEnv, Reply
from agentgym_rtmc.errors import GradingError, TaskError

PROTOCOL = ShellProtocol()
KINDS = ("free", "unpaid", "dear", "broken", "sick", "odd", "silent", "endless")


def load_tasks(fine=6, kinds=KINDS):
    tasks = [Task(id=f"fine-{n}", private={"kind": "fine"}) for n in range(fine)]
    return TaskSet("mixed", {"train": tasks, "bad": [Task(id=kind, private={"kind": kind}) for kind in kinds]})


class MixedEnv(AgentEnv):
    system_prompt = ""
    protocol = PROTOCOL

    def __init__(self, pay=1.0, mark="", render_mode=None):
        super().__init__(load_tasks, max_turns=3, render_mode=render_mode)
        self.pay, self.mark, self.tries = pay, mark, 0

    def begin(self, task):
        self.kind, self.done = task.private["kind"], False
        if self.kind == "broken":
            raise TaskError("it has no files")
        if self.kind == "die":
            os._exit(3)
        if self.kind == "hang":
            from agentgym_rtmc.environments.sandbox.local import LocalSandbox
            with LocalSandbox() as sandbox:
                open(self.mark + str(os.getpid()), "w").close()
                sandbox.exec(["python3", "-c", f"import time; time.sleep(60)  # {self.mark}"], timeout=60)
        return "go", {}

    def act(self, calls):
        self.done = True
        return Reply("done", terminated=self.kind != "endless")

    def grade(self):
        if self.kind == "sick":
            raise GradingError("the grader is ill")
        if self.kind == "well again":
            self.tries += 1
            if self.tries % 2:
                raise GradingError("the grader is ill")
        if self.kind == "odd":
            raise ZeroDivisionError("division by zero")
        return {"right": self.pay * {"free": 1, "unpaid": 0, "dear": 2 * self.done}.get(self.kind, float(self.done))}


def reference(task, observation, rng):
    if task.private["kind"] == "silent":
        return
    yield PROTOCOL.render(agentgym_rtmc.Call(name="shell", arguments={"command": "do it"}))


agentgym_rtmc.register_env(
    "mixed/Mixed-v0", "mixed:MixedEnv", task_sets={"mixed": "mixed:load_tasks"}, reference="mixed:reference"
)
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder with a module in it."""
    (tmp_path / "mixed.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def run(*arguments, cwd, **environment):
    return subprocess.run(
        [sys.executable, "-m", "agentgym_rtmc", "validate", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=cwd,
        env={**os.environ, **environment},
        check=False,
    )


BROKEN = {
    "free": "doing nothing is paid 1, not 0",
    "unpaid": "the reference is paid 0, not 1",
    "dear": "the reference is paid 2, not 1",
    "broken": "the reference: TaskError: it has no files; doing nothing: TaskError: it has no files",
    "sick": "the reference: GradingError: the grader is ill; doing nothing: GradingError: the grader is ill",
    "odd": "the reference: ZeroDivisionError: division by zero; doing nothing: ZeroDivisionError: division by zero",
    "silent": "the reference: TaskError: it never acts",
}


def test_what_is_broken_is_listed_with_the_reason(folder):
    done = run("mixed:mixed/Mixed-v0", "--workers", "2", "--json", "report.json", cwd=folder)
    assert done.returncode == 1, done.stderr
    listed = dict(
        line.removeprefix("broken: ").split(": ", 1) for line in done.stdout.splitlines() if "broken: " in line
    )
    assert listed == BROKEN
    assert "mixed/Mixed-v0, mixed: 7 of 14 tasks are broken (" in done.stdout
    assert done.stderr.splitlines()[-1] == "validated 14 of 14 tasks, 7 broken"
    report = json.loads((folder / "report.json").read_text())
    assert report["environment"] == "mixed/Mixed-v0" and report["task_set"] == "mixed"
    assert [row["broken"] for row in report["splits"]] == [0, 7]
    assert [row["tasks"] for row in report["splits"]] == [6, 8]
    by_task = {row["task"]: row for row in report["tasks"]}
    assert by_task["fine-3"] == {"task": "fine-3", "reference": 1.0, "nothing": 0.0, "problems": []}
    assert by_task["endless"]["problems"] == []  # out of turns, and graded as it stands
    assert by_task["free"]["nothing"] == 1.0 and by_task["odd"]["reference"] is None


def test_what_is_fine_ends_with_0_and_options_are_taken(folder):
    twice = ["--split", "train", "--split", "train"]
    fine = run("mixed:mixed/Mixed-v0", *twice, "--limit", "4", "--task-option", "fine=9", cwd=folder)
    assert (fine.returncode, "all 4 tasks are fine" in fine.stdout) == (0, True), fine.stderr
    half = run("mixed:mixed/Mixed-v0", "--split", "train", "--option", "pay=0.5", "--workers", "1", cwd=folder)
    assert half.returncode == 1 and half.stdout.count("the reference is paid 0.5, not 1") == 6
    once = run("mixed:mixed/Mixed-v0", "--split", "bad", "--task-option", 'kinds=["well again"]', cwd=folder)
    assert once.returncode == 0  # the machine's failure was one; the task is fine


def test_the_reference_or_doing_nothing_alone(folder):
    done = run("mixed:mixed/Mixed-v0", "--gold", "--json", "gold.json", cwd=folder)
    assert done.returncode == 1 and "broken: free" not in done.stdout and "broken: unpaid" in done.stdout
    assert "reference paid 1" in done.stdout and "nothing paid 0" not in done.stdout
    assert {row["nothing"] for row in json.loads((folder / "gold.json").read_text())["tasks"]} == {None}
    done = run("mixed:mixed/Mixed-v0", "--noop", "--json", "noop.json", cwd=folder)
    assert done.returncode == 1 and "broken: free" in done.stdout and "broken: unpaid" not in done.stdout
    assert {row["reference"] for row in json.loads((folder / "noop.json").read_text())["tasks"]} == {None}
    both = run("mixed:mixed/Mixed-v0", "--gold", "--noop", cwd=folder)
    assert both.returncode == 1 and all(f"broken: {name}" in both.stdout for name in BROKEN)


def test_the_known_bad_are_listed(folder):
    """Those whose reference is not paid; not those that the machine kept from being played."""
    path = folder / "bad.toml"
    words = ["mixed:mixed/Mixed-v0", "--known-bad", "bad.toml", "--gold", "--noop"]
    write_known_bad(path, {"elsewhere": 'of "another" set\n\x00', "fine-1": "mended since", "unpaid": "old"})
    done = run(*words, cwd=folder)
    assert done.returncode == 1 and "bad.toml: lists 2 of these tasks" in done.stdout  # sick and others remain
    assert read_known_bad(path) == {
        "elsewhere": 'of "another" set ?',
        "dear": "the reference is paid 2, not 1",
        "unpaid": "the reference is paid 0, not 1",
    }
    only = ["--split", "bad", "--task-option", 'kinds=["unpaid","endless"]']
    done = run(*words, *only, cwd=folder)
    assert done.returncode == 0 and "1 of 2 tasks are broken" in done.stdout  # all that is broken is listed
    assert run(*words[:3], "--noop", *only, cwd=folder).returncode == 2
    assert sorted(read_known_bad(path)) == ["dear", "elsewhere", "unpaid"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--split", "trian"], "did you mean 'train'"),
        (["--option", "colour=3"], "has no option 'colour'; known: mark, pay"),
        (["--task-option", "size=3"], "has no option 'size'"),
        (["--task-set", "none"], "no task set 'none'"),
        (["--split", "bad", "--task-option", "kinds=[]"], "has no tasks in bad"),
    ],
)
def test_mistakes_are_told(folder, arguments, complaint):
    done = run("mixed:mixed/Mixed-v0", *arguments, cwd=folder)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_environment_without_a_reference_cannot_be_validated(folder, capsys):
    source = "import agentgym_rtmc, mixed\nagentgym_rtmc.register_env('mixed/Bare-v0', 'mixed:MixedEnv', task_sets={'all': 'mixed:load_tasks'})\n"  # noqa: E501
    (folder / "bare.py").write_text(source)
    done = run("bare:mixed/Bare-v0", cwd=folder)
    assert done.returncode == 2 and "has no reference player" in done.stderr


def test_a_worker_that_dies_is_told(folder):
    done = run("mixed:mixed/Mixed-v0", "--split", "bad", "--task-option", 'kinds=["die"]', cwd=folder)
    assert (
        done.returncode == 2
        and done.stderr == "error: a worker process died; is there enough memory? Fewer --workers need less of it\n"
    )


def processes_with(mark):
    """Processes of this machine with `mark` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def wait_until(condition, seconds=60.0):
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, "it did not happen"
        time.sleep(0.05)


def test_an_interruption_ends_the_workers_and_what_they_started(folder):
    try:
        LocalSandbox().close()
    except SandboxUnavailableError as error:
        pytest.skip(f"no sandbox on this machine: {str(error).splitlines()[0]}")
    mark = f"{folder}/mark-"
    arguments = ["--split", "bad", "--task-option", 'kinds=["hang","free","unpaid"]', "--option", f"mark={mark}"]
    child = subprocess.Popen(
        [sys.executable, "-m", "agentgym_rtmc", "validate", "mixed:mixed/Mixed-v0", "--workers", "2", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
    )
    wait_until(lambda: processes_with(f"time.sleep(60)  # {mark}"))
    workers = [int(path.name.rpartition("-")[2]) for path in folder.glob("mark-*")]
    os.killpg(child.pid, signal.SIGINT)  # as a terminal does: everybody in the foreground gets it
    _, complaint = child.communicate(timeout=60)
    assert child.returncode == 130 and complaint.splitlines()[-1] == "interrupted"
    wait_until(lambda: not processes_with(f"time.sleep(60)  # {mark}"))
    for worker in workers:
        assert not Path(f"/proc/{worker}").exists()


def test_the_iterator_can_be_closed_early(folder):
    load_task_set("mixed:mixed/Mixed-v0")
    tasks = load_task_set("mixed/Mixed-v0", fine=40).split("train")
    checking = validate_tasks(find_env("mixed/Mixed-v0"), tasks, workers=2, modules=["mixed"])
    first = next(checking)
    assert first.problems == ()
    checking.close()


def test_builtin_is_fine_from_the_command_line(capsys):
    try:
        LocalSandbox().close()
    except SandboxUnavailableError as error:
        pytest.skip(f"no sandbox on this machine: {str(error).splitlines()[0]}")
    assert main(["validate", "CodeRepair-v0", "--limit", "3", "--workers", "2"]) == 0
    shown = capsys.readouterr().out
    assert "all 21 tasks are fine" in shown and "handwritten_test" in shown
