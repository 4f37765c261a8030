"""The full cache: every row, keys after RoPE at absolute positions. Dropping rows moves the end.

It also remembers the last queries of every layer, since the sparse cache selects rows by them. A rewind so deep that
they were overwritten gives up some rows, so that what is remembered is always a function of the tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from triforce.attention import attend, rotate_and_store
from triforce.attention.rope import Rope, Rotation
from triforce.caches.base import CacheShape, Rows
from triforce.caches.memory import PlainMemory, Plane, RowLayout, RowMemory
from triforce.tokens import TokenIds, TokenLog

_SPARE_QUERIES = 128  # beyond those asked for, so that dropping a rejected draft gives up no rows


class FullCache:
    """Rows [layers, kv_heads, capacity, dim] in `memory`, by default plain tensors that grow past `capacity`.

    The queries of the last `num_queries` positions are at hand after every `sync`.
    """

    def __init__(
        self,
        shape: CacheShape,
        rope: Rope,
        *,
        capacity: int = 1024,
        num_queries: int = 128,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        memory: RowMemory | None = None,
    ) -> None:
        self.shape = shape
        self.rope = rope
        self.log = TokenLog()
        self._rotation = Rotation(rope)
        self.memory = memory or PlainMemory.empty(row_layout(shape, dtype), capacity, device)
        self.num_queries = num_queries
        ring = num_queries + _SPARE_QUERIES  # query of position p at p % ring
        self._queries = torch.zeros(
            shape.num_layers, ring, shape.num_heads, shape.head_dim, dtype=torch.float32, device=device
        )
        self._first_query = 0  # those of positions from here on are remembered
        self._mark: tuple[int, Tensor] | None = None  # a length, and the queries before it
        self._query_slots = torch.empty(0, dtype=torch.long)
        self._passing: Tensor | None = None  # queries of a pass that is being made by `rows`

    @property
    def length(self) -> int:
        return len(self.log)

    @property
    def planes(self) -> tuple[Tensor, ...]:
        """Keys, values and perhaps their scales, [layers, kv_heads, capacity, width] each; others once rows moved."""
        return self.memory.planes

    @property
    def keys(self) -> Tensor:
        """[layers, kv_heads, capacity, dim]."""
        return self.planes[0]

    @property
    def values(self) -> Tensor:
        """As `keys`."""
        return self.planes[1]

    @property
    def scales(self) -> tuple[Tensor, ...]:
        """Those of 8-bit keys and values, [layers, kv_heads, capacity, 1] float32 each; none of others."""
        return self.planes[2:]

    @property
    def key_scales(self) -> Tensor | None:
        """Those of 8-bit keys, [layers, kv_heads, capacity, 1] float32."""
        return next(iter(self.scales), None)

    def serves(self, rope: Rope, num_queries: int) -> bool:
        """Whether rows held here are right for a call with `rope` that remembers `num_queries` queries."""
        same = torch.equal(self.rope.inv_freq, rope.inv_freq) and self.rope.scale == rope.scale
        return same and self.num_queries >= num_queries

    def sync(self, tokens: TokenIds) -> int:
        kept = self.log.common_prefix(tokens)
        marked = self._mark[0] if self._mark else 0
        if kept < marked:
            self._mark, marked = None, 0
        first = max(kept - self.num_queries, 0)
        if first < self._first_query:  # they were overwritten
            kept = max(first, marked)
            self._first_query = kept  # the rows before are fed again for their queries, or the mark has these
            if self._mark and kept == marked:
                self._recall(self._mark[1])
        self.log.truncate(kept)
        return kept

    def mark(self) -> None:
        """Keep the queries before the present end, so that a rewind to it later, from however far, gives up no rows."""
        self._mark = self.length, self.queries(self.length, self.num_queries).clone()

    def missing(self, tokens: TokenIds) -> Iterable[range]:
        return [range(self.length, len(tokens))]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, wanted: int) -> Tensor:
        start, end = self.length, self.length + len(q)
        self._passing = None
        self._reserve(end)
        table = self._rotation.at(start, len(q), q.dtype, q.device)
        keys, values, *scales = (plane[layer, :, :end] for plane in self.planes)
        q = rotate_and_store(q, k, v, table, keys, values, start, scales)
        self._remember(slice(layer, layer + 1), start, q[None])
        return attend(q[len(q) - wanted :], keys, values, self.shape.sliding_window, None, scales)

    def rows(self, n: int, dtype: torch.dtype) -> Rows:
        self._reserve(self.length + n)
        self._passing = self._queries.new_empty(self.shape.num_layers, n, *self._queries.shape[2:])
        table = self._rotation.at(self.length, n, dtype, self.keys.device)
        return Rows(self.keys, self.values, self.length, table, self._passing, self.shape.sliding_window, self.scales)

    def advance(self, tokens: TokenIds) -> None:
        if self._passing is not None:
            self._remember(slice(None), self.length, self._passing)
            self._passing = None
        self.log.append(tokens)

    def queries(self, end: int, num: int) -> Tensor:
        """The rotated queries of the `num` positions before `end`: [layers, num, heads, dim] float32.

        Those from `num_queries` before the last `sync` on are right, unless more than 128 rows were fed since.
        """
        positions = torch.arange(max(end - num, 0), end, device=self._queries.device)
        return self._queries[:, positions % self._queries.shape[1]]

    def remembered(self, end: int) -> Tensor:
        """The queries of all positions before `end` that are at hand without gaps: [layers, n, heads, dim] float32."""
        return self.queries(end, max(end - self._first_query, 0))

    def restore(self, tokens: TokenIds, queries: Tensor) -> None:
        """Take the first rows in memory for those of `tokens`, with what `remembered` said when they were the last."""
        self.log = TokenLog()
        self.log.append(tokens)
        self._first_query = len(tokens)
        self._recall(queries[:, -self._queries.shape[1] :].to(self._queries.device))

    def fork(self) -> FullCache:
        """A cache of the same rows, which from here on go their own way; shared or copied, as the memory does it."""
        fork = FullCache(
            self.shape,
            self.rope,
            num_queries=self.num_queries,
            device=self.keys.device,
            memory=self.memory.fork(self.length),
        )
        fork.restore(self.log.ids, self.remembered(self.length))
        fork._mark = self._mark
        return fork

    def remember(self, num_queries: int) -> None:
        """Have the queries of that many positions at hand from the next `sync` on, if it is more than now."""
        if num_queries > self.num_queries:
            kept, more = self.remembered(self.length), num_queries - self.num_queries
            self.num_queries, self._mark = num_queries, None
            self._queries = torch.cat((self._queries, self._queries[:, :1].expand(-1, more, -1, -1)), 1)
            self.restore(self.log.ids, kept)

    def _recall(self, queries: Tensor) -> None:
        """Put back the `queries` [layers, n, heads, dim] before the position `_first_query`."""
        end, ring = self._first_query, self._queries.shape[1]
        self._first_query = end - queries.shape[1]
        slots = torch.arange(self._first_query, end, device=queries.device) % ring
        self._queries.index_copy_(1, slots, queries)

    def _remember(self, layers: slice, start: int, q: Tensor) -> None:
        """File the queries [layers, n, heads, dim] of positions from `start`."""
        ring, n = self._queries.shape[1], q.shape[1]
        kept = min(n, ring)
        if layers.start in (None, 0):
            self._first_query = max(self._first_query, start + n - ring)
            self._query_slots = torch.arange(start + n - kept, start + n, device=q.device) % ring
        self._queries[layers].index_copy_(1, self._query_slots, q[:, -kept:].float())

    def _reserve(self, rows: int) -> None:
        self.memory = self.memory.prepare(self.length, rows)


def row_layout(shape: CacheShape, dtype: torch.dtype) -> RowLayout:
    """The planes of a full cache: keys and values, and of 8-bit ones a scale for each row."""
    planes = [Plane("keys", shape.head_dim, dtype), Plane("values", shape.head_dim, dtype)]
    if dtype == torch.int8:
        planes += [Plane("key_scales", 1, torch.float32), Plane("value_scales", 1, torch.float32)]
    return RowLayout(shape.num_layers, shape.num_kv_heads, tuple(planes))
