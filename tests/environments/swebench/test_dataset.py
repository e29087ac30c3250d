"""Datasets: every row of Lite and Verified, every format, bad rows told by their place, splits that keep apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentgym_rtmc.environments.swebench.dataset import known_bad, load_rows, select
from agentgym_rtmc.environments.swebench.diff import parse_diff
from agentgym_rtmc.environments.swebench.rows import V5_COLUMNS, SWEBenchRow
from agentgym_rtmc.environments.swebench.splits import load_dataset
from agentgym_rtmc.environments.swebench.tasks import has_hints, row_of, task_of
from agentgym_rtmc.errors import ConfigError, DependencyError, RegistrationError, TaskError
from agentgym_rtmc.registration import load_task_set

pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
COUNTS = {"SWE-bench_Lite_dev": 23, "SWE-bench_Lite_test": 300, "SWE-bench_Verified_test": 500}


def small(name: str = "own__repo-1", **changes: Any) -> dict[str, Any]:
    """A small row of the present schema."""
    row = {
        "instance_id": name,
        "repo": "own/repo",
        "base_commit": "0123456789abcdef0123456789abcdef01234567",
        "problem_statement": "It fails.",
        "patch": "--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-a\n+b\n",
        "test_patch": "--- /dev/null\n+++ b/tests/test_m.py\n@@ -0,0 +1 @@\n+assert 1\n",
        "FAIL_TO_PASS": '["tests/test_m.py::test_a"]',
        "PASS_TO_PASS": "[]",
        "image": "own/image:1",
        "eval_script": "#!/bin/bash\n: '>>>>> Start Test Output'\npytest -rA\n: '>>>>> End Test Output'\n",
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
        "hints_text": "Look at line 1.",
        "created_at": "2024-01-01",
    }
    return {key: value for key, value in (row | changes).items() if value is not Ellipsis}


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_every_row_loads_and_tells_agents_no_secret(data: Path, name: str, count: int) -> None:
    loaded = load_rows(data / f"{name}.parquet")
    assert len(loaded.rows) == count and loaded.bad == ()
    for row in loaded.rows:
        task = task_of(row)
        assert row_of(task) == row
        assert row.image == f"swebench/sweb.eval.x86_64.{row.instance_id.lower().replace('__', '_1776_')}:latest"
        shown = task.disclosed().model_dump_json()
        assert sorted(task.public) == ["base_commit", "image", "problem_statement", "repo", "version"]
        for secret in (row.patch, row.test_patch, row.eval_script):
            assert json.dumps(secret, ensure_ascii=False)[1:-1] not in shown


def test_hints_are_shown_only_when_asked_for() -> None:
    row = SWEBenchRow.read(small(), "here")
    assert not has_hints(task_of(row)) and "line 1" not in task_of(row).disclosed().model_dump_json()
    task = task_of(row, hints=True)
    assert has_hints(task) and task.public["hints_text"] == "Look at line 1." and row_of(task) == row
    with pytest.raises(TaskError, match="has no private part"):
        row_of(task.disclosed())


ROWS = [small("own__repo-1"), small("own__repo-2", difficulty="<15 min fix", patch="a\u2028b\r\n")]


def save(folder: Path, kind: str) -> tuple[str, str]:
    """Write ROWS in one of the formats; returns a source and a split."""
    table = pyarrow.Table.from_pylist(ROWS, schema=pyarrow.schema({key: pyarrow.string() for key in {**ROWS[1]}}))
    match kind:
        case "parquet":
            parquet.write_table(table, folder / "rows.parquet")
            return str(folder / "rows.parquet"), "test"
        case "json":
            (folder / "rows.json").write_text(json.dumps(ROWS), encoding="utf-8")
            return str(folder / "rows.json"), "test"
        case "json by id":
            text = json.dumps({row["instance_id"]: row for row in ROWS})
            (folder / "rows.json").write_text(text, encoding="utf-8")
            return str(folder / "rows.json"), "test"
        case "jsonl":
            lines = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
            (folder / "rows.jsonl").write_text(lines, encoding="utf-8")
            return str(folder / "rows.jsonl"), "test"
        case "snapshot":
            (folder / "data").mkdir()
            for number in range(2):
                parquet.write_table(table.slice(number, 1), folder / "data" / f"dev-0000{number}-of-00002.parquet")
            parquet.write_table(table, folder / "data" / "test-00000-of-00001-0a1b2c.parquet")
            return str(folder), "dev"
        case "saved to disk":
            (folder / "train").mkdir()
            with pyarrow.ipc.new_stream(str(folder / "train" / "data-00000-of-00001.arrow"), table.schema) as stream:
                stream.write_table(table)
            (folder / "train" / "dataset_info.json").write_text("{}")
            (folder / "train" / "state.json").write_text("{}")
            return str(folder), "train"
    raise AssertionError(kind)


@pytest.mark.parametrize("kind", ["parquet", "json", "json by id", "jsonl", "snapshot", "saved to disk"])
def test_every_format(tmp_path: Path, kind: str) -> None:
    source, split = save(tmp_path, kind)
    assert [row.patch for row in load_rows(source, split).rows] == [row["patch"] for row in ROWS]


def test_a_folder_that_datasets_saved(tmp_path: Path) -> None:
    """Written by the `datasets` library itself, in a process of its own: importing it is slow."""
    script = (
        "import json, sys, datasets; d = datasets.DatasetDict(test=datasets.Dataset.from_list(json.load(sys.stdin)));"
    )
    script += "d.save_to_disk(sys.argv[1])"
    rows = [row | {"difficulty": "x"} for row in ROWS]
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "saved")],
        input=json.dumps(rows),
        text=True,
        capture_output=True,
        check=False,
        timeout=300,
    )
    if "No module named 'datasets'" in done.stderr:
        pytest.skip("the datasets library is not installed")
    assert done.returncode == 0, done.stderr
    assert len(load_rows(tmp_path / "saved").rows) == 2


def test_a_hub_id_is_answered_from_the_cache(tmp_path: Path) -> None:
    """In the hub's own cache layout, without network; one that is not there says what to do."""
    pytest.importorskip("huggingface_hub")
    commit = "0123456789abcdef0123456789abcdef01234567"
    top = tmp_path / "hub" / "datasets--SWE-bench--SWE-bench_Lite"
    (top / "refs").mkdir(parents=True)
    (top / "refs" / "main").write_text(commit)
    snapshot = top / "snapshots" / commit
    snapshot.mkdir(parents=True)
    save(snapshot, "snapshot")
    script = (
        "from agentgym_rtmc.environments.swebench.splits import load_lite, load_verified\n"
        "print(load_lite().splits)\ntry:\n    load_verified()\nexcept Exception as error:\n    print(error)"
    )
    env = {"PATH": os.environ["PATH"], "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, text=True, capture_output=True, check=False, timeout=120
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "{'test': 2}", done.stderr
    assert "SWE-bench/SWE-bench_Verified is not in the hub's cache" in lines[1] and "hf download" in lines[1]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"image": ...}, "no image: this is a row of an older release"),
        (
            dict.fromkeys(V5_COLUMNS, ...),
            "no image, eval_script, log_parser, eval_type: this is a row of an older release",
        ),
        (dict.fromkeys(V5_COLUMNS, ...), "SWE-bench/SWE-bench_Lite, SWE-bench/SWE-bench_Verified"),
        ({"FAIL_TO_PASS": "[1"}, "column FAIL_TO_PASS: is neither a list nor the JSON of one"),
        ({"FAIL_TO_PASS": "[]"}, "column FAIL_TO_PASS: Tuple should have at least 1 item"),
        ({"PASS_TO_PASS": [1, None]}, "column PASS_TO_PASS.1: Input should be a valid string"),
        ({"base_commit": "--exec=x"}, "column base_commit: String should match pattern"),
        ({"instance_id": "../up"}, "(../up): column instance_id: String should match pattern"),
        ({"log_parser": "os.system"}, "column log_parser: String should match pattern"),
        ({"eval_type": "both"}, "column eval_type: Input should be 'pass_and_fail' or 'fail_only'"),
        ({"patch": None}, "column patch: Input should be a valid string"),
        ({"problem_statement": ...}, "column problem_statement: Field required"),
        ({"image_assets": '{"test_patch": []}'}, "image_assets: binary files beside the patch are not supported"),
    ],
)
def test_bad_rows_are_told_by_their_place(tmp_path: Path, change: dict[str, Any], complaint: str) -> None:
    path = tmp_path / "rows.jsonl"
    bad = small("own__repo-2", **change)
    path.write_text("\n".join(json.dumps(row) for row in (ROWS[0], bad, small("own__repo-3"))), encoding="utf-8")
    with pytest.raises(TaskError) as caught:
        load_rows(path)
    assert str(caught.value).startswith(f"rows.jsonl: row 2 ({bad['instance_id']}): ") and complaint in str(
        caught.value
    )
    with pytest.warns(UserWarning, match=r"1 bad rows are left out; the first: rows\.jsonl: row 2"):
        loaded = load_rows(path, skip_bad=True)
    assert [row.instance_id for row in loaded.rows] == ["own__repo-1", "own__repo-3"]
    assert loaded.bad == (str(caught.value),)


