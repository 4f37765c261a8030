"""One model reading one cache: brings the cache up to a sequence, and returns logits. Knows nothing of drafts."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from triforce.caches.base import Cache, Segment
from triforce.models.decoder import Decoder
from triforce.statistics import LevelStats
from triforce.tokens import TokenIds

PREFILL_ROWS = 1024  # rows of one pass while catching up: enough to keep the arithmetic busy, few enough for memory


class ModelRunner:
    """A level that verifies: `model` over `cache`, under the name that statistics and completions show."""

    def __init__(self, name: str, model: Decoder, cache: Cache) -> None:
        self.stats = LevelStats(name)
        self.model = model
        self.cache = cache

    def logits(self, tokens: TokenIds, num_rows: int) -> Tensor:
        """Logits [num_rows, vocab] that follow each of the last `num_rows` of `tokens`; the cache catches up first."""
        start = time.perf_counter()
        hidden = self._catch_up(tokens, num_rows, None)
        logits = self.model.logits(hidden)
        self.stats.passes += 1
        self.stats.seconds += time.perf_counter() - start
        return logits

    def prefill(self, tokens: TokenIds, on_progress: Callable[[int], None] | None = None) -> None:
        """Hold rows for all `tokens`; `on_progress` hears how many are held after each pass."""
        self._catch_up(tokens, 0, on_progress)

    def _catch_up(self, tokens: TokenIds, num_rows: int, on_progress: Callable[[int], None] | None) -> Tensor:
        """Feed what the cache lacks, the last `num_rows` in any case; the hidden states [num_rows, hidden] of these."""
        first_wanted = len(tokens) - num_rows
        self.cache.sync(tokens[:first_wanted])
        hidden: list[Tensor] = []
        for span in self.cache.missing(tokens):
            for start in range(span.start, span.stop, PREFILL_ROWS):
                stop = min(start + PREFILL_ROWS, span.stop)
                fed, wanted = tokens[start:stop], max(stop - max(start, first_wanted), 0)
                hidden.append(self.model(self._readable(fed), [Segment(self.cache, len(fed), wanted)]))
                self.cache.advance(fed)
                if on_progress:
                    on_progress(self.cache.length)
        return torch.cat(hidden) if hidden else torch.empty(0)

    def _readable(self, tokens: TokenIds) -> Tensor:
        """`tokens` for the model; ids that a drafter's smaller vocabulary lacks are read as its last one."""
        return torch.from_numpy(tokens).long().clamp_(max=self.model.config.vocab_size - 1).to(self.model.device)
