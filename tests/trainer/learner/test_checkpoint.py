from __future__ import annotations

import json
import logging
import random
import shutil
import subprocess
import sys
import textwrap
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


SETUP = """
import json, os, random, resource, signal, sys, time
from pathlib import Path
import torch, transformers
torch.set_num_threads(1)
from agentgym_rtmc.errors import CheckpointError
from agentgym_rtmc.trainer.learner.checkpoint import load_latest, save_checkpoint
from agentgym_rtmc.trainer.learner.learner import Learner
transformers.logging.set_verbosity_error()
run = Path(sys.argv[1])
config = transformers.LlamaConfig(vocab_size=1000, hidden_size=64, intermediate_size=64, num_hidden_layers=1,
                                  num_attention_heads=2)
learner = Learner(transformers.LlamaForCausalLM(config))

def at_step(step):
    with torch.no_grad():
        for parameter in learner.model.parameters():
            parameter.fill_(step)

def save(step):
    at_step(step)
    learner.updates = step
    save_checkpoint(run, step, learner, None, {"step": step}, keep=2)

def whole():
    found = load_latest(run)
    at_step(-1)
    found.restore(learner)
    values = {float(p.min()) for p in learner.model.parameters()} | {float(p.max()) for p in learner.model.parameters()}
    assert values == {float(found.step)} and learner.updates == found.step == found.state["step"], (found, values)
    return found.step
"""


def run_child(code: str, *arguments: Any) -> Any:
    """Run a script after SETUP in a process of its own; return the JSON of its last line."""
    script = SETUP + textwrap.dedent(code)
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_a_kill_at_any_file_operation_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """A forked child kills itself at its k-th opening, renaming, linking or removing of a file, for k after k."""
    outcome = run_child(
        """
        def killed_at(k, step):
            child = os.fork()
            if child == 0:
                seen = 0
                def hook(event, arguments):
                    nonlocal seen
                    if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "os.listdir"):
                        if str(run) in str(arguments[0]):
                            seen += 1
                            if seen == k:
                                os.kill(os.getpid(), signal.SIGKILL)
                sys.addaudithook(hook)
                save(step)
                os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

        save(1); save(2)
        before, after, k = 0, 0, 0
        step = 2
        while killed_at(k := k + 1, step + 1):
            reached = whole()
            assert reached in (step, step + 1), (k, reached, step)
            before, after = before + (reached == step), after + (reached == step + 1)
            if reached == step + 1:
                step += 1
        assert whole() == step + 1
        # the same, where the step being written exists already
        k = 0
        while killed_at(k := k + 1, step + 1):
            assert whole() == step + 1, k
        print(json.dumps([before, after, k]))
        """,
        tmp_path,
    )
    assert outcome[0] > 15 and outcome[1] > 0 and outcome[2] > 15, outcome
    left = [path.name for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith(".")]
    assert left == [], "a save after the kill removes what the killed one left"


def test_a_kill_at_any_time_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    rounds = run_child(
        """
        save(1)
        step, reached = 1, []
        for round in range(12):
            started = time.monotonic()
            child = os.fork()
            if child == 0:
                while True:
                    step += 1
                    save(step)
            time.sleep(random.uniform(0.001, 0.25))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            found = whole()
            assert found >= step
            step = found
            reached.append(found)
        print(json.dumps(reached))
        """,
        tmp_path,
    )
    assert len(rounds) == 12 and rounds[-1] > 1


FULL = """
        {setup}
        save(1)
        {limit}
        try:
            save(2)
        except CheckpointError as error:
            message = str(error)
        else:
            message = "saved"
        {unlimit}
        left = sorted(path.name for path in (run / "checkpoints").iterdir())
        first = whole()
        save(3)
        print(json.dumps([message, left, first, whole()]))
"""


def check_full(outcome: Any, reason: str) -> None:
    message, left, first, later = outcome
    assert "step-000002 could not be written" in message and "Earlier checkpoints are untouched" in message
    assert reason in message
    assert left == ["latest", "step-000001"]
    assert (first, later) == (1, 3)


@pytest.mark.parametrize("kib", [1, 4, 100, 300])
def test_a_file_too_large_leaves_the_previous_one(tmp_path: Path, kib: int) -> None:
    limit = f"resource.setrlimit(resource.RLIMIT_FSIZE, ({kib} * 1024, resource.RLIM_INFINITY))"
    unlimit = "resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))"
    check_full(run_child(FULL.format(setup="", limit=limit, unlimit=unlimit), tmp_path), "File too large")


def test_a_full_disk_leaves_the_previous_one(tmp_path: Path) -> None:
    """A real small file system, in a mount namespace of the child."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare is not installed (package util-linux)")
    probe = [unshare, "-rm", "mount", "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)]
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        pytest.skip("this machine gives no mount namespace of one's own")
    limit = """
        ballast = run / "ballast"
        with ballast.open("wb", buffering=0) as file:
            free = os.statvfs(run).f_bavail * os.statvfs(run).f_frsize
            file.write(bytes(free - 400 * 1024))"""
    code = SETUP + textwrap.dedent(FULL.format(setup="", limit=limit.strip(), unlimit="ballast.unlink()"))
    command = [unshare, "-rm", "sh", "-c", 'mount -t tmpfs -o size=8m none "$3" && exec "$1" -c "$2" "$3"', "sh"]
    command += [sys.executable, code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    check_full(json.loads(done.stdout.splitlines()[-1]), "No space left")