def test_broken_lines_twice_the_same_id_and_what_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([json.dumps(ROWS[0]), "{broken", "[1]", json.dumps(ROWS[0]), json.dumps(ROWS[1])]))
    with pytest.warns(UserWarning, match="3 bad rows"):
        loaded = load_rows(path, skip_bad=True)
    assert [text.partition(": ")[2][:28] for text in loaded.bad] == [
        "row 2: Expecting property na",
        "row 3: a row is an object, n",
        "row 4 (own__repo-1): this in",
    ]
    assert len(loaded.rows) == 2


def test_sources_that_are_not_there(tmp_path: Path) -> None:
    (tmp_path / "x.txt").touch()
    (tmp_path / "b.parquet").write_bytes(b"no parquet")
    (tmp_path / "b.json").write_text("3")
    for source, complaint in (
        (tmp_path / "nosuch.parquet", "there is no file or folder"),
        (tmp_path / "x.txt", "rows are read from .parquet, .arrow, .jsonl, .json files"),
        (tmp_path / "b.parquet", "b.parquet: cannot be read"),
        (tmp_path / "b.json", "b.json: cannot be read: a list of rows is expected"),
        ("liet", "there is no file or folder 'liet'"),
    ):
        with pytest.raises(TaskError, match=complaint):
            load_rows(source)
    save(tmp_path, "snapshot")
    with pytest.raises(TaskError, match="has no split 'tset'; did you mean 'test'"):
        load_rows(tmp_path, "tset")


