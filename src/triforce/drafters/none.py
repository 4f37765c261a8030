"""No drafter: with it, `step` is plain autoregressive decoding."""

from __future__ import annotations

from triforce.sampling import Sampler
from triforce.speculative import Draft
from triforce.statistics import LevelStats
from triforce.tokens import TokenIds


class NoDrafter:
    """Proposes nothing."""

    def __init__(self) -> None:
        self.stats = LevelStats("none")

    def propose(self, tokens: TokenIds, depth: int, sampler: Sampler) -> Draft | None:
        del tokens, depth, sampler
        return None
