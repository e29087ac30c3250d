"""Running a model over conversations that keep their slots between turns.

Invariants: before a forward pass the rows that take part sit in slots 0 … n-1 (few are moved: only those outside).
What a row's cache stands for is written in its `ids`; a request reuses the longest common prefix of the two and
prefills the rest, so what comes out depends on the request's ids alone (up to float rounding, which the width of a
batch can shift by an ulp). Fresh rows with equal prompts - the episodes of a group - are prefilled once and copied.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from agentgym_rtmc.trainer.policy.slots import SlotBatch, SlotStore, register_slot_attention

_COMPACT_BELOW = 7 / 8
"""Finished rows ride along until this share of a batch is left: moving slots costs about one step."""


@dataclass(eq=False)
class _Row:
    """A conversation: the slot it lies in and the very first prompt it had."""

    slot: int
    opening: bytes = b""


class SlotEngine:
    """Logits for ragged rows. `cache_bytes` bounds the memory of the cache, `prefill_tokens` that of one pass."""

    def __init__(self, model: PreTrainedModel, max_columns: int, cache_bytes: int, prefill_tokens: int) -> None:
        self.model = model
        self.max_columns = max_columns
        self.cache_bytes = cache_bytes
        self.prefill_tokens = prefill_tokens
        self.prefilled = 0  # tokens, over the engine's life: what the reuse saves shows here
        self._attention = register_slot_attention()
        self._can_keep = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._store = SlotStore(0, 0)
        self._rows: dict[str, _Row] = {}  # by session, the longest unused first
        self._bytes_per_token = 0
        self._wave: list[_Row] = []  # by request
        self._width = 0  # slots 0 … width-1 take part in a step

    # -- what the sampler calls ---------------------------------------------------------------------------------

    @contextmanager
    def active(self) -> Iterator[None]:
        """Switch the model to the slot attention, and back."""
        before = self.model.config._attn_implementation
        self.model.config._attn_implementation = self._attention
        try:
            yield
        finally:
            self.model.config._attn_implementation = before

    def capacity(self, columns: int) -> int:
        """How many rows of `columns` tokens fit at a time (at least one)."""
        if not self._bytes_per_token:
            return 1 << 30
        return max(1, self.cache_bytes // (self._bytes_per_token * (self._rounded(columns) + 1)))

    def begin(self, sessions: Sequence[str], prompts: Sequence[NDArray[np.int64]], columns: int) -> torch.Tensor:
        """Bring the rows' caches up to their prompts. Returns the next token's logits. Shape: (rows, vocabulary)."""
        self._wave = self._claim(sessions, columns)
        leaders: dict[bytes, int] = {}
        leader = list(range(len(prompts)))
        pending: list[int] = []
        for i, (row, prompt) in enumerate(zip(self._wave, prompts, strict=True)):
            shared = self._shared(row, prompt)
            if not shared:
                row.opening = prompt.tobytes()
                leader[i] = leaders.setdefault(row.opening, i)
                if leader[i] != i:
                    continue
                shared = self._adopt(row, prompt)
            # The last token always runs, for its logits are wanted.
            self._store.lengths[row.slot] = min(shared, len(prompt) - 1)
            pending.append(i)
        logits = self._prefill(pending, prompts)
        for one in set(leader):
            followers = [self._wave[i].slot for i, which in enumerate(leader) if which == one != i]
            if followers:
                self._store.copy([self._wave[one].slot] * len(followers), followers, len(prompts[one]))
        place = {i: position for position, i in enumerate(pending)}
        return logits[torch.tensor([place[i] for i in leader], device=logits.device)]

    def step(self, ids: torch.Tensor, running: NDArray[np.int64]) -> torch.Tensor:
        """Feed one token to each of the requests `running` (indices into the wave); logits in the same order."""
        if len(running) <= self._width * _COMPACT_BELOW:
            self._gather([self._wave[i] for i in running])
            self._width = len(running)
        store = self._store
        slots = np.asarray([self._wave[i].slot for i in running])
        positions = np.full(self._width, store.columns)  # rows at rest write to the spare column
        positions[slots] = store.lengths[slots]
        where = torch.from_numpy(slots).to(ids.device)
        tokens = ids.new_zeros(self._width).index_copy_(0, where, ids)
        logits = self._forward(tokens, SlotBatch.decode(store, positions, ids.device), None)
        store.ids[slots, store.lengths[slots]] = ids.numpy(force=True)
        store.lengths[slots] += 1
        return logits[where]

    def release(self, sessions: Iterable[str]) -> None:
        """Forget conversations."""
        for session in sessions:
            self._rows.pop(session, None)

    def clear(self) -> None:
        """Forget everything (after the weights changed)."""
        self._rows.clear()

    # -- inside -------------------------------------------------------------------------------------------------

    def _forward(self, tokens: torch.Tensor, batch: SlotBatch, last: torch.Tensor | None) -> torch.Tensor:
        """One packed pass; logits of all tokens or of the indices `last`. Shape: (kept, vocabulary)."""
        output = self.model(
            input_ids=tokens[None],
            position_ids=batch.positions[None].clamp(max=self.max_columns - 1),
            use_cache=False,
            slot_batch=batch,
            **({"logits_to_keep": last} if last is not None and self._can_keep else {}),
        )
        self._bytes_per_token = self._store.bytes_per_token
        logits: torch.Tensor = output.logits[0]
        return logits if last is None or self._can_keep else logits[last]

    def _prefill(self, pending: Sequence[int], prompts: Sequence[NDArray[np.int64]]) -> torch.Tensor:
        """Run what the caches of the rows `pending` lack, a bounded number of tokens at a time.

        Returns the logits after each prompt. Shape: (pending, vocabulary).
        """
        store, device = self._store, self.model.device
        parts: list[torch.Tensor] = []
        runs: list[tuple[int, int, int]] = []
        tokens: list[NDArray[np.int64]] = []
        for left, i in zip(range(len(pending) - 1, -1, -1), pending, strict=True):
            slot, prompt = self._wave[i].slot, prompts[i]
            known = int(store.lengths[slot])
            runs.append((slot, known, len(prompt) - known))
            tokens.append(prompt[known:])
            store.ids[slot, known : len(prompt)] = prompt[known:]
            store.lengths[slot] = len(prompt)
            if left and sum(map(len, tokens)) < self.prefill_tokens:
                continue
            ends = torch.from_numpy(np.cumsum([count for *_, count in runs]) - 1).to(device)
            packed = torch.from_numpy(np.concatenate(tokens)).to(device)
            self.prefilled += len(packed)
            parts.append(self._forward(packed, SlotBatch.prefill(store, runs, device), ends))
            runs, tokens = [], []
        return torch.cat(parts)

    def _shared(self, row: _Row, prompt: NDArray[np.int64]) -> int:
        """Number of leading tokens of the prompt that the row's slot holds."""
        cached = self._store.ids[row.slot, : min(len(prompt), int(self._store.lengths[row.slot]))]
        unequal = cached != prompt[: len(cached)]
        return int(unequal.argmax()) if unequal.any() else len(cached)

    def _adopt(self, row: _Row, prompt: NDArray[np.int64]) -> int:
        """Copy the prompt's cache from a running conversation that began with it; returns the tokens gained."""
        for other in self._rows.values():
            if other is not row and other.opening == row.opening and self._shared(other, prompt) == len(prompt):
                self._store.copy([other.slot], [row.slot], len(prompt))
                return len(prompt)
        return 0

    def _claim(self, sessions: Sequence[str], columns: int) -> list[_Row]:
        """Give every session a row, in slots 0 … n-1, with room for `columns` tokens."""
        self._reserve(sessions, columns)
        taken = {row.slot for row in self._rows.values()}
        free = iter(slot for slot in range(self._store.rows) if slot not in taken)
        wave = []
        for session in sessions:
            row = self._rows.pop(session, None)
            if row is None:
                row = _Row(next(free))
                self._store.lengths[row.slot] = 0
            self._rows[session] = row  # to the end: most recently used
            wave.append(row)
        self._width = len(wave)
        self._gather(wave)
        return wave

    def _reserve(self, sessions: Sequence[str], columns: int) -> None:
        """Make room, forgetting idle conversations (the longest unused first) where memory demands it."""
        columns = max(self._store.columns, self._rounded(columns))
        allowed = max(len(sessions), min(self.capacity(columns), 1 << 20))
        wanted = set(sessions)
        fresh = len(wanted - self._rows.keys())
        idle = [session for session in self._rows if session not in wanted]
        excess = len(self._rows) + fresh - allowed
        self.release(idle[: max(0, excess)])
        needed = len(self._rows) + fresh
        if needed > self._store.rows or columns > self._store.columns or self._store.rows > allowed:
            # Growing by a half at least keeps the number of copies logarithmic.
            rows = min(allowed, max(needed, self._store.rows if columns > self._store.columns else needed * 3 // 2))
            kept = list(self._rows.values())
            self._store = self._store.resized(max(rows, needed), columns, [row.slot for row in kept])
            for slot, row in enumerate(kept):
                row.slot = slot

    def _rounded(self, columns: int) -> int:
        return min(self.max_columns, -(-columns // 64) * 64)

    def _gather(self, rows: Sequence[_Row]) -> None:
        """Move `rows` into slots 0 … n-1, exchanging them with whatever lies there."""
        inside = {row.slot for row in rows if row.slot < len(rows)}
        outside = [row for row in rows if row.slot >= len(rows)]
        if not outside:
            return
        by_slot = {row.slot: row for row in self._rows.values()}
        holes = [slot for slot in range(len(rows)) if slot not in inside]
        self._store.swap([row.slot for row in outside], holes)
        for row, hole in zip(outside, holes, strict=True):
            if hole in by_slot:
                by_slot[hole].slot = row.slot
            row.slot = hole