def test_missing_packages_are_named() -> None:
    script = (
        "import sys; sys.modules['pyarrow'] = sys.modules['pyarrow.parquet'] = None\n"
        "from agentgym_rtmc.environments.swebench.dataset import load_rows\n"
        "open('x.parquet', 'w').close()\n"
        "try:\n    load_rows('x.parquet')\nexcept Exception as error:\n    print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import os, tempfile; os.chdir(tempfile.mkdtemp())\n{script}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert DependencyError.__name__ in done.stdout and "pip install 'agentgym-rtmc[" in done.stdout, done.stderr


# -- filters and splits --------------------------------------------------------------------------------------------


def test_filters(data: Path) -> None:
    rows = load_rows(data / "SWE-bench_Verified_test.parquet").rows
    assert len(select(rows, repositories=["django/django"])) == 231
    assert len(select(rows, difficulty=[">4 hours"])) == 3
    two = ["django__django-10097", "psf__requests-1724"]
    assert [row.instance_id for row in select(rows, ids=two, without=two[:1])] == two[1:]
    assert len(select(rows, without=known_bad())) == 492
    for wrong, hint in (
        ({"repositories": ["django/djngo"]}, "'django/django'"),
        ({"difficulty": ["1-4 hour"]}, "'1-4 hours'"),
    ):
        with pytest.raises(TaskError, match=f"no row has the .* did you mean {hint}"):
            select(rows, **wrong)


def test_known_bad_lists_have_reasons_and_can_be_extended(tmp_path: Path) -> None:
    assert len(known_bad()) == 8 and all(known_bad().values())
    more = tmp_path / "mine.toml"
    more.write_text('"own__repo-1" = "no network here"\n')
    assert known_bad(more)["own__repo-1"] == "no network here" and len(known_bad(more)) == 9
    more.write_text('"own__repo-1" = ""\n')
    with pytest.raises(TaskError, match="own__repo-1 needs a reason"):
        load_dataset(source=_saved(tmp_path), known_bad_file=tmp_path / "." / "mine.toml")
    with pytest.raises(TaskError, match="cannot be read"):
        known_bad(tmp_path / "nosuch.toml")


def _saved(folder: Path) -> str:
    return save(folder, "json")[0]


def test_splits_say_how_they_were_made(data: Path) -> None:
    verified = data / "SWE-bench_Verified_test.parquet"
    assert load_dataset(source=verified).splits == {"test": 500}
    tasks = load_dataset(source=verified, by="repository")
    assert tasks.splits == {"train": 262, "heldout": 231}
    assert tasks.how == {
        "train": "repository not django/django, without 7 whose reference patch is known to fail (262 instances)",
        "heldout": "repository django/django (231 instances)",
    }
    assert {task.public["repo"] for task in tasks.split("heldout")} == {"django/django"}
    assert not set(known_bad()) & {task.id for task in tasks.split("train")}
    tasks = load_dataset(
        source=verified, by="difficulty", held_out=[">4 hours"], leave_out_known_bad="none", hints=True
    )
    assert tasks.splits == {"train": 497, "heldout": 3} and "with hints" in tasks.how["train"]
    assert all(has_hints(task) for task in tasks)


def test_a_split_by_hash_is_stable(data: Path) -> None:
    verified = data / "SWE-bench_Verified_test.parquet"
    tasks = load_dataset(source=verified, by="hash", leave_out_known_bad="none")
    heldout = {task.id for task in tasks.split("heldout")}
    assert 70 <= len(heldout) <= 130 and len(tasks) == 500
    fewer = load_dataset(source=verified, by="hash", leave_out_known_bad="none", repositories=["sympy/sympy"])
    assert {task.id for task in fewer.split("heldout")} == {name for name in heldout if name.startswith("sympy")}
    other = load_dataset(source=verified, by="hash", leave_out_known_bad="none", seed=1)
    assert {task.id for task in other.split("heldout")} != heldout


def test_what_is_evaluated_is_not_trained_on(data: Path) -> None:
    lite, verified = data / "SWE-bench_Lite_test.parquet", data / "SWE-bench_Verified_test.parquet"
    with pytest.raises(TaskError, match=r"93 instances of .*Lite.* are also in .*Verified.*drop_shared=true"):
        load_dataset(source=lite, evaluate_on=verified)
    tasks = load_dataset(source=lite, evaluate_on=verified, drop_shared=True)
    assert tasks.splits == {"train": 207, "evaluation": 500}
    assert load_dataset(source=data / "SWE-bench_Lite_dev.parquet", evaluate_on=verified).splits["train"] == 23


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"by": "hash", "held_out": ["x"]}, "held_out goes with"),
        ({"by": "hash", "heldout_share": 1.5}, "heldout_share lies between 0 and 1"),
        ({"by": "repo"}, "by='repo' is none of"),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, options: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        load_dataset(source=_saved(tmp_path), **options)


