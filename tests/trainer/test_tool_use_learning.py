"""What the examples of tool use promise: a start that reads and finishes, and much more success after training."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from agentgym_rtmc.settings import load_settings
from agentgym_rtmc.trainer.config import TrainConfig
from agentgym_rtmc.trainer.loop import train
from agentgym_rtmc.trainer.preparation import prepare
from agentgym_rtmc.trainer.progress import Progress
from agentgym_rtmc.trainer.run_folder import RunFolder
from agentgym_rtmc.trainer.threads import set_threads

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.full
@pytest.mark.parametrize("name", ["service_desk", "data_questions"])
def test_training_improves_the_supervised_start(name: str, tmp_path: Path) -> None:
    config = load_settings(TrainConfig, EXAMPLES / f"{name}.toml", ["evaluation.samples=2"])
    assert config.credit.estimator == "rtmc"
    set_threads(config.run.threads)
    with Progress() as progress, RunFolder(tmp_path, fresh=True) as folder:
        result = train(config, prepare(config), folder, progress)
    assert result.before is not None and result.after is not None
    assert result.before["parsed_share"] > 0.9
    # Twenty points are the promise over several seeds; one seed and a few hundred episodes are less certain.
    assert result.after["pass_at_1"] - result.before["pass_at_1"] > 0.12
