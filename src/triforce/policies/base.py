"""How the sparse cache chooses its chunks. Knows nothing of caches: it scores what it is shown."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Policy(Protocol):
    """Scores chunks of rows; the sparse cache keeps the best ones besides its sinks and its recent window."""

    def score(self, queries: Tensor, chunks: Tensor, means: Tensor) -> Tensor:
        """Scores [kv_heads, num_chunks], higher is kept.

        `queries` [n, heads, dim] are recent ones, rotated; `chunks` [kv_heads, num_chunks, chunk, dim] all candidate
        keys, rotated; `means` [kv_heads, num_chunks, dim] their means, kept by the cache and not computed anew.
        """
        ...


def group_queries(queries: Tensor, kv_heads: int) -> Tensor:
    """[n, heads, dim] to [kv_heads, group * n, dim]: the queries that share each KV head."""
    n, _, dim = queries.shape
    return queries.reshape(n, kv_heads, -1, dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, dim)