def test_misspelt_options_of_a_task_set_are_told() -> None:
    reference = "agentgym_rtmc.environments.swebench.splits:load_verified"
    with pytest.raises(RegistrationError, match="has no option 'repos'"):
        load_task_set("CodeRepair-v0", reference, repos=["django/django"])


def test_splits_that_would_hold_out_nothing(tmp_path: Path) -> None:
    source = _saved(tmp_path)
    with pytest.raises(TaskError, match="no row has one of django/django; say with held_out"):
        load_dataset(source=source, by="repository")
    with pytest.raises(TaskError, match="no row has the repository 'own/rpeo'"):
        load_dataset(source=source, by="repository", held_out=["own/rpeo"])


# -- rows of other datasets ----------------------------------------------------------------------------------------


SMITH = {
    "instance_id": "own__repo.1fd52536.func__ab12",
    "patch": "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1,3 +1,2 @@\n a\n-right\n+wrong\n-b\n",
    "FAIL_TO_PASS": ["tests/test_m.py::test_a", "tests/test_m.py::test_b", "tests/test_n.py::test_c"],
    "PASS_TO_PASS": ["tests/test_m.py::test_d"],
    "image_name": "someone/swesmith.x86_64.own_1776_repo.1fd52536",
    "repo": "swesmith/own__repo.1fd52536",
    "problem_statement": "It is wrong.",
}


