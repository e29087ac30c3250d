"""Running a model whose memory a slot cache cannot hold: recurrent layers, sliding windows, unknown attention.

Invariants: nothing is kept between turns and no row is padded: rows of equal prompt length form a batch and run on the
architecture's own cache from the first token on, so whatever the model remembers is what it would remember alone.
Finished rows ride along. Slower than slots by the length of the conversation; the sampler says when it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

_CACHE_NAMES = ("cache", "past_key_values", "cache_params")
"""What transformers calls a model's cache, in its outputs and arguments alike."""


@dataclass
class _Batch:
    """Rows of one length. `ids` (rows, length) are all ids so far; `cache` is the architecture's own, if it has one."""

    members: NDArray[np.int64]
    ids: torch.Tensor
    cache: tuple[str, Any] | None = None


class PlainEngine:
    """The same calls as `SlotEngine`, without memory between turns. `prefilled` counts prompt tokens run."""

    def __init__(self, model: PreTrainedModel, batch_rows: int = 64) -> None:
        self.model = model
        self.batch_rows = batch_rows
        self.prefilled = 0
        self._batches: list[_Batch] = []

    @contextmanager
    def active(self) -> Iterator[None]:
        """Nothing to switch."""
        yield

    def capacity(self, columns: int) -> int:
        """Rows at a time."""
        return self.batch_rows

    def begin(self, sessions: Sequence[str], prompts: Sequence[NDArray[np.int64]], columns: int) -> torch.Tensor:
        """Run the prompts. Returns the next token's logits. Shape: (rows, vocabulary)."""
        lengths = np.asarray([len(prompt) for prompt in prompts])
        self._batches = []
        for length in np.unique(lengths):
            members = np.flatnonzero(lengths == length)
            ids = torch.from_numpy(np.stack([prompts[int(i)] for i in members])).to(self.model.device)
            self.prefilled += ids.numel()
            self._batches.append(_Batch(members, ids))
        return self._collect([self._forward(batch, batch.ids) for batch in self._batches], np.arange(len(prompts)))

    def step(self, ids: torch.Tensor, running: NDArray[np.int64]) -> torch.Tensor:
        """Feed one token to each of the requests `running`; logits in the same order."""
        place = {int(i): position for position, i in enumerate(running)}
        self._batches = [batch for batch in self._batches if any(int(i) in place for i in batch.members)]
        parts = []
        for batch in self._batches:
            # A finished row repeats any token; what comes of it is dropped.
            chosen = torch.tensor([place.get(int(i), 0) for i in batch.members], device=ids.device)
            new = ids[chosen][:, None]
            batch.ids = torch.cat([batch.ids, new], 1)
            parts.append(self._forward(batch, batch.ids if batch.cache is None else new))
        return self._collect(parts, running)

    def release(self, sessions: Iterable[str]) -> None:
        """Nothing is kept."""

    def clear(self) -> None:
        """Nothing is kept."""

    def _forward(self, batch: _Batch, new: torch.Tensor) -> torch.Tensor:
        """Run `new` ids after what the cache holds; logits of the last. Shape: (rows, vocabulary)."""
        past = {} if batch.cache is None else dict([batch.cache])
        output = self.model(input_ids=new, use_cache=True, **past)
        batch.cache = next(((n, c) for n in _CACHE_NAMES if (c := getattr(output, n, None)) is not None), None)
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def _collect(self, parts: Sequence[torch.Tensor], wanted: NDArray[np.int64]) -> torch.Tensor:
        members = np.concatenate([batch.members for batch in self._batches])
        place = {int(i): position for position, i in enumerate(members)}
        return torch.cat(list(parts))[torch.tensor([place[int(i)] for i in wanted], device=parts[0].device)]
