"""Drafts what a grammar forces, without any model, and leaves the rest to another drafter. Knows no grammar."""

from __future__ import annotations

from typing import Protocol

import torch

from triforce.sampling import Sampler, one_hot
from triforce.speculative import Draft, Drafter
from triforce.statistics import LevelStats
from triforce.tokens import TokenIds, extend


class Forcing(Protocol):
    """What knows which tokens are forced."""

    def forced(self, tokens: TokenIds) -> list[int]:
        """What must follow `tokens`, perhaps nothing; a function of `tokens` alone."""
        ...


class Forced:
    """Proposes the forced tokens first, by one-hot laws, then what `drafter` adds to reach the depth. Those are counted
    in `own`, the others in the drafter's statistics.

    Where a text can be spelt by other tokens too, the proposal is a guess like any other, and verified.
    """

    def __init__(self, grammar: Forcing, drafter: Drafter, vocab_size: int, own: LevelStats) -> None:
        self.stats: LevelStats = _Shared(own, drafter.stats)
        self._own = own
        self._grammar = grammar
        self._drafter = drafter
        self._vocab_size = vocab_size

    def propose(self, tokens: TokenIds, depth: int, sampler: Sampler) -> Draft | None:
        forced = self._grammar.forced(tokens)[:depth] if depth > 0 else []
        assert isinstance(self.stats, _Shared)
        self.stats.num_forced = len(forced)
        if not forced:
            return self._drafter.propose(tokens, depth, sampler)
        self._own.passes += 1
        ours = Draft(forced, one_hot(torch.tensor(forced), self._vocab_size), [self._own.name] * len(forced))
        rest = depth - len(forced)
        more = self._drafter.propose(extend(tokens, forced), rest, sampler) if rest > 0 else None
        if more is None:
            return ours
        return Draft(ours.tokens + more.tokens, torch.cat((ours.laws, more.laws)), ours.levels + more.levels)


class _Shared(LevelStats):
    """Counts the first tokens of each draft for the grammar, and the others for the drafter that added them."""

    def __init__(self, own: LevelStats, other: LevelStats) -> None:
        super().__init__(own.name)
        self.num_forced = 0
        self._own = own
        self._other = other

    def count(self, drafted: int, accepted: int) -> None:
        forced, kept = min(drafted, self.num_forced), min(accepted, self.num_forced)
        self._own.count(forced, kept)
        self._other.count(drafted - forced, accepted - kept)
