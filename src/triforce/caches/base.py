"""What every cache of keys and values offers to a model and a runner. Knows nothing of models or of sampling."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from triforce.tokens import TokenIds


class Cache(Protocol):
    """Rows (keys and values of one sequence, all layers) that attend to themselves.

    One pass is: `sync`, then for each range of `missing` a forward in which every layer calls `attend` once, closed by
    `advance`. A cache never needs to be told what was accepted: `sync` drops whatever is not a prefix of the tokens.
    """

    @property
    def length(self) -> int:
        """Rows held; the next row attended gets this position."""
        ...

    def sync(self, tokens: TokenIds) -> int:
        """Keep the rows of the longest held prefix of `tokens`, drop all others; returns the new `length`."""
        ...

    def missing(self, tokens: TokenIds) -> Iterable[range]:
        """The positions of `tokens` to feed, in order, to hold them all; mostly one range from `length`."""
        ...

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, wanted: int) -> Tensor:
        """Store the new rows of `layer`; the last `wanted` of them, perhaps none, attend causally.

        `q` [n, heads, dim], `k` and `v` [n, kv_heads, dim], all unrotated: the cache applies RoPE its own way.
        Returns [wanted, heads, dim] in the dtype of `q`.
        """
        ...

    def rows(self, n: int, dtype: torch.dtype) -> Rows | None:
        """Where the next `n` rows go, for queries in `dtype`; None where they can only be attended by `attend`."""
        ...

    def advance(self, tokens: TokenIds) -> None:
        """Close a pass: the rows just attended in every layer belong to `tokens` [n]."""
        ...


@dataclass(frozen=True)
class Rows:
    """Where the next rows of a cache go, for a pass that does not call `attend` layer by layer.

    `keys` and `values` [layers, kv_heads, capacity, dim]: new rows follow the `row` rows that are seen, rotated by
    `table`, and the pass leaves its rotated queries in `queries` [layers, n, heads, dim]. `scales` are those of
    8-bit keys and values, [layers, kv_heads, capacity, 1] each.
    """

    keys: Tensor
    values: Tensor
    row: int
    table: tuple[Tensor, Tensor]
    queries: Tensor
    window: int | None = None
    scales: Sequence[Tensor] = ()


@dataclass(frozen=True)
class Segment:
    """One sequence's share of a ragged batch: its cache and how many of the batch's tokens are its own.

    Hidden states are wanted of the last `wanted` of these.
    """

    cache: Cache
    num_tokens: int
    wanted: int

    def __post_init__(self) -> None:
        assert 0 <= self.wanted <= self.num_tokens, self


@dataclass(frozen=True)
class CacheShape:
    """What a cache must know of the model it serves."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None = None  # positions a query sees back, itself included; None: all
