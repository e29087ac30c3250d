"""Prompts of every row, and observations within their limits."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rtmc.calls import ShellProtocol, ToolCallProtocol
from agentgym_rtmc.environments.swebench.dataset import load_rows
from agentgym_rtmc.environments.swebench.observation import Limits, clip, estimate_tokens
from agentgym_rtmc.environments.swebench.prompt import first_observation, system_prompt
from agentgym_rtmc.environments.swebench.tasks import task_of
from agentgym_rtmc.errors import ConfigError, TaskError
from agentgym_rtmc.tasks import Task


@pytest.mark.parametrize("name", ["SWE-bench_Lite_dev", "SWE-bench_Lite_test", "SWE-bench_Verified_test"])
def test_the_prompt_of_every_row(data: Path, name: str) -> None:
    for row in load_rows(data / f"{name}.parquet").rows:
        text = first_observation(task_of(row), "v1")
        assert text == f"Repository: {row.repo}, in /testbed\n\n<issue>\n{row.problem_statement}\n</issue>"
        if row.hints_text:
            assert first_observation(task_of(row, hints=True), "v1").endswith(f"<hints>\n{row.hints_text}\n</hints>")


def test_system_prompts_name_what_they_must() -> None:
    shell = system_prompt("shell", "v1", instructions=ShellProtocol().instructions(), seconds=60, turns=100)
    assert "```sh\nsubmit\n```" in shell and "60 seconds" in shell and "100 turns" in shell and "$" not in shell
    tools = system_prompt(
        "tools", "v1", instructions=ToolCallProtocol().instructions(), seconds=0.5, turns=3, tools="<tools>\n</tools>"
    )
    assert "<tools>" in tools and "<tool_call>" in tools and "/testbed" in tools and "0.5 seconds" in tools
    with pytest.raises(ConfigError, match="there is no prompt system-shell-v0; known: system-shell-v1"):
        system_prompt("shell", "v0", instructions="", seconds=1, turns=1)
    with pytest.raises(ConfigError, match="there is no prompt system-telepathy-v1; known: none"):
        system_prompt("telepathy", "v1", instructions="", seconds=1, turns=1)
    with pytest.raises(TaskError, match="'x' has no public 'repo'"):
        first_observation(Task(id="x", public={"problem_statement": "$y"}), "v1")


@given(st.text(max_size=200), st.integers(0, 120), st.integers(1, 60))
def test_clipping_keeps_to_its_limits(text: str, most_bytes: int, most_tokens: int) -> None:
    text = text.encode("utf-8", "replace").decode()
    limits = Limits(bytes=most_bytes, tokens=most_tokens)
    clipped = clip(text, limits)
    if len(text.encode()) <= most_bytes and estimate_tokens(text) <= most_tokens:
        assert clipped == text
        return
    head, note, tail = clipped.partition("[... ")
    count, _, tail = tail.partition(" bytes left out ...]")
    kept = head.removesuffix("\n") + tail.removeprefix("\n")
    assert note and text.startswith(head.removesuffix("\n")) and text.endswith(tail.removeprefix("\n"))
    assert len(kept.encode()) <= most_bytes and estimate_tokens(kept) <= most_tokens
    assert 0 < int(count) <= len(text.encode()) and len(kept.encode()) + int(count) <= len(text.encode())


def test_a_tokenizer_of_ones_own_decides() -> None:
    assert clip("a b c d e f", Limits(bytes=99, tokens=4), count_tokens=lambda text: len(text.split())).startswith(
        "a b"
    )
    assert clip("x" * 10_000_000, Limits()).count("x") == 16_000
    assert estimate_tokens("") == 0 and estimate_tokens("snake_case_name") == 6
