"""The README's Python runs as printed, and what it makes can be used as it says."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USE = """
import gymnasium, readme
from gymnasium.utils.env_checker import check_env
from agentgym_rtmc.environments.checks import check_agent_env
from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.signatures import episode_keys, make_signature

env = gymnasium.make("quiz/Capitals-v0")
check_env(env.unwrapped, skip_render_check=True)
check_agent_env("quiz/Capitals-v0", actions=["```sh\\necho Paris\\n```", "```sh\\necho Rome\\n```"])
env.reset(seed=0)
print("reward", env.step("```sh\\necho Paris\\n```")[1])

opening = Opening(task=readme.load_tasks().task("fr").disclosed(), observation="")
turns = (Turn(text="a", observation="", reward=0, info={"tests": "1/2"}), Turn(text="b", observation="", reward=0))
episode = Episode(id="e", group="g", opening=opening, turns=turns)
print("states", episode_keys(make_signature("tests_seen"), episode).states)
orders = [turn.model_copy(update={"info": info}) for turn, info in zip(turns * 2, ({}, {"database": "d1"}, {}, {}))]
paid = episode.model_copy(update={"turns": tuple(orders)})
print("orders", episode_keys(make_signature("orders_seen"), paid).states)
print("advantages", [a.tolist() for a in readme.advantages])
"""


def test_python_of_the_readme_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 3
    (tmp_path / "readme.py").write_text("\n".join(blocks))
    (tmp_path / "use.py").write_text(USE)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "use.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert lines["reward"] == "1.0"
    assert lines["states"].startswith("('None 0', ")
    assert lines["orders"] == "('start', 'start', 'd1', 'd1')"
    assert lines["advantages"].count("[") == 3


def test_commands_of_the_readme_exist() -> None:
    from agentgym_rtmc.cli import COMMANDS

    known = {name for room in COMMANDS.values() for name in room}
    text = (ROOT / "README.md").read_text()
    used = set(re.findall(r"agentgym-rtmc ([a-z]+)", text))
    assert used and used <= known
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert (ROOT / path).exists(), f"README links to {path}, which is not there"