def one(tmp_path: Path, values: dict[str, Any], **options: Any) -> SWEBenchRow:
    (tmp_path / "r.json").write_text(json.dumps([values]), encoding="utf-8")
    (row,) = load_rows(tmp_path / "r.json", **options).rows
    return row


def test_a_planted_bug_is_undone_by_the_reference(tmp_path: Path, git_cases) -> None:
    row = one(tmp_path, SMITH, recipe="swe-smith")
    assert row.image == SMITH["image_name"] and row.bug_patch == SMITH["patch"] and row.base_commit == "HEAD"
    assert "pytest --disable-warnings --color=no --tb=no -rA tests/test_m.py tests/test_n.py\n" in row.eval_script
    tree = {"m.py": ["100644", "a\nright\nb\n"]}
    (planted,) = git_cases([{"tree": tree, "patch": row.bug_patch}])
    (undone,) = git_cases([{"tree": planted["tree"], "patch": row.patch}])
    assert planted["tree"] == {"m.py": ["100644", "a\nwrong\n"]} and undone["tree"] == tree
    assert row_of(task_of(row)) == row


def test_gym_rows_are_completed_by_a_recipe(tmp_path: Path) -> None:
    old = small("getmoto__moto-5752", **dict.fromkeys(V5_COLUMNS, ...))
    with pytest.raises(TaskError, match="for rows of SWE-smith or SWE-Gym pass a recipe"):
        one(tmp_path, old)
    row = one(tmp_path, old, recipe="swe-gym")
    assert row.image == "xingyaoww/sweb.eval.x86_64.getmoto_s_moto-5752:latest"
    assert "pytest -n0 -rA tests/test_m.py\n" in row.eval_script and row.log_parser == "parse_log_pytest"
    assert parse_diff(row.eval_script.partition("git apply -v - <<'")[2])[0].new == "tests/test_m.py"
    recipe = {"image": "mine/{id}", "test_command": "pytest", "by_repo": {"own/repo": "tox --"}, "prepare": ["make"]}
    row = one(tmp_path, old, recipe=recipe)
    assert row.image == "mine/getmoto__moto-5752" and "\nmake\n" in row.eval_script
    assert "\ntox -- tests/test_m.py\n" in row.eval_script
    # A complete row stays as it is.
    assert one(tmp_path, small(), recipe=recipe) == SWEBenchRow.read(small(), "here")


def test_what_neither_row_nor_recipe_says(tmp_path: Path) -> None:
    old = small(**dict.fromkeys(V5_COLUMNS, ...))
    for values, recipe, complaint in (
        (old, {"test_command": "pytest"}, "own__repo-1.*no image; the recipe's `image`"),
        (old, "swe-gim", "there is no recipe 'swe-gim'; did you mean 'swe-gym'"),
        (
            old | {"test_patch": "", "FAIL_TO_PASS": "[]"},
            "swe-gym",
            "neither test_patch nor FAIL_TO_PASS names a test file",
        ),
        (old, {"image": "x", "test_comand": "pytest"}, "recipe: test_comand: .* did you mean 'test_command'"),
        (SMITH | {"patch": ""}, "swe-smith", "SWE-smith's patch plants the bug, and there is none"),
        (SMITH | {"problem_statement": ""}, "swe-smith", "column problem_statement"),
        (SMITH | {"patch": "@@ -1 +1 @@\n"}, "swe-smith", "column patch: line 1: a hunk without a header"),
    ):
        with pytest.raises(TaskError, match=complaint):
            one(tmp_path, values, recipe=recipe)
