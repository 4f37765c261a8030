"""Prompt lookup: proposes what followed the longest earlier occurrence of the last tokens. Needs no model.

The longest suffix wins, the most recent one among equals (as in SuffixDecoding, arXiv 2411.04975, over one sequence).
Its draft law is one-hot.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch

from triforce.sampling import Sampler, one_hot
from triforce.speculative import Draft
from triforce.statistics import LevelStats
from triforce.tokens import TokenIds, TokenLog

_CANDIDATES = 32  # most recent occurrences compared for the longest match
_LONGEST = 32  # a longer match is not told apart


class Lookup:
    """Proposes up to `depth` tokens when at least the last `min_match` tokens occurred before."""

    def __init__(self, vocab_size: int, min_match: int = 3) -> None:
        self.stats = LevelStats("lookup")
        self._vocab_size = vocab_size
        self._min_match = min_match
        self._log = TokenLog()
        self._ends: dict[tuple[int, ...], list[int]] = {}  # n-gram -> positions just after its occurrences
        self._last: tuple[TokenIds, tuple[int, int]] | None = None  # a sequence, and the match that was found

    def read(self, tokens: TokenIds) -> None:
        """Enter the n-grams that end before the last token, so that a match always has a continuation."""
        n, kept = self._min_match, self._log.common_prefix(tokens[:-1])
        for end in range(len(self._log), max(kept, n - 1), -1):
            gram = tuple(self._log.ids[end - n : end].tolist())
            ends = self._ends.get(gram, [])
            if ends and ends[-1] == end:  # not so where an interruption came between log and index
                ends.pop()
            if not ends:
                self._ends.pop(gram, None)
        self._log.truncate(kept)
        self._log.append(tokens[kept:-1])
        ids = self._log.ids[max(kept - n + 1, 0) :].tolist()
        for end in range(n, len(ids) + 1):
            self._ends.setdefault(tuple(ids[end - n : end]), []).append(end + max(kept - n + 1, 0))

    def propose(self, tokens: TokenIds, depth: int, sampler: Sampler) -> Draft | None:
        return self.propose_after(self._min_match, tokens, depth, sampler)

    def propose_after(self, least: int, tokens: TokenIds, depth: int, sampler: Sampler) -> Draft | None:
        """The same where at least the last `least` tokens occurred before, nothing elsewhere."""
        assert self._min_match <= least <= _LONGEST, (least, self._min_match)
        del sampler
        start = time.perf_counter()
        position, length = self._longest_match(tokens)
        drafted = _read_on(tokens, position, depth) if length >= least else []
        self.stats.seconds += time.perf_counter() - start
        if not drafted:
            return None
        return Draft(drafted, one_hot(torch.tensor(drafted), self._vocab_size), [self.stats.name] * len(drafted))

    def _longest_match(self, tokens: TokenIds) -> tuple[int, int]:
        """The position after the longest earlier occurrence of a suffix of `tokens`, and its length, 0 if too short.

        Drafters of one lookup ask this of one sequence in turn, which nobody changes in place.
        """
        if self._last and (self._last[0] is tokens or np.array_equal(self._last[0], tokens)):
            return self._last[1]
        self.read(tokens)
        self._last = tokens, self._search(tokens)
        self.stats.passes += 1
        return self._last[1]

    def _search(self, tokens: TokenIds) -> tuple[int, int]:
        if len(tokens) < self._min_match:
            return 0, 0
        ends = self._ends.get(tuple(tokens[-self._min_match :].tolist()), [])[-_CANDIDATES:]
        suffix = tokens[-_LONGEST:][::-1]
        best, longest = 0, 0
        for end in reversed(ends):
            before = tokens[max(end - _LONGEST, 0) : end][::-1]
            differ = before != suffix[: len(before)]
            length = int(differ.argmax()) if differ.any() else len(before)
            if length > longest:
                best, longest = end, length
        return best, longest


@dataclass(frozen=True)
class LongMatches:
    """`lookup` where at least the last `least` tokens occurred before, nothing elsewhere.

    The longer the match, the likelier is what followed it: whoever chooses by acceptance should learn it apart.
    """

    lookup: Lookup
    least: int

    @property
    def stats(self) -> LevelStats:
        """The lookup's own."""
        return self.lookup.stats

    def propose(self, tokens: TokenIds, depth: int, sampler: Sampler) -> Draft | None:
        return self.lookup.propose_after(self.least, tokens, depth, sampler)


def _read_on(tokens: TokenIds, position: int, depth: int) -> list[int]:
    """`depth` tokens from `position`; past the end the sequence is taken to repeat itself."""
    period = len(tokens) - position
    read: list[int] = tokens[position : position + depth].tolist()
    for i in range(len(read), depth):
        read.append(read[i - period])
    return read
