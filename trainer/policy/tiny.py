"""The embedded policy: a small modern decoder and a tokenizer trained for it, enough to learn an agent's task on a CPU.

Invariants: both are saved as an ordinary transformers folder, so whatever loads a model by path loads this one. The
tokenizer is byte-level: every text encodes and decodes back exactly. A turn costs three tokens beside its text.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agentgym_rtmc.trainer.policy.config import TinyConfig
from agentgym_rtmc.trainer.policy.hf import without_progress_bars

PAD, SYSTEM, USER, AGENT, END = "<|pad|>", "<|system|>", "<|user|>", "<|agent|>", "<|end|>"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'system' -%}{{- '<|system|>' + message['content'] -}}"
    "{%- elif message['role'] == 'assistant' -%}{{- '<|agent|>' -}}"
    "{%- generation -%}{{- message['content'] + '<|end|>' -}}{%- endgeneration -%}"
    "{%- elif message['role'] in ['user', 'tool'] -%}{{- '<|user|>' + message['content'] -}}"
    "{%- else -%}{{- raise_exception('unknown role ' + message['role']) -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|agent|>' -}}{%- endif -%}"
)

# A digit (or up to `digits` of them), a word, an operator or a mark is a piece of its own with the space before it, and
# a line break takes the next line's indentation along: so a fragment of code has the same tokens in a listing, in an
# edit and in a complaint.
_OPERATORS = r"\*\*=?|//=?|<<|>>|->|&&|\|\||:=|[<>=!+\-*/%&|^]="
_PIECES = rf" ?\d{{1,DIGITS}}| ?[^\W\d]+| ?(?:{_OPERATORS})| ?[^\s\w]|\n+ *|\s+?(?=\S|$)|\s"

_LONGEST_PHRASE = 64
_TAKEN = -1


def train_tokenizer(texts: Sequence[str], config: TinyConfig) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer and give it phrases. Deterministic in its input."""
    # A text that occurs n times counts √n times: else what all episodes repeat would take up the vocabulary.
    damped = [text for text, times in Counter(texts).items() for _ in range(math.isqrt(times))]
    rough = _train_bpe(damped, config.vocabulary - config.phrases, config.digits)
    phrases = find_phrases(texts, _wrapped(rough), config.phrases)
    # What the phrases leave over goes to more merges; the ones before stay the same.
    base = _train_bpe(damped, config.vocabulary - len(phrases), config.digits)
    base.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])
    return _wrapped(base)


def _train_bpe(texts: Iterable[str], size: int, digits: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES.replace("DIGITS", str(digits))), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, SYSTEM, USER, AGENT, END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _wrapped(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    wrapped: PreTrainedTokenizerFast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[SYSTEM, USER, AGENT],
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def find_phrases(texts: Sequence[str], tokenizer: PreTrainedTokenizerFast, count: int) -> list[str]:
    """Choose up to `count` runs of tokens that save the most as single tokens in `texts`, greedily.

    A phrase is set wording, not content: it occurs in at least one text in twenty, has two words or more and no digit.
    """
    rows = [(tokenizer.encode(text, add_special_tokens=False), times) for text, times in Counter(texts).items()]
    spelled = {i: str(tokenizer.decode([i])).strip() for i in range(len(tokenizer))}
    barred = {i for i, text in spelled.items() if text.isdigit()} | {_TAKEN}
    words = {i for i, text in spelled.items() if text.isalpha()}
    chosen: list[str] = []
    while len(chosen) < count:
        pairs: Counter[tuple[int, int]] = Counter()
        for ids, times in rows:
            for pair in itertools.pairwise(ids):
                pairs[pair] += times
        # No run is commoner than its rarest pair, so only chains of common pairs need counting.
        common = {pair for pair, n in pairs.items() if n * 20 >= len(texts) and not barred.intersection(pair)}
        uses: Counter[tuple[int, ...]] = Counter()
        for ids, times in rows:
            for start in range(len(ids)):
                for stop in range(start + 2, min(len(ids), start + _LONGEST_PHRASE) + 1):
                    if (ids[stop - 2], ids[stop - 1]) not in common:
                        break
                    uses[tuple(ids[start:stop])] += times
        savings = {
            run: n * (len(run) - 1)
            for run, n in uses.items()
            if n * 20 >= len(texts) and sum(token in words for token in run) >= 2
        }
        if not savings:
            break
        run = list(min(savings.items(), key=lambda item: (-item[1], item[0]))[0])
        chosen.append(str(tokenizer.decode(run)))
        rows = [(_cut(ids, run), times) for ids, times in rows]
    return chosen


def _cut(ids: list[int], run: list[int]) -> list[int]:
    """Replace every occurrence of a run by a mark that is in no phrase."""
    out: list[int] = []
    i = 0
    while i < len(ids):
        if ids[i : i + len(run)] == run:
            out.append(_TAKEN)
            i += len(run)
        else:
            out.append(ids[i])
            i += 1
    return out


def build_model(config: TinyConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """Build a fresh decoder for the tokenizer, with weights drawn by `seed` (the global generator stays as it is)."""
    shape = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        num_key_value_heads=config.key_value_heads,
        head_dim=config.hidden_size // config.heads,
        max_position_embeddings=config.context,
        tie_word_embeddings=config.tied,
        initializer_range=config.initial_std,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = Qwen3ForCausalLM(shape)
    return model


def save_policy(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write weights (safetensors), configuration, tokenizer and chat template as transformers does."""
    with without_progress_bars():
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
