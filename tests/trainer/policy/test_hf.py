"""The sampler over transformers models: exactness of the slot cache, independence of company, fallbacks, loading."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

transformers = pytest.importorskip("transformers")

from agentgym_rtmc.errors import ConfigError  # noqa: E402
from agentgym_rtmc.trainer.policy.base import SampledTokens, SampleKey, SampleRequest, SamplingParams  # noqa: E402
from agentgym_rtmc.trainer.policy.hf import HFSampler, load_model, load_tokenizer, pick_device  # noqa: E402
from agentgym_rtmc.trainer.policy.slot_engine import SlotEngine  # noqa: E402

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
}


def build(config: object, spread: float = 0.3) -> transformers.PreTrainedModel:
    """A model with weights wide enough that contexts matter."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, spread, generator=generator)
    return model.eval()


@pytest.fixture(scope="module")
def model() -> transformers.PreTrainedModel:
    return build(transformers.Qwen3Config(head_dim=8, **SIZES))


def prompts_of(count: int, seed: int = 0, low: int = 3, high: int = 40) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCABULARY, rng.integers(low, high)).tolist() for _ in range(count)]


def plain_logprobs(model: transformers.PreTrainedModel, ids: list[int]) -> NDArray[np.float32]:
    """Log-probability of every token but the first, by one ordinary forward pass without any cache."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    logprobs = torch.log_softmax(logits.float(), -1)
    return logprobs[:-1].gather(-1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()


def check_exact(model: transformers.PreTrainedModel, prompt: list[int], drawn: SampledTokens) -> None:
    expected = plain_logprobs(model, [*prompt, *drawn.ids.tolist()])[len(prompt) - 1 :]
    assert drawn.logprobs.dtype == np.float32 and drawn.ids.dtype == np.int64
    np.testing.assert_allclose(drawn.logprobs, expected, atol=1e-4)


def play(
    sampler: HFSampler, openings: list[list[int]], turns: int, params: SamplingParams, stop: list[int]
) -> list[list[tuple[list[int], SampledTokens]]]:
    """Several turns of conversations with ragged observations between; returns (prompt, drawn) by turn and row."""
    conversations = [list(opening) for opening in openings]
    history = []
    for turn in range(turns):
        requests = [SampleRequest(list(ids), SampleKey(5, i, turn), f"e{i}") for i, ids in enumerate(conversations)]
        drawn = sampler.sample(requests, params, stop)
        history.append([(list(ids), row) for ids, row in zip(conversations, drawn, strict=True)])
        for i, row in enumerate(drawn):
            observation = np.random.default_rng([turn, i]).integers(0, VOCABULARY, 1 + (i * 7 + turn) % 9).tolist()
            conversations[i] += [*row.ids.tolist(), *observation]
    return history


def test_ragged_turns_equal_an_uncached_forward_pass(model: transformers.PreTrainedModel) -> None:
    sampler = HFSampler(model, max_context=150)
    assert sampler.cache_note == ""
    # Groups share an opening, as the episodes of a group do.
    openings = [prompt for prompt in prompts_of(5) for _ in range(4)]
    history = play(sampler, openings, 4, SamplingParams(max_tokens=12), stop=[1, 2, 3, 4, 5])
    assert {row.finish_reason for turn in history for _, row in turn} == {"stop", "length"}
    for turn in history:
        for prompt, row in turn:
            check_exact(model, prompt, row)
            assert (row.finish_reason == "stop") == (int(row.ids[-1]) in (1, 2, 3, 4, 5))
            assert not np.isin(row.ids[:-1], [1, 2, 3, 4, 5]).any()
    # Openings ran once a group, and of later prompts only what was new: the last sampled token and the observation.
    new = sum(map(len, openings[::4]))
    for turn in range(1, 4):
        new += sum(1 + 1 + (i * 7 + turn - 1) % 9 for i in range(20))
    assert sampler.prefilled == new


def test_the_same_keys_draw_the_same_tokens_in_any_company(model: transformers.PreTrainedModel) -> None:
    params = SamplingParams(max_tokens=10)
    openings = prompts_of(9, seed=3)
    together = play(HFSampler(model), openings, 3, params, [7, 8])
    for i in (0, 4, 8):
        alone = HFSampler(model)
        for turn in together:
            prompt, row = turn[i]
            request = SampleRequest(prompt, SampleKey(5, i, together.index(turn)), "only")
            (single,) = alone.sample([request], params, [7, 8])
            assert single.ids.tolist() == row.ids.tolist() and single.finish_reason == row.finish_reason
            np.testing.assert_allclose(single.logprobs, row.logprobs, atol=1e-4)
    # Another key draws something else.
    other = SampleRequest(openings[0], SampleKey(6, 0, 0), "other")
    (different,) = HFSampler(model).sample([other], params, [7, 8])
    assert different.ids.tolist() != together[0][0][1].ids.tolist()


def test_results_survive_eviction_waves_and_rewritten_pasts(model: transformers.PreTrainedModel) -> None:
    params = SamplingParams(max_tokens=8)
    openings = prompts_of(11, seed=4)
    roomy = play(HFSampler(model), openings, 3, params, [7])
    # Room for about three rows: several waves a turn, and most conversations lose their slots.
    per_token = 2 * 2 * 2 * 8 * 4
    tight = HFSampler(model, cache_bytes=3 * per_token * 80)
    assert isinstance(tight._engine, SlotEngine)
    for expected, got in zip(roomy, play(tight, openings, 3, params, [7]), strict=True):
        for (prompt, row), (same_prompt, other) in zip(expected, got, strict=True):
            assert prompt == same_prompt and row.ids.tolist() == other.ids.tolist()
    # A prompt that departs from what is cached in the middle (a fork), or is a mere prefix of it.
    sampler = HFSampler(model)
    (prompt, first), *_ = play(sampler, openings[:1], 1, params, [7])[0]
    for changed in ([*prompt[:2], 50, *prompt[2:], *first.ids.tolist()], prompt[:2]):
        (drawn,) = sampler.sample([SampleRequest(changed, SampleKey(5, 0, 1), "e0")], params, [7])
        check_exact(model, changed, drawn)


def test_rows_come_and_go(model: transformers.PreTrainedModel) -> None:
    """Slots are reused and exchanged while other conversations sit idle in them."""
    sampler = HFSampler(model)
    rng = np.random.default_rng(9)
    conversations = {f"s{i}": prompt for i, prompt in enumerate(prompts_of(12, seed=5, high=20))}
    for turn in range(12):
        chosen = sorted(rng.choice(sorted(conversations), int(rng.integers(1, 9)), replace=False).tolist())
        requests = [SampleRequest(conversations[s], SampleKey(1, int(s[1:]), turn), s) for s in chosen]
        drawn = sampler.sample(requests, SamplingParams(max_tokens=6), [3, 4, 5, 6])
        for session, row in zip(chosen, drawn, strict=True):
            check_exact(model, conversations[session], row)
            conversations[session] = [*conversations[session], *row.ids.tolist(), int(rng.integers(VOCABULARY))]
        gone = str(rng.choice(sorted(conversations)))
        sampler.release([gone])
        conversations[gone] = prompts_of(1, seed=100 + turn, high=20)[0]


def test_late_members_of_a_group_take_over_the_openings_cache(model: transformers.PreTrainedModel) -> None:
    sampler = HFSampler(model)
    opening = prompts_of(1, seed=6)[0]
    play(sampler, [opening, opening], 2, SamplingParams(max_tokens=5), [])
    before = sampler.prefilled
    (late,) = sampler.sample([SampleRequest(opening, SampleKey(5, 9, 0), "late")], SamplingParams(max_tokens=5), [])
    assert sampler.prefilled == before + 1
    check_exact(model, opening, late)


def test_the_context_is_a_limit(model: transformers.PreTrainedModel) -> None:
    sampler = HFSampler(model, max_context=20)
    requests = [SampleRequest([1] * n, SampleKey(0, n, 0), str(n)) for n in (5, 17, 19, 20, 30)]
    drawn = sampler.sample(requests, SamplingParams(max_tokens=6), [])
    assert [len(row.ids) for row in drawn] == [6, 3, 1, 0, 0]
    assert {row.finish_reason for row in drawn} == {"length"}
    check_exact(model, [1] * 17, drawn[1])
    with pytest.raises(ConfigError, match="max_context"):
        HFSampler(model, max_context=161)
    assert HFSampler(model).max_context == 160


def test_greedy_takes_the_most_likely(model: transformers.PreTrainedModel) -> None:
    prompt = prompts_of(1, seed=8)[0]
    (drawn,) = HFSampler(model).sample(
        [SampleRequest(prompt, SampleKey(0, 0, 0), "a")], SamplingParams(temperature=0, max_tokens=5), []
    )
    ids = torch.tensor([[*prompt, *drawn.ids.tolist()]])
    with torch.no_grad():
        best = model(input_ids=ids).logits[0].argmax(-1)[len(prompt) - 1 : -1]
    assert best.tolist() == drawn.ids.tolist()


def test_bad_requests_are_refused(model: transformers.PreTrainedModel) -> None:
    sampler = HFSampler(model)
    twice = [SampleRequest([1], SampleKey(0, 0, 0), "a"), SampleRequest([2], SampleKey(0, 1, 0), "a")]
    with pytest.raises(ValueError, match="same session"):
        sampler.sample(twice, SamplingParams(), [])
    with pytest.raises(ValueError, match="without tokens"):
        sampler.sample([SampleRequest([], SampleKey(0, 0, 0), "a")], SamplingParams(), [])
    assert sampler.sample([], SamplingParams(), []) == []


def test_new_weights_drop_the_cache_and_leave_the_model_as_it_was() -> None:
    learner = build(transformers.Qwen3Config(head_dim=8, **SIZES)).train()
    sampler = HFSampler(learner)
    assert learner.training and learner.config._attn_implementation != "agentgym_slots"
    prompt = prompts_of(1)[0]
    request = SampleRequest(prompt, SampleKey(0, 0, 0), "a")
    sampler.sample([request], SamplingParams(max_tokens=4), [])
    # A training step on the shared module, then sampling goes on with the new weights.
    loss = learner(input_ids=torch.tensor([prompt]), labels=torch.tensor([prompt])).loss
    loss.backward()
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter -= 0.5 * parameter.grad
    sampler.weights_changed(3)
    assert sampler.weights_version == 3 and learner.training
    (drawn,) = sampler.sample([request], SamplingParams(max_tokens=4), [])
    check_exact(learner, prompt, drawn)
    state = {name: torch.zeros_like(value) for name, value in learner.state_dict().items()}
    sampler.load_weights(state, 4)
    (flat,) = sampler.sample([request], SamplingParams(max_tokens=4), [])
    np.testing.assert_allclose(flat.logprobs, -np.log(VOCABULARY), rtol=1e-5)


NOT_FOR_SLOTS = {
    "sliding window": transformers.MistralConfig(sliding_window=8, **SIZES),
    "softcap": transformers.Gemma2Config(head_dim=8, sliding_window=4096, **SIZES),
    "recurrent": transformers.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=32, state_size=4, num_hidden_layers=2, max_position_embeddings=160
    ),
}


@pytest.mark.parametrize("config", NOT_FOR_SLOTS.values(), ids=list(NOT_FOR_SLOTS))
def test_unsuited_architectures_fall_back_and_say_so(config: object) -> None:
    odd = build(config, spread=0.1)
    with pytest.warns(UserWarning, match="no cache is kept between turns"):
        sampler = HFSampler(odd, max_context=150)
    assert sampler.cache_note
    for turn in play(sampler, prompts_of(6, high=20), 2, SamplingParams(max_tokens=8), [3, 4, 5, 6]):
        for prompt, row in turn:
            check_exact(odd, prompt, row)


SUITED = {
    "llama": transformers.LlamaConfig(**SIZES),
    "qwen2": transformers.Qwen2Config(**SIZES),
    "wide window": transformers.MistralConfig(sliding_window=4096, **SIZES),
    "gpt2": transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=160),
    "neox": transformers.GPTNeoXConfig(**{**SIZES, "num_key_value_heads": None}),
}


@pytest.mark.parametrize("config", SUITED.values(), ids=list(SUITED))
def test_common_architectures_use_slots(config: object) -> None:
    other = build(config, spread=0.1)
    sampler = HFSampler(other, max_context=150)
    assert sampler.cache_note == ""
    for turn in play(sampler, prompts_of(6, high=20), 2, SamplingParams(max_tokens=8), [3, 4, 5, 6]):
        for prompt, row in turn:
            check_exact(other, prompt, row)


def test_loading(tmp_path: Path, model: transformers.PreTrainedModel) -> None:
    model.save_pretrained(tmp_path / "good")
    loaded = load_model(tmp_path / "good", device="cpu")
    assert loaded.dtype == torch.float32 and not loaded.training
    assert load_model(tmp_path / "good", dtype="bfloat16").dtype == torch.bfloat16
    with pytest.raises(ConfigError, match="no tokenizer"):
        load_tokenizer(tmp_path / "good")
    with pytest.raises(ConfigError, match="save_pretrained"):
        load_model(tmp_path)
    with pytest.raises(ConfigError, match="offline"):
        load_model("nobody/has-this-model", offline=True)
    with pytest.raises(ConfigError, match="device"):
        pick_device("nonsense")


def test_pickled_weights_are_not_loaded(tmp_path: Path, model: transformers.PreTrainedModel) -> None:
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match="safetensors"):
        load_model(tmp_path)
