"""How the sparse cache chooses its chunks. Knows nothing of caches: it scores what it is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Candidates:
    """The chunks to choose from.

    `means` [layers, kv_heads, chunks, dim] int8 and `scales` [layers, kv_heads, chunks, 1] are their mean keys, kept by
    the cache and not computed anew; `keys` gives all keys of a layer, rotated, [kv_heads, chunks, rows, dim].
    """

    means: Tensor
    scales: Tensor
    keys: Callable[[int], Tensor]


class Policy(Protocol):
    """Scores chunks of rows; the sparse cache keeps the best ones besides its sinks and its recent window."""

    def score(self, queries: Tensor, candidates: Candidates) -> Tensor:
        """Scores [layers, kv_heads, chunks], higher is kept, under recent rotated `queries` [layers, n, heads, dim]."""
        ...
