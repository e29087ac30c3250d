"""The generated questions: how many, in which splits, the same everywhere."""

import hashlib
import os
import subprocess
import sys

import pytest

from agentgym_rtmc.environments.data_questions.domains import load_domains
from agentgym_rtmc.environments.data_questions.families import FAMILIES, HELD_OUT
from agentgym_rtmc.environments.data_questions.tasks import load_questions
from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.tasks import Task


def texts(tasks):
    return {(task.public["domain"], task.public["question"]) for task in tasks}


def test_there_are_thousands(questions):
    assert questions.splits == {"train": 3339, "validation": 382, "test": 636, "schemas": 374, "families": 270}
    assert len(load_questions(databases=48).split("train")) > 9000


def test_no_question_is_asked_in_two_splits_or_twice_of_a_database(questions):
    splits = [texts(questions.split(name)) for name in questions.splits]
    assert sum(map(len, splits)) == len(set().union(*splits))
    asked = [(task.public["domain"], task.public["seed"], task.public["question"]) for task in questions]
    assert len(set(asked)) == len(asked)


def test_no_database_is_used_in_two_splits(questions):
    used = [
        {(task.public["domain"], task.public["seed"]) for task in questions.split(name)} for name in questions.splits
    ]
    assert sum(map(len, used)) == len(set().union(*used))


def test_held_out_schemas_and_families_are_in_no_other_split(questions):
    held_out = {name for name, domain in load_domains().items() if domain.split == "heldout"}
    assert len(held_out) == 3 and len(load_domains()) == 12
    for name in questions.splits:
        domains = {task.public["domain"] for task in questions.split(name)}
        families = {task.public["family"] for task in questions.split(name)}
        assert domains == (held_out if name == "schemas" else set(load_domains()) - held_out)
        assert families == (set(HELD_OUT) if name == "families" else set(FAMILIES) - set(HELD_OUT))


def test_every_level_is_in_every_split_of_the_known_families(questions):
    for name in ("train", "validation", "test", "schemas"):
        assert {task.public["level"] for task in questions.split(name)} == {1, 2, 3, 4, 5}


def test_answers_are_private(questions):
    for task in questions:
        assert set(task.public) == {"family", "level", "domain", "seed", "question"}
        assert set(task.private) == {"sql", "answer"}
    task = questions.split("train")[0]
    assert Task.model_validate(task.model_dump(mode="json")) == task


def test_tasks_are_the_same_in_every_process():
    script = (
        "import hashlib; from agentgym_rtmc.environments.data_questions.tasks import load_questions; "
        "print(hashlib.sha256(''.join(t.model_dump_json() for t in load_questions(databases=2)).encode()).hexdigest())"
    )
    dumps = [task.model_dump_json() for task in load_questions(databases=2)]
    here = hashlib.sha256("".join(dumps).encode()).hexdigest()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == here


def test_options_choose():
    chosen = load_questions(levels=[1, 3], domains=["shop", "hotel"], limit=20)
    assert {task.public["domain"] for task in chosen} == {"shop", "hotel"} and max(chosen.splits.values()) == 20
    assert {task.public["level"] for task in chosen} == {1, 3}
    assert {task.public["family"] for task in load_questions(families=["last_day"])} == {"last_day"}
    more = load_questions(heldout_databases=6)
    assert len(more.split("test")) > 900 and more.split("train") == load_questions().split("train")
    less, more = load_questions(databases=2), load_questions(databases=3)
    assert less.split("test") == more.split("test") and set(map(str, less)) < set(map(str, more))


@pytest.mark.parametrize(
    "options", [{"limit": 0}, {"levels": [6]}, {"families": ["counts"]}, {"databases": 0}, {"databases": 10**9}]
)
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError):
        load_questions(**options)
