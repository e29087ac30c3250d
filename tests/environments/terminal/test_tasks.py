"""The generated jobs: how many, in which splits, the same everywhere."""

import hashlib
import json
import os
import subprocess
import sys

import pytest

from agentgym_rtmc.environments.terminal.families import FAMILIES, HELD_OUT
from agentgym_rtmc.environments.terminal.files import read_files
from agentgym_rtmc.environments.terminal.judging import judge
from agentgym_rtmc.environments.terminal.tasks import load_jobs
from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.tasks import Task

JOBS = load_jobs()


def test_there_are_thousands():
    assert len(FAMILIES) == 33 and len(HELD_OUT) == 6
    assert JOBS.splits == {"train": 2850, "validation": 285, "test": 380, "families": 320}
    assert len(load_jobs(scale=3).split("train")) > 8000


def test_no_job_occurs_twice():
    contents = [json.dumps([task.public["statement"], task.public["files"]]) for task in JOBS]
    assert len(set(contents)) == len(contents)


def test_held_out_families_are_in_no_other_split():
    def families(split):
        return {task.public["family"] for task in JOBS.split(split)} - {"joined"}

    assert families("families") == set(HELD_OUT)
    for split in ("train", "validation", "test"):
        assert families(split) == set(FAMILIES) - set(HELD_OUT)
        assert {task.public["level"] for task in JOBS.split(split)} == {1, 2, 3, 4, 5}


def test_doing_nothing_is_never_right_and_no_change_holds_at_the_start():
    for task in JOBS:
        start = read_files(task.public["files"], task.id)
        found = judge(task, start, start)
        assert (found.right, found.damaged) == (0, ()), task.id


def test_answers_do_not_stand_in_what_an_agent_is_told():
    for task in JOBS.split("train")[::7]:
        assert "answer.txt" not in json.dumps(list(task.public["files"]))
        assert not set(task.public) & set(task.private)


def test_traps_are_there():
    paths = [path for task in JOBS.split("train") if task.public["level"] == 3 for path in task.public["files"]]
    specs = [
        spec
        for task in JOBS.split("train")
        if task.public["level"] == 3
        for spec in task.public["files"].values()
        if isinstance(spec, dict)
    ]
    assert sum(" " in path for path in paths) > 300
    assert sum(part.startswith(".") for path in paths for part in path.split("/")) > 200
    assert sum("link" in spec for spec in specs) > 100 and any("mode" in spec for spec in specs)


def test_tasks_are_tasks():
    for task in list(JOBS)[::211]:
        assert Task.model_validate(task.model_dump(mode="json")) == task


def test_tasks_are_the_same_in_every_process():
    script = (
        "import hashlib; from agentgym_rtmc.environments.terminal.tasks import load_jobs; "
        "print(hashlib.sha256(''.join(task.model_dump_json() for task in load_jobs(limit=60)).encode()).hexdigest())"
    )
    here = hashlib.sha256("".join(task.model_dump_json() for task in load_jobs(limit=60)).encode()).hexdigest()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == here


def test_options_choose():
    chosen = load_jobs(levels=[1, 3], families=["pack", "unpack"], limit=10)
    assert {task.public["family"] for task in chosen} == {"pack", "unpack"} and max(chosen.splits.values()) == 10
    assert {task.public["level"] for task in chosen} == {1, 3}
    assert not chosen.split("families")


@pytest.mark.parametrize("options", [{"limit": 0}, {"levels": [6]}, {"families": ["packs"]}, {"scale": 0}])
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError):
        load_jobs(**options)
