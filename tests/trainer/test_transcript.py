"""Conversations and the token sequences rebuilt from turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_rtmc.episodes import Episode, Opening, Turn
from agentgym_rtmc.tasks import Task
from agentgym_rtmc.trainer.transcript import Conversation, sampled_tokens, segments


def turn(context: list[int] | None, sampled: list[int] | None, forked: bool = False) -> Turn:
    return Turn(
        text="t",
        observation="o",
        reward=0.0,
        context_ids=None if context is None else tuple(context),
        token_ids=None if sampled is None else tuple(sampled),
        logprobs=None if sampled is None else tuple(-float(i) for i in sampled),
        forked=forked,
    )


ids = st.lists(st.integers(1, 99), max_size=5)


@given(st.lists(st.tuples(ids, ids, st.booleans()), max_size=6))
def test_segments_are_what_the_conversation_held(steps: list[tuple[list[int], list[int], bool]]) -> None:
    conversation = Conversation.opened("e", "", "hello")
    held: list[list[int]] = []
    turns = []
    for index, (context, sampled, forked) in enumerate(steps):
        if forked or index == 0:
            held.append([])
        turns.append(turn(context, sampled, forked))
        conversation.record("t", context, sampled, forked)
        conversation.observe("o")
        held[-1] = list(conversation.ids)
    parts = segments(turns)
    assert [part.ids.tolist() for part in parts] == held
    spoken = [i for part in parts for i, owner in zip(part.ids.tolist(), part.turn, strict=True) if owner >= 0]
    assert spoken == [i for _, sampled, _ in steps for i in sampled]
    for part in parts:
        assert len(part.ids) == len(part.turn) == len(part.logprobs)
        assert (part.logprobs[part.turn < 0] == 0).all()
        assert part.logprobs[part.turn >= 0].tolist() == [-float(i) for i in part.ids[part.turn >= 0]]
    assert [m["role"] for m in conversation.messages] == ["user"] + ["assistant", "user"] * len(steps)
    if steps:
        episode = Episode(id="e", group="g", opening=Opening(task=Task(id="t"), observation=""), turns=tuple(turns))
        assert sampled_tokens(episode).tolist() == [len(sampled) for _, sampled, _ in steps]


def test_text_only_turns_have_no_segments() -> None:
    assert segments([]) == [] and segments([turn(None, None)]) == []
    conversation = Conversation.opened("e", "system", "hello")
    conversation.record("t", None, None, False)
    conversation.observe("o", "tool")
    assert conversation.ids == [] and [m["role"] for m in conversation.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    with pytest.raises(ValueError, match="carry token ids"):
        segments([turn([1], [2]), turn(None, None)])
