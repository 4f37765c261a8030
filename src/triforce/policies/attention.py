"""Retrieval by true attention: a chunk scores the attention mass that recent queries give its rows.

Reads every key, unlike retrieval by means; the idea of PillarAttn (SparseSpec) and Vegas, pooled over chunks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from triforce.attention.chunks import group_queries
from triforce.policies.base import Candidates


class Attention:
    """Attention mass of a chunk's rows, summed over recent queries and the query heads of a KV head."""

    def score(self, queries: Tensor, candidates: Candidates) -> Tensor:
        return torch.stack([_score(q, candidates.keys(layer)) for layer, q in enumerate(queries)])


def _score(queries: Tensor, chunks: Tensor) -> Tensor:
    kv_heads, num_chunks, chunk, dim = chunks.shape
    keys = chunks.reshape(kv_heads, num_chunks * chunk, dim).to(queries.dtype)
    mass = torch.softmax(group_queries(queries, kv_heads) @ keys.mT * dim**-0.5, -1).sum(1)
    return mass.view(kv_heads, num_chunks, chunk).sum(-1)
