from __future__ import annotations

import json
import logging
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agentgym_rtmc.errors import CheckpointError
from agentgym_rtmc.trainer.learner.checkpoint import load_latest, read_checkpoint, save_checkpoint
from agentgym_rtmc.trainer.learner.config import LearnerConfig
from agentgym_rtmc.trainer.learner.learner import Learner
from agentgym_rtmc.trainer.learner.rows import LearningRow

Model = Callable[..., Any]
Rows = Callable[..., list[LearningRow]]


@pytest.fixture
def tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = {f"w{i}": i for i in range(48)}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w0"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, unk_token="w0")


def same_weights(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


@pytest.mark.parametrize("kind", ["qwen3", "llama", "gpt2"])
def test_a_restored_learner_goes_on_with_the_same_numbers(
    make_model: Model, make_rows: Rows, tmp_path: Path, kind: str
) -> None:
    config = LearnerConfig(epochs=2, minibatches=2, warmup_updates=5)
    batches = [make_rows(np.random.default_rng(seed)) for seed in range(4)]
    whole = Learner(make_model(kind), config)
    for batch in batches[:2]:
        whole.update(batch)
    save_checkpoint(tmp_path, 2, whole, None, {"memory": [0.1, None], "text": "ü"})
    expected = [whole.update(batch) for batch in batches[2:]]
    draws = (random.random(), np.random.rand(), torch.rand(1).item())

    resumed = Learner(make_model(kind, seed=99), config)
    found = load_latest(tmp_path)
    assert found is not None and found.step == 2 and found.state == {"memory": [0.1, None], "text": "ü"}
    found.restore(resumed)
    assert [resumed.update(batch) for batch in batches[2:]] == expected
    assert same_weights(whole.model, resumed.model)
    assert (random.random(), np.random.rand(), torch.rand(1).item()) == draws


def test_the_model_folder_is_an_ordinary_one(make_model: Model, tokenizer: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    learner = Learner(make_model())
    path = save_checkpoint(tmp_path, 12, learner, tokenizer, {})
    assert path.name == "step-000012" and (tmp_path / "checkpoints" / "latest").resolve() == path
    loaded = transformers.AutoModelForCausalLM.from_pretrained(path / "model")
    assert same_weights(loaded, learner.model)
    assert transformers.AutoTokenizer.from_pretrained(path / "model").convert_tokens_to_ids(["w3"]) == [3]
    names = {file.suffix for file in path.rglob("*") if file.is_file()}
    assert names <= {".json", ".safetensors", ".jinja"}, "nothing pickled"


def test_the_last_few_are_kept(make_model: Model, tmp_path: Path) -> None:
    learner = Learner(make_model())
    for step in (1, 2, 5, 9):
        save_checkpoint(tmp_path, step, learner, None, {}, keep=2)
    folder = tmp_path / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["latest", "step-000005", "step-000009"]


def test_an_equal_step_is_replaced_and_a_later_one_left_alone(make_model: Model, tmp_path: Path) -> None:
    learner = Learner(make_model())
    for step, note in ((1, "a"), (3, "torn"), (1, "b"), (2, "c")):
        save_checkpoint(tmp_path, step, learner, None, {"note": note}, keep=1)
    folder = tmp_path / "checkpoints"
    assert sorted(path.name for path in folder.glob("step-*")) == ["step-000002", "step-000003"]
    (folder / "step-000003" / "optimizer.safetensors").unlink()
    found = load_latest(tmp_path)
    assert found is not None and found.state == {"note": "c"}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model/model.safetensors", "cut"),
        ("model/config.json", "missing"),
        ("optimizer.safetensors", "flip"),
        ("state.json", "cut"),
        ("state.json", "flip"),
        ("state.json", "missing"),
    ],
)
def test_a_torn_checkpoint_is_passed_over_and_named(
    make_model: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, damage: str
) -> None:
    learner = Learner(make_model())
    for step in (1, 2):
        path = save_checkpoint(tmp_path, step, learner, None, {"step": step})
    file = path / name
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(content[: len(content) // 2])
    else:
        at = content.index(b'"step": 2') + 8 if name == "state.json" else len(content) - 5
        file.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
    with caplog.at_level(logging.WARNING):
        found = load_latest(tmp_path)
    assert found is not None and found.step == 1 and found.state == {"step": 1}
    assert len(found.passed_over) == 1 and name in found.passed_over[0] and name in caplog.text
    with pytest.raises(CheckpointError, match=r"use another checkpoint"):
        read_checkpoint(path)
    shutil.rmtree(tmp_path / "checkpoints" / "step-000001")
    with pytest.raises(CheckpointError, match=r"no checkpoint of the run is whole.*Remove"):
        load_latest(tmp_path)


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    assert load_latest(tmp_path) is None


def test_what_does_not_fit_is_refused(make_model: Model, make_rows: Rows, tmp_path: Path) -> None:
    learner = Learner(make_model())
    learner.update(make_rows(np.random.default_rng(0)))
    path = save_checkpoint(tmp_path, 1, learner, None, {}, config_digest="abc")
    assert load_latest(tmp_path, "abc") is not None
    with pytest.raises(CheckpointError, match="another configuration"):
        load_latest(tmp_path, "def")
    found = read_checkpoint(path)
    for other, message in (
        (make_model("llama"), "other parameters"),
        (make_model(intermediate_size=40), r"has shape .* resume with the configuration"),
    ):
        with pytest.raises(CheckpointError, match=message):
            found.restore(Learner(other))
    with pytest.raises(CheckpointError, match="not JSON"):
        save_checkpoint(tmp_path, 2, learner, None, {"bad": float("nan")})
    with pytest.raises(CheckpointError, match="keep at least 1"):
        save_checkpoint(tmp_path, 2, learner, None, {}, keep=0)
    content = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(content | {"format": 99}))
    with pytest.raises(CheckpointError, match="has format 99"):
        read_checkpoint(path)


SCRIPT = """
import ctypes, json, os, random, resource, signal, sys, time
from pathlib import Path
import torch, transformers
torch.set_num_threads(1)
from agentgym_rtmc.errors import CheckpointError
from agentgym_rtmc.trainer.learner.checkpoint import load_latest, save_checkpoint
from agentgym_rtmc.trainer.learner.learner import Learner

root = Path(sys.argv[1])
config = transformers.LlamaConfig(vocab_size=1000, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
                                  num_attention_heads=2)
learner = Learner(transformers.LlamaForCausalLM(config))

def fill(value):
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.fill_(value)

def save(run, step, value=None):
    "Save a checkpoint all of whose numbers are `value`, by default the step."
    value = step if value is None else value
    fill(value)
    learner.updates = value
    save_checkpoint(run, step, learner, None, {"value": value}, keep=2)

def whole(run):
    "Load, and check that every number in it is of one save."
    found = load_latest(run)
    fill(-1)
    found.restore(learner)
    values = {float(edge(p)) for p in learner.model.parameters() for edge in (torch.min, torch.max)}
    values |= {float(learner.updates), float(found.state["value"])}
    assert len(values) == 1, (found, values)
    assert found.step in values or values.pop() > 100, (found, values)
    return found.step

def in_child(work):
    "Run in a forked child; return what it says, or how it ended."
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, json.dumps(work()).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return json.loads(said) if code == 0 else code

def killed_at(run, k, step, value=None):
    "Whether a child that saves dies at its k-th opening, renaming, linking or removing of a file."
    def work():
        seen = 0
        def hook(event, arguments):
            nonlocal seen
            if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.listdir"):
                seen += str(run) in str(arguments[0])
                if seen == k:
                    os.kill(os.getpid(), signal.SIGKILL)
        sys.addaudithook(hook)
        save(run, step, value)
    return in_child(work) == -signal.SIGKILL

def kill_at_any_operation(run):
    save(run, 1); save(run, 2)
    step, before, after, k = 2, 0, 0, 0
    while killed_at(run, k := k + 1, step + 1):
        reached = whole(run)
        assert reached in (step, step + 1), (k, reached, step)
        before, after = before + (reached == step), after + (reached == step + 1)
        step = reached
    assert whole(run) == step + 1
    again = 0  # the same, where the step being written exists already; every other moment
    while killed_at(run, again := again + 2, step + 1, 100 + again):
        assert whole(run) == step + 1, again
    save(run, step + 2)
    return [before, after, again, [path.name for path in (run / "checkpoints").glob(".*")]]

def kill_at_any_time(run):
    save(run, 1)
    step, reached, patience = 1, [], 0.1
    for round in range(12):
        child = os.fork()
        while child == 0:
            step += 1
            save(run, step)
        time.sleep(random.uniform(0.001, patience))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = whole(run)
        assert found >= step
        patience *= 0.8 if found > step else 1.7  # a busy machine takes longer over a save
        step = found
        reached.append(found)
    return reached

def refused(run, limit, unlimit):
    "A save under a limit: what it says, what is left, and what is loaded before and after the next one."
    save(run, 1)
    limit()
    try:
        save(run, 2)
        message = "saved"
    except CheckpointError as error:
        message = str(error)
    unlimit()
    left = sorted(path.name for path in (run / "checkpoints").iterdir())
    first = whole(run)
    save(run, 3)
    return [message, left, first, whole(run)]

def file_limit(run, size):
    def limit(value):
        return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (value, resource.RLIM_INFINITY))
    return in_child(lambda: refused(run, limit(size), limit(resource.RLIM_INFINITY)))

def full_disk(run):
    "A real small file system, in user and mount namespaces of the child; None where the machine gives none."
    def work():
        libc = ctypes.CDLL(None, use_errno=True)
        ids = (os.getuid(), os.getgid())
        if libc.unshare(0x10000000 | 0x00020000):
            return None
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {ids[0]} 1")
        Path("/proc/self/gid_map").write_text(f"0 {ids[1]} 1")
        run.mkdir()
        if libc.mount(b"none", bytes(run), b"tmpfs", 0, b"size=8m"):
            return None
        ballast = run / "ballast"
        def fill():
            disk = os.statvfs(run)
            ballast.write_bytes(bytes(disk.f_bavail * disk.f_frsize - 400 * 1024))
        return refused(run, fill, ballast.unlink)
    return in_child(work)

print(json.dumps({
    "operations": kill_at_any_operation(root / "operations"),
    "times": kill_at_any_time(root / "times"),
    "limits": [file_limit(root / f"limit-{kib}", kib * 1024) for kib in (1, 4, 100, 300)],
    "disk": full_disk(root / "disk"),
}))
"""


@pytest.fixture(scope="module")
def disasters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Outcomes of real kills and full disks, in one process of its own that forks a child for each."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path_factory.mktemp("disasters"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    outcomes: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return outcomes


def test_a_kill_at_any_file_operation_leaves_a_whole_checkpoint(disasters: dict[str, Any]) -> None:
    before, after, again, leftovers = disasters["operations"]
    assert before > 15 and after > 0 and again > 15
    assert leftovers == [], "a save after the kill removes what the killed one left"


def test_a_kill_at_any_time_leaves_a_whole_checkpoint(disasters: dict[str, Any]) -> None:
    assert len(disasters["times"]) == 12 and disasters["times"][-1] > 1


def check_refused(outcome: Any, reason: str) -> None:
    message, left, first, later = outcome
    assert "step-000002 could not be written" in message and "Earlier checkpoints are untouched" in message
    assert reason in message
    assert left == ["latest", "step-000001"]
    assert (first, later) == (1, 3)


def test_a_file_too_large_leaves_the_previous_one(disasters: dict[str, Any]) -> None:
    for outcome in disasters["limits"]:
        check_refused(outcome, "File too large")


def test_a_full_disk_leaves_the_previous_one(disasters: dict[str, Any]) -> None:
    if disasters["disk"] is None:
        pytest.skip("this machine gives no user and mount namespaces, so no file system to fill")
    check_refused(disasters["disk"], "No space left")
