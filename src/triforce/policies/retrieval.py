"""Retrieval by chunk means: a chunk scores as its mean key does under recent queries (TriForce, section 4.1)."""

from __future__ import annotations

from torch import Tensor

from triforce.attention import chunks
from triforce.policies.base import Candidates


class Retrieval:
    """Attention over the chunks' mean keys, summed over recent queries and the query heads of a KV head."""

    def score(self, queries: Tensor, candidates: Candidates) -> Tensor:
        return chunks.score(queries, candidates.means, candidates.scales)
