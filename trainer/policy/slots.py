"""Keys and values of running conversations, one slot each, and the attention that reads them.

Invariants:
- A slot holds the keys and values of the tokens at columns 0 … length-1 of its conversation; what lies beyond is
  rubbish that no query sees. Each token is written at (slot, its own position), so rows of any lengths share a batch.
- A forward pass is packed: all new tokens of all rows lie in one sequence (1, tokens), without padding, and carry
  their positions. Nothing in it but the attention mixes tokens; architectures for which that is untrue (recurrent
  layers, sliding windows, …) raise `UnsuitableArchitectureError` or fail the sampler's self-check.
- It plugs in through transformers' public attention interface; the model code stays as it is.

Legend: L layers, R slots, H key/value heads, G query heads per key/value head, S columns, D head size, N new tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional
from transformers import AttentionInterface


class UnsuitableArchitectureError(Exception):
    """The model's attention asks for something a slot cache cannot do. The message says what."""


class SlotStore:
    """The tensors: per layer, keys (R, H, S + 1, D) and values alike, allocated when a layer first writes.

    The column S is where rows write that must leave no trace. On the host: `lengths` (R,) and `ids` (R, S), the ids
    whose keys and values a slot holds.
    """

    def __init__(self, rows: int, columns: int) -> None:
        self.rows = rows
        self.columns = columns
        self.ids = np.zeros((rows, columns), np.int64)
        self.lengths = np.zeros(rows, np.int64)
        self.keys: dict[int, torch.Tensor] = {}
        self.values: dict[int, torch.Tensor] = {}

    def layer(self, index: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the keys and values of a layer, made to fit `key` and `value` (1, H, N, D) the first time."""
        if index not in self.keys:
            for table, like in ((self.keys, key), (self.values, value)):
                # Zeros, because rubbish may be infinite, and zero weight times infinity is not zero.
                table[index] = like.new_zeros(self.rows, like.shape[1], self.columns + 1, like.shape[3])
        return self.keys[index], self.values[index]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All tensors that hold slots."""
        return [*self.keys.values(), *self.values.values()]

    @property
    def bytes_per_token(self) -> int:
        """Bytes one token takes, over all layers (0 before the first forward pass)."""
        return sum(t.shape[1] * t.shape[3] * t.element_size() for t in self.tensors)

    def copy(self, sources: list[int], targets: list[int], columns: int) -> None:
        """Copy the first `columns` columns of some slots onto others. All are read before any is written."""
        self.ids[targets, :columns] = self.ids[sources, :columns]
        self.lengths[targets] = np.minimum(self.lengths[sources], columns)
        for tensor in self.tensors:
            tensor[targets, :, :columns] = tensor[sources, :, :columns]

    def swap(self, ones: Sequence[int], others: Sequence[int]) -> None:
        """Exchange pairs of slots."""
        sources, targets = [*ones, *others], [*others, *ones]
        self.copy(sources, targets, int(self.lengths[sources].max()))

    def resized(self, rows: int, columns: int, kept: list[int]) -> SlotStore:
        """Return a store of another size that holds the slots `kept`, now numbered 0, 1, …"""
        new = SlotStore(rows, columns)
        width = min(columns, self.columns)
        new.ids[: len(kept), :width] = self.ids[kept, :width]
        new.lengths[: len(kept)] = np.minimum(self.lengths[kept], width)
        for old_table, new_table in ((self.keys, new.keys), (self.values, new.values)):
            for index, old in old_table.items():
                new_table[index] = old.new_zeros(rows, old.shape[1], columns + 1, old.shape[3])
                new_table[index][: len(kept), :, :width] = old[kept, :, :width]
        return new


@dataclass(frozen=True)
class _Segment:
    """New tokens start … stop of a packed sequence belong to `slot`, which then holds `length` tokens."""

    slot: int
    start: int
    stop: int
    length: int
    mask: torch.Tensor | None  # bool (stop - start, length), None when nothing came before: plainly causal


class SlotBatch:
    """What the attention of one forward pass needs to know; travels through the model as a keyword argument.

    Shapes: `slots` and `positions` (N,), on the host. A batch is either one token in each of the slots 0 … N-1
    (`decode`) or runs of tokens in any slots (`prefill`).
    """

    def __init__(self, store: SlotStore, slots: NDArray[np.int64], positions: NDArray[np.int64], device: torch.device):
        self.store = store
        self.slots = torch.from_numpy(slots).to(device)
        self.positions = torch.from_numpy(positions).to(device)
        self.segments: list[_Segment] = []
        self.bias: torch.Tensor | None = None
        self._index: dict[int, torch.Tensor] = {}

    @classmethod
    def decode(cls, store: SlotStore, positions: NDArray[np.int64], device: torch.device) -> SlotBatch:
        """One new token at `positions[i]` of slot i."""
        batch = cls(store, np.arange(len(positions)), positions, device)
        seen = torch.arange(int(min(positions.max() + 1, store.columns)), device=device) <= batch.positions[:, None]
        batch.bias = torch.zeros(seen.shape, device=device).masked_fill_(~seen, -torch.inf)[:, None, None]
        return batch

    @classmethod
    def prefill(cls, store: SlotStore, runs: Sequence[tuple[int, int, int]], device: torch.device) -> SlotBatch:
        """Runs (slot, first position, count) of new tokens, packed in this order."""
        slots = np.concatenate([np.full(count, slot) for slot, _, count in runs])
        positions = np.concatenate([np.arange(first, first + count) for _, first, count in runs])
        batch = cls(store, slots, positions, device)
        start = 0
        for slot, first, count in runs:
            stop, length = start + count, first + count
            mask = None
            if first:
                mask = torch.arange(length, device=device) <= batch.positions[start:stop, None]
            batch.segments.append(_Segment(slot, start, stop, length, mask))
            start = stop
        return batch

    def _write_index(self, heads: int) -> torch.Tensor:
        """Rows of the flattened (R * H * (S + 1), D) layout that the new tokens go to. Shape: (N * H,)."""
        if heads not in self._index:
            head = torch.arange(heads, device=self.slots.device)
            base = (self.slots[:, None] * heads + head) * (self.store.columns + 1)
            self._index[heads] = (base + self.positions[:, None]).flatten()
        return self._index[heads]

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        """Store the new keys and values, attend. `query` (1, H * G, N, D), others (1, H, N, D) -> (1, N, H * G, D)."""
        heads, tokens = key.shape[1], key.shape[2]
        keys, values = self.store.layer(layer, key, value)
        index = self._write_index(heads)
        keys.view(-1, key.shape[3]).index_copy_(0, index, key.transpose(1, 2).reshape(tokens * heads, -1))
        values.view(-1, value.shape[3]).index_copy_(0, index, value.transpose(1, 2).reshape(tokens * heads, -1))
        if self.bias is not None:
            return self._decode(query, keys, values, self.bias, scaling)
        return self._prefill(query, keys, values, scaling)

    def _decode(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor, scaling: float
    ) -> torch.Tensor:
        rows, heads, columns = query.shape[2], keys.shape[1], bias.shape[3]
        # Slots 0 … rows-1 are contiguous, so (rows, heads) flatten without a copy and two batched products suffice.
        near_keys = keys[:rows, :, :columns].flatten(0, 1)
        near_values = values[:rows, :, :columns].flatten(0, 1)
        grouped = (query.transpose(1, 2) * scaling).reshape(rows * heads, -1, query.shape[3])
        scores = torch.bmm(grouped, near_keys.transpose(1, 2)).view(rows, heads, -1, columns)
        weights = torch.softmax(scores + bias, -1, dtype=torch.float32).to(query.dtype)
        mixed = torch.bmm(weights.view(rows * heads, -1, columns), near_values)
        return mixed.view(1, rows, query.shape[1], -1)

    def _prefill(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float) -> torch.Tensor:
        mixed = query.new_empty(1, query.shape[2], query.shape[1], values.shape[3])
        for part in self.segments:
            mixed[:, part.start : part.stop] = functional.scaled_dot_product_attention(
                query[:, :, part.start : part.stop],
                keys[None, part.slot, :, : part.length],
                values[None, part.slot, :, : part.length],
                attn_mask=part.mask,
                is_causal=part.mask is None,
                scale=scaling,
                enable_gqa=query.shape[1] != keys.shape[1],
            ).transpose(1, 2)
        return mixed


def slot_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    slot_batch: SlotBatch | None = None,
    **options: object,
) -> tuple[torch.Tensor, None]:
    """Attention function for transformers' interface. Raises UnsuitableArchitectureError for what it cannot honour."""
    if slot_batch is None:
        raise UnsuitableArchitectureError("the model does not hand keyword arguments down to its attention")
    window = options.get("sliding_window")
    if isinstance(window, int) and window < slot_batch.store.columns:
        raise UnsuitableArchitectureError(f"a sliding window of {window} tokens")
    for name in ("softcap", "s_aux", "position_bias"):
        if options.get(name) is not None:
            raise UnsuitableArchitectureError(f"attention with {name}")
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int) or options.get("is_causal") is False:
        raise UnsuitableArchitectureError("attention that is not numbered by layer, or not causal")
    if attention_mask is not None:
        raise UnsuitableArchitectureError("a mask of the model's own")
    return slot_batch.attend(layer, query, key, value, query.shape[-1] ** -0.5 if scaling is None else scaling), None


def register_slot_attention() -> str:
    """Make the attention known to transformers (any number of times) and return its name."""
    AttentionInterface.register("agentgym_slots", slot_attention)
    return "agentgym_slots"
