"""The command `credit`: every format, broken rows located, three ways of writing, and an honest answer."""

from __future__ import annotations

import csv
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from agentgym_rtmc import cli
from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.importers.recorded import read_recorded
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.credit import RolloutTree
from agentgym_rtmc.trainer.credit.diagnosis import diagnose
from agentgym_rtmc.trainer.credit_commands import extreme_turns, read_parameters, within_episode_share
from agentgym_rtmc.trainer.credit_files import CreditedTurn, write_turns


def shared(name):
    root = Path(os.environ.get("AGENTGYM_RTMC_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
    path = root / "trajectories" / name
    if not path.exists():
        pytest.skip(f"{path} is not here")
    return path


def chat(task, commands, reward, **more):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Mend {task}."}]
    for command in commands:
        call = {"function": {"name": "bash", "arguments": json.dumps({"command": command})}}
        messages += [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": f"ran {command}"}]
    return {"task_id": task, "messages": messages, "reward": reward, **more}


CHATS = [
    chat("one", ["cat a.py", "sed -i s/1/2/ a.py", "true"], 1.0),
    chat("one", ["cat a.py", "sed -i s/1/3/ a.py", "true"], 0.0),
    chat("two", ["ls"], 0.0),
    chat("two", ["ls", "cat b.py"], 0),
    chat("three", ["ls"], None),
]


def lines(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def run(capsys, *arguments):
    code = cli.main(["credit", *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_chats_with_broken_rows_are_credited_and_the_broken_located(tmp_path, capsys):
    broken = ["{not json", "[1]", json.dumps({"messages": []}), json.dumps(chat("one", ["ls"], float("nan")))]
    file = lines(tmp_path / "chats.jsonl", [CHATS[0], *broken, *CHATS[1:]])
    out = tmp_path / "deep" / "advantages.jsonl"
    code, printed, _ = run(capsys, file, "--json", "--out", out, "--permutations", 19)
    told = json.loads(printed)
    assert code == 0
    assert [problem["where"].rpartition(":")[2] for problem in told["problems"]] == ["2", "3", "4", "5"]
    summary = told["summary"]
    assert (summary["episodes"], summary["unlabelled"], summary["unreadable"]) == (4, 1, 4)
    assert (summary["groups"], summary["groups_without_variance"], summary["groups_with_one_episode"]) == (2, 1, 0)
    assert summary["turns"] == summary["turns_compared"] == 9
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["turn"] for row in rows] == [0, 1, 2, 0, 1, 2, 0, 0, 1]
    assert rows[0]["action"] == rows[3]["action"] and rows[1]["action"] != rows[4]["action"]
    assert rows[0]["advantage"] == pytest.approx(0.0, abs=1e-9) and not rows[0]["alone"]
    assert rows[1]["advantage"] > 0 > rows[4]["advantage"] and rows[2]["alone"]
    assert {row["advantage"] for row in rows[6:]} == {0.0}
    assert {row["group"] for row in told["extremes"]} == {"one"}


def test_the_summary_for_people(tmp_path, capsys):
    file = lines(tmp_path / "chats.jsonl", [*CHATS, "{"])
    code, printed, _ = run(capsys, file, "--out", tmp_path / "a.csv", "--estimator", "dr_grpo")
    assert code == 0
    for part in (
        "4 episodes in 2 groups",
        "1 without a known outcome",
        "chats.jsonl:6",
        "1 whose returns are all equal",
        "9, 9 in groups of two or more, 66.7% of them with company",
    ):
        assert part in printed
    for part in ("Will step credit pay here?", "lambda = ", "permutation test", "recommended:", "a.csv"):
        assert part in printed
    with (tmp_path / "a.csv").open(newline="") as csv_file:
        rows = list(csv.DictReader(csv_file))
    assert [float(row["advantage"]) for row in rows[:4]] == [0.5, 0.5, 0.5, -0.5]


def test_parquet(tmp_path, capsys):
    parquet = pytest.importorskip("pyarrow.parquet")
    file = lines(tmp_path / "chats.jsonl", CHATS)
    assert run(capsys, file, "-o", tmp_path / "a.parquet")[0] == 0
    assert run(capsys, file, "-o", tmp_path / "a.jsonl")[0] == 0
    table = parquet.read_table(tmp_path / "a.parquet")
    assert table.to_pylist() == [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    types = {"group": "string", "turn": "int64", "advantage": "double", "alone": "bool", "action": "string"}
    assert types.items() <= {field.name: str(field.type) for field in table.schema}.items()
    write_turns(tmp_path / "none.parquet", [])
    assert parquet.read_table(tmp_path / "none.parquet").schema.equals(table.schema)


def test_parquet_without_pyarrow_is_refused_before_any_work(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, _, error = run(capsys, lines(tmp_path / "chats.jsonl", CHATS), "-o", tmp_path / "a.parquet")
    assert code == 2 and "pip install 'agentgym-rtmc[parquet]'" in error


def test_our_own_episodes(tmp_path, capsys):
    from agentgym_rtmc.episode_file import EpisodeWriter

    episodes = read_recorded([lines(tmp_path / "chats.jsonl", CHATS)]).episodes
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer:
        writer.append(episodes)
    with (tmp_path / "episodes.jsonl").open("a") as file:
        file.write('{"id": "cut')
    code, printed, _ = run(capsys, tmp_path / "episodes.jsonl", "--json", "-o", tmp_path / "a.jsonl", "-p", "gamma=0.9")
    told = json.loads(printed)
    assert code == 0 and told["summary"]["episodes"] == 4 and told["summary"]["parameters"] == {"gamma": 0.9}
    assert [problem["where"].rpartition(":")[2] for problem in told["problems"]] == ["6"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "a.txt"], "the ending tells the format"),
        (["--out", "folder.csv"], "there is a folder of that name"),
        (["--out", "chats.jsonl/a.csv"], "chats.jsonl/a.csv: cannot be written"),
        (["--out", "/proc/none/a.csv"], "cannot be written: No such file"),
        (["--estimator", "rtmcc"], "did you mean 'rtmc'"),
        (["--estimator", "no_such_module:f"], "cannot import 'no_such_module'"),
        (["--estimator", "gae"], "needs values"),
        (["--estimator", "tempo"], "has no token ids"),
        (["-p", "gama=1"], "did you mean 'gamma'"),
        (["-p", "gamma"], "is not KEY=VALUE"),
        (["-p", "gamma=2"], "lies in (0, 1]"),
        (["--signature", "operation"], "did you mean 'operations'"),
        (["--signature", "no_such_module:f"], "cannot import 'no_such_module'"),
        (["--signature-param", "levels=1"], "level"),
        (["--format", "chats"], "did you mean 'chat'"),
        (["--outcomes", "absent.json"], "cannot be read as JSON"),
    ],
)
def test_wrong_arguments_are_one_line(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.csv").mkdir()
    code, out, error = run(capsys, lines(tmp_path / "chats.jsonl", CHATS), *arguments)
    assert code == 2 and message in error and error.count("\n") == 1 and not out
    assert not list(tmp_path.glob("a*")) and not list(tmp_path.glob("**/*.new"))


@pytest.mark.parametrize("arguments", [[], ["x", "--turns", "-1"], ["x", "--permutations", "0"], ["x", "--nonsense"]])
def test_arguments_that_are_missing_or_impossible(capsys, arguments):
    code, out, error = run(capsys, *arguments)
    assert code == 2 and not out and "Error" in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty", b"", "the file is empty"),
        ("folder", None, "Is a directory"),
        ("absent", None, "No such file or directory"),
        ("noise", bytes(range(256)), "noise:1: "),
        ("other.jsonl", b'{"a": 1}\n', "none of the known formats"),
        ("cut.gz", gzip.compress(b"x" * 99)[:20], "cut off or damaged"),
    ],
)
def test_a_file_without_episodes_is_one_line(tmp_path, capsys, name, content, message):
    if name == "folder":
        (tmp_path / name).mkdir()
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    code, out, error = run(capsys, tmp_path / name, "-o", tmp_path / "a.jsonl")
    assert code == 2 and message in error and error.count("\n") == 1 and not out


def test_a_full_disk_leaves_the_old_file_and_no_draft(tmp_path):
    """In a process that may write no file beyond a kilobyte."""
    file = lines(tmp_path / "chats.jsonl", CHATS * 20)
    (tmp_path / "a.csv").write_text("old")
    script = (
        "import resource, signal, sys; from agentgym_rtmc.cli import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1024, 1024))\n"
        f"sys.exit(main(['credit', {str(file)!r}, '-o', {str(tmp_path / 'a.csv')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "a.csv: cannot be written: File too large" in done.stderr
    assert (tmp_path / "a.csv").read_text() == "old" and len(list(tmp_path.iterdir())) == 2


def test_nothing_labelled_says_what_to_do(tmp_path, capsys):
    code, _, error = run(capsys, lines(tmp_path / "chats.jsonl", CHATS[4:]), "-o", tmp_path / "a.jsonl")
    assert code == 2 and "--outcomes" in error


def test_an_estimator_of_tokens_credits_a_turn_by_its_mean(tmp_path, capsys):
    from agentgym_rtmc.episode_file import EpisodeWriter

    opening = Opening(task=Task(id="t"), observation="begin")
    said = [((7, 8), 1.0), ((7, 9), 0.0)]
    episodes = [
        Episode(
            id=f"e{n}", group="t", opening=opening, terminated=True,
            turns=(Turn(text=str(ids), observation="", reward=reward, context_ids=(1,), token_ids=ids),),
        )
        for n, (ids, reward) in enumerate(said)
    ]  # fmt: skip
    dead = episodes[0].model_copy(update={"id": "dead", "valid": False, "terminated": False})
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer:
        writer.append([*episodes, dead])
    code, _, _ = run(
        capsys, tmp_path / "episodes.jsonl", "-e", "tempo", "-p", "normalize=false", "-o", tmp_path / "a.jsonl"
    )
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    # the first token changes nothing (0.5), the second parts the two (0.5 + 0.5)
    assert code == 0 and [row["advantage"] for row in rows] == [0.75, -0.75, 0.0]


def test_all_shared_episodes_in_one_call(tmp_path, capsys):
    files = [shared("groups.jsonl.gz"), shared("singles.jsonl.gz")]
    code, printed, _ = run(capsys, *files, "--json", "-o", tmp_path / "a.jsonl", "--permutations", 20)
    summary = json.loads(printed)["summary"]
    assert code == 0 and summary["unreadable"] == 0
    assert summary["episodes"] + summary["unlabelled"] == 523 and summary["unlabelled"] == 117
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert np.isfinite([row["advantage"] for row in rows]).all() and len(rows) > 10_000


def test_parameters_are_json_or_text():
    assert read_parameters(["a=1", "b=true", "c=x=y", 'd="q"'], "-p") == {"a": 1, "b": True, "c": "x=y", "d": "q"}
    with pytest.raises(ConfigError):
        read_parameters(["=1"], "-p")


def test_extremes_and_spread():
    turns = [CreditedTurn("g", "e", t, a, 0.0, 0.0, True, "", "") for t, a in enumerate([0.1, -0.5, 0.9])]
    flat = [CreditedTurn("h", "e", 0, 0.0, 0.0, 0.0, True, "", "")]
    assert [row["turn"] for row in extreme_turns([*turns, *flat], 1)] == [2, 1]
    assert within_episode_share([np.array([1.0, 1.0]), np.array([-1.0, -1.0])]) == 0.0
    assert within_episode_share([np.array([1.0, -1.0]), np.array([-1.0, 1.0])]) == 1.0
    assert within_episode_share([np.zeros(3)]) == 0.0


def keyed(groups, turns, *, decides, unique=False, rewards=None, seed=0):
    """Groups of 8 in which one early turn decides (or not), and all else is met by all (or by nobody)."""
    rng = np.random.default_rng(seed)
    choice = rng.integers(0, 2, (groups * 8, 1))
    states = np.where(np.arange(turns) > 1, choice, 0) * 100 + np.arange(turns)
    if unique:
        states = np.arange(states.size).reshape(states.shape)
    paid = np.zeros(states.shape)
    paid[:, -1] = choice[:, 0] if decides else rng.integers(0, 2, len(choice))
    if rewards:
        paid[:, 2] += rewards
    return RolloutTree.from_ids(states, np.zeros_like(states), paid, groups=np.repeat(np.arange(groups), 8))


@pytest.mark.parametrize(
    ("tree", "estimator", "reason"),
    [
        (keyed(6, 12, decides=True), "adaptive", "tell outcomes apart"),
        (keyed(6, 12, decides=False), "grpo", "no more about outcomes than chance"),
        (keyed(6, 12, decides=True, unique=True), "grpo", "no company"),
        (keyed(6, 4, decides=True), "adaptive", "in between"),
        (keyed(6, 12, decides=True, rewards=0.5), "adaptive", "ladder"),
        (RolloutTree.from_keys([["s"], ["s"]], [["a"], ["b"]], [[1], [1]]), "grpo", "nothing to credit yet"),
    ],
)
def test_the_recommendation(tree, estimator, reason):
    found = diagnose(tree, permutations=99)
    assert found.estimator == estimator and reason in found.reason


def test_returns_are_shuffled_within_groups():
    """One group of 8 with a perfect split of 4 wins, one without a win: by chance in one of 35 ways, not of 910."""
    states = np.stack([np.zeros(16, int), 1 + np.arange(16) % 2, np.full(16, 3)], axis=1)
    rewards = np.zeros((16, 3))
    rewards[:8:2, 2] = 1.0
    tree = RolloutTree.from_ids(states, np.zeros_like(states), rewards, groups=np.repeat([0, 1], 8))
    assert diagnose(tree, permutations=999).p_value == pytest.approx(1 / 35, abs=0.015)


def test_the_permutation_test_is_fair():
    """Without any signal p is below 0.1 about one time in ten."""
    p_values = [diagnose(keyed(4, 6, decides=False, seed=s), permutations=39, seed=s).p_value for s in range(60)]
    assert 0.0 <= np.mean(np.array(p_values) <= 0.1) <= 0.25
    assert diagnose(keyed(4, 6, decides=True), permutations=39).p_value == 1 / 40
