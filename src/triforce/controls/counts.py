"""How often each token occurs in a history, kept up from call to call instead of counted anew."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from triforce.tokens import TokenIds, TokenLog


class TokenCounts:
    """Occurrences of each of `vocab_size` tokens from position `start` on."""

    def __init__(self, vocab_size: int, start: int = 0) -> None:
        self._start = start
        self._log = TokenLog()
        self._counts = np.zeros(vocab_size, dtype=np.int32)

    def rows(self, tokens: TokenIds, num_rows: int) -> Iterator[Tensor]:
        """Counts [vocab] int32 in the history of each of the last `num_rows` rows; each is good until the next one."""
        first = max(len(tokens) - num_rows + 1, self._start)
        self._follow(tokens[self._start : first])
        counts = torch.from_numpy(self._counts)
        for end in range(len(tokens) - num_rows + 1, len(tokens) + 1):
            if end > first:
                self._add(tokens[end - 1 : end])
            yield counts

    def _follow(self, history: TokenIds) -> None:
        kept = self._log.common_prefix(history)
        np.subtract.at(self._counts, self._log.ids[kept:], 1)
        self._log.truncate(kept)
        self._add(history[kept:])

    def _add(self, tokens: TokenIds) -> None:
        np.add.at(self._counts, tokens, 1)
        self._log.append(tokens)
