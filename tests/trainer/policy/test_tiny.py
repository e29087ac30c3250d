"""The embedded model: its tokenizer, template, phrases and saved form."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

transformers = pytest.importorskip("transformers")

from agentgym_rtmc.trainer.policy.chat import Chat  # noqa: E402
from agentgym_rtmc.trainer.policy.config import TinyConfig  # noqa: E402
from agentgym_rtmc.trainer.policy.hf import HFSampler, load_model, load_tokenizer  # noqa: E402
from agentgym_rtmc.trainer.policy.tiny import build_model, find_phrases, save_policy, train_tokenizer  # noqa: E402

Tokenizer = transformers.PreTrainedTokenizerFast


def test_every_text_comes_back(tokenizer: Tokenizer) -> None:
    chat = Chat(tokenizer)

    @given(st.text(st.characters(exclude_characters="\ufdd0", exclude_categories=["Cs"]), max_size=60))
    @settings(max_examples=200, deadline=None)
    def check(text: str) -> None:
        ids = chat.turn(text)
        assert tokenizer.decode(ids[:-1]) == text

    check()
    assert chat.turn("<|end|> <|user|>")[-1] == chat.traits.end_id
    assert tokenizer.decode(chat.turn("<|end|> <|user|>")[:-1]) == "<|end|> <|user|>"


def test_fragments_of_code_have_the_same_tokens_everywhere(tokenizer: Tokenizer) -> None:
    def tokens(text: str) -> list[str]:
        return [tokenizer.decode([i]) for i in tokenizer.encode(text, add_special_tokens=False)]

    assert tokens("s| <| <=|1") == ["s", "|", " <", "|", " <=", "|", "1"]
    listing = tokens("    if a <= b:\n        return a - 1\n")
    for fragment in (" <=", " -", "1", "return", "\n        "):
        assert fragment in listing or f" {fragment}" in listing
    assert tokens("f 12/34") == ["f", " 1", "2", "/", "3", "4"]


def test_a_number_can_be_one_token() -> None:
    texts = [f"order {number}\nitem {number + 7}" for number in range(10, 90)] * 4
    whole = train_tokenizer(texts, TinyConfig(vocabulary=640, phrases=0, digits=2))

    def tokens(text: str) -> list[str]:
        return [whole.decode([i]) for i in whole.encode(text, add_special_tokens=False)]

    assert tokens(" 56 1234")[:2] == [" 56", " 12"]
    assert all(len(whole.encode(f" {number}", add_special_tokens=False)) == 1 for number in range(17, 90))
    assert whole.decode(whole.encode("a12345b 6\n78", add_special_tokens=False)) == "a12345b 6\n78"


def test_a_turn_costs_three_tokens(tokenizer: Tokenizer) -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": "a"},
        {"role": "tool", "content": "o"},
        {"role": "assistant", "content": "b"},
    ]
    encoded = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    ids = encoded["input_ids"]
    said = [i for i, mask in zip(ids, encoded["assistant_masks"], strict=True) if mask]
    assert tokenizer.decode(ids) == "<|system|>s<|user|>u<|agent|>a<|end|><|user|>o<|agent|>b<|end|>"
    assert tokenizer.decode(said) == "a<|end|>b<|end|>"
    assert len(ids) == 5 + 1 + 2 * 3  # five texts of one token, the system's opener, two turns


def test_phrases_shorten_what_is_said_often(tokenizer: Tokenizer) -> None:
    actions = [f"git checkout -q . && sed -zi 's| {x}|y|{n}' m.py" for x in "abcdefgh" for n in range(9)]
    config = TinyConfig(phrases=6)
    plain = train_tokenizer(actions, TinyConfig(phrases=0))
    phrased = train_tokenizer(actions, config)
    assert len(phrased) <= config.vocabulary
    found = find_phrases(actions, plain, 6)
    assert found and all(not any(c.isdigit() for c in phrase) for phrase in found)
    lengths = [len(t.encode(actions[0], add_special_tokens=False)) for t in (plain, phrased)]
    assert lengths[1] < lengths[0] / 2
    assert phrased.decode(phrased.encode(actions[0])) == actions[0]
    # The same input gives the same tokenizer.
    again = train_tokenizer(actions, config)
    assert again.backend_tokenizer.to_str() == phrased.backend_tokenizer.to_str()
    assert find_phrases([], plain, 6) == []


def test_the_saved_folder_is_an_ordinary_one(tmp_path: Path, tokenizer: Tokenizer, model: torch.nn.Module) -> None:
    save_policy(tmp_path, model, tokenizer)
    assert (tmp_path / "model.safetensors").exists()
    loaded, same = load_model(tmp_path), load_tokenizer(tmp_path)
    text = "def f(a):\n    return a <= 12 // é<|end|>"
    assert same.encode(text) == tokenizer.encode(text)
    assert same.chat_template == tokenizer.chat_template and same.eos_token == "<|end|>"
    ids = torch.tensor([tokenizer.encode(text)])
    with torch.no_grad():
        assert torch.equal(loaded(input_ids=ids).logits, model(input_ids=ids).logits)
    assert HFSampler(loaded).cache_note == ""


def test_models_are_drawn_by_seed_and_leave_the_generator_alone(tokenizer: Tokenizer) -> None:
    config = TinyConfig()
    state = torch.random.get_rng_state()
    one, two, other = (build_model(config, tokenizer, seed) for seed in (0, 0, 1))
    assert torch.equal(state, torch.random.get_rng_state())
    weights = [m.get_input_embeddings().weight for m in (one, two, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])
    full = build_model(config, train_tokenizer(["x"], config), 0).num_parameters()
    assert full < 1_000_000


@pytest.mark.parametrize("wrong", [{"heads": 3}, {"key_value_heads": 3}, {"vocabulary": 280, "phrases": 100}])
def test_impossible_sizes_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError):
        TinyConfig(**wrong)
