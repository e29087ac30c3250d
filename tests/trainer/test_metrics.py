from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from agentgym_rtmc.errors import ConfigError
from agentgym_rtmc.trainer.metrics import MetricsWriter, read_metrics


def test_one_line_per_update_with_nan_as_null(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "m.jsonl") as writer:
        writer.write(1, {"loss": math.nan, "reward": np.float32(0.5), "kind": "rtmc", "none": None})
        writer.write(2, {"loss": -math.inf, "count": np.int64(3)}, machine={"seconds": 1.5})
    lines = (tmp_path / "m.jsonl").read_text().splitlines()
    assert [json.loads(line, parse_constant=pytest.fail) for line in lines] == [
        {"update": 1, "loss": None, "reward": 0.5, "kind": "rtmc", "none": None},
        {"update": 2, "loss": None, "count": 3, "machine": {"seconds": 1.5}},
    ]
    assert [row["update"] for row in read_metrics(tmp_path / "m.jsonl")] == [1, 2]


def test_resuming_keeps_each_update_once(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with MetricsWriter(path) as writer:
        for update in range(1, 8):
            writer.write(update, {"value": update / 3})
    with path.open("a") as file:
        file.write('{"update": 8, "val')  # killed in the middle of a line
    with MetricsWriter(path, after_update=5) as writer:
        assert (writer.dropped, writer.torn) == (2, 1)
        writer.write(6, {"value": -1.0})
    rows = read_metrics(path)
    assert [row["update"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert rows[4]["value"] == 5 / 3 and rows[5]["value"] == -1
    assert not list(tmp_path.glob("*.new"))


def test_a_fresh_run_starts_empty(tmp_path: Path) -> None:
    assert read_metrics(tmp_path / "none.jsonl") == []
    with MetricsWriter(tmp_path / "m.jsonl") as writer:
        writer.write(1, {})
    with MetricsWriter(tmp_path / "m.jsonl") as writer:
        assert writer.dropped == 1
    assert read_metrics(tmp_path / "m.jsonl") == []


def test_no_update_twice_and_no_odd_values(tmp_path: Path) -> None:
    with MetricsWriter(tmp_path / "m.jsonl", after_update=3) as writer:
        with pytest.raises(ValueError, match="update 3 is on record"):
            writer.write(3, {})
        with pytest.raises(ConfigError, match="not list"):
            writer.write(4, {"many": [1, 2]})
        writer.write(4, {"fine": True})


def test_lines_torn_in_the_middle_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"update": 1}\n\xff\xfe broken\n[1]\n{"update": 2}\n')
    assert [row["update"] for row in read_metrics(path)] == [1, 2]


def test_what_was_written_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    code = (
        "import sys, itertools\n"
        "from agentgym_rtmc.trainer.metrics import MetricsWriter\n"
        "writer = MetricsWriter(sys.argv[1])\n"
        "for update in itertools.count(1):\n"
        "    writer.write(update, {'x': 1.0}); print(update, flush=True)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    for _ in range(20):
        last = int(child.stdout.readline())
    os.kill(child.pid, signal.SIGKILL)
    told = [int(line) for line in child.communicate()[0].split()]
    last = told[-1] if told else last
    rows = read_metrics(path)
    assert [row["update"] for row in rows][:last] == list(range(1, last + 1))


def test_tensorboard_where_asked(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the tensorboard extra is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with MetricsWriter(tmp_path / "m.jsonl", tensorboard=tmp_path / "tb") as writer:
        writer.write(1, {"reward": 0.25, "loss": math.nan, "name": "x"}, machine={"seconds": 2.0})
    events = EventAccumulator(str(tmp_path / "tb"))
    events.Reload()
    assert {"reward", "seconds"} <= set(events.Tags()["scalars"]) and "loss" not in events.Tags()["scalars"]
    assert [(event.step, event.value) for event in events.Scalars("reward")] == [(1, 0.25)]


def test_writing_is_quick_and_needs_no_torch(tmp_path: Path) -> None:
    code = "import sys; import agentgym_rtmc.trainer.metrics; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    with MetricsWriter(tmp_path / "m.jsonl") as writer:
        started = time.process_time()
        for update in range(1, 101):
            writer.write(update, {f"figure_{i}": i / 7 for i in range(40)})
        assert time.process_time() - started < 1
