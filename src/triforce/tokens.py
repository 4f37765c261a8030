"""Sequences of token ids: the truth that every cache catches up with. Knows nothing of text or of models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32]  # [length], a whole sequence; int32, so that comparing 128K of them takes microseconds


def extend(tokens: TokenIds, more: Sequence[int]) -> TokenIds:
    """`tokens` followed by `more`, as a new sequence."""
    return np.concatenate((tokens, np.asarray(more, dtype=np.int32)))


class TokenLog:
    """The ids behind a cache's rows, growable; says how far they agree with a sequence."""

    def __init__(self) -> None:
        self._ids: TokenIds = np.empty(1024, dtype=np.int32)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def ids(self) -> TokenIds:
        """[length], a view."""
        return self._ids[: self._length]

    def append(self, tokens: TokenIds | Sequence[int]) -> None:
        end = self._length + len(tokens)
        if end > len(self._ids):
            grown = np.empty(max(end, 2 * len(self._ids)), dtype=np.int32)
            grown[: self._length] = self.ids
            self._ids = grown
        self._ids[self._length : end] = tokens
        self._length = end

    def truncate(self, length: int) -> None:
        assert 0 <= length <= self._length, (length, self._length)
        self._length = length

    def common_prefix(self, tokens: TokenIds) -> int:
        """How many leading ids agree."""
        most = min(self._length, len(tokens))
        differ = self._ids[:most] != tokens[:most]
        return int(differ.argmax()) if differ.any() else most
