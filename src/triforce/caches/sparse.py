"""The sparse cache: a few rows of the full one, chosen by a policy, and everything recent (TriForce, section 4.1).

It never keeps what it computed itself: as soon as the full cache holds a row for a token, that row is taken. Which rows
are selected depends on the committed tokens alone: selection is renewed at multiples of `stride`, never while drafting.
Generated rows are selectable like the prompt's, so output length has no limit.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from triforce.attention import attend, rotate_and_store
from triforce.attention.rope import Rotation
from triforce.caches.base import Rows
from triforce.caches.full import FullCache
from triforce.policies.base import Policy
from triforce.tokens import TokenIds, TokenLog

NUM_QUERIES = 8  # recent queries that a selection is made by
_DRAFTED_ROWS = 256  # room for rows past the committed ones, before the cache must grow


class SparseCache:
    """`budget` rows of `source` per KV head: `sinks`, chosen chunks of `chunk` rows, `recent` last ones.

    A model's sliding window is not applied here: a drafter may see what the target cannot, and only drafts worse.
    Layout: chosen rows first (of any position, their keys rotated as in `source`), then the tail, whose positions are
    consecutive up to `length`. Rows of the tail below `_exact` are copies of the full cache's.
    """

    def __init__(
        self,
        source: FullCache,
        policy: Policy,
        *,
        budget: int,
        chunk: int = 8,
        sinks: int = 16,
        recent: int = 64,
        stride: int = 32,
    ) -> None:
        assert source.num_queries >= NUM_QUERIES + stride, (source.num_queries, stride)
        self._source, self._policy = source, policy
        self._budget, self._chunk, self._stride, self._recent = budget, chunk, stride, recent
        self._sink_chunks = -(-sinks // chunk)
        self._rotation = Rotation(source.rope)
        self._log = TokenLog()
        self._exact = 0
        self._selected_at = 0  # committed length that the selection was made for
        self._tail_start = 0
        self._num_chosen = 0  # rows before the tail
        layers, heads, _, dim = source.keys.shape
        self._means = source.keys.new_empty(layers, heads, 0, dim)
        capacity = min(budget + stride, source.keys.shape[2]) + _DRAFTED_ROWS
        self._keys = source.keys.new_empty(layers, heads, capacity, dim)
        self._values = torch.empty_like(self._keys)

    @property
    def length(self) -> int:
        return len(self._log)

    @property
    def num_rows(self) -> int:
        """Rows held per layer and KV head."""
        return self._num_chosen + self.length - self._tail_start

    def sync(self, tokens: TokenIds) -> int:
        exact = self._source.log.common_prefix(tokens)
        own = self._log.common_prefix(tokens)
        if exact != self._exact:
            own = min(own, exact)  # drafted rows followed other copies, perhaps another selection
        stale = min(self._exact, own)  # rows below it are copies already
        self._log.truncate(own)
        if exact > own:
            self._log.append(tokens[own:exact])
        self._exact = exact
        renewal = exact // self._stride * self._stride
        self._means = self._means[:, :, : own // self._chunk]  # those of rows that were replaced are not kept
        if renewal != self._selected_at or own < renewal:
            self._select(renewal)
            stale = self._tail_start
        self._copy_tail(max(stale, self._tail_start), exact)
        return self.length

    def missing(self, tokens: TokenIds) -> Iterable[range]:
        return [range(self.length, len(tokens))]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        begin = self.num_rows
        end = begin + len(q)
        self._reserve(end)
        table = self._rotation.at(self.length, len(q), q.dtype, q.device)
        q = rotate_and_store(q, k, v, table, self._keys[layer], self._values[layer], begin)
        return attend(q, self._keys[layer, :, :end], self._values[layer, :, :end])

    def rows(self, n: int, dtype: torch.dtype) -> Rows:
        self._reserve(self.num_rows + n)
        table = self._rotation.at(self.length, n, dtype, self._keys.device)
        shape = self._source.shape
        queries = self._keys.new_empty(shape.num_layers, n, shape.num_heads, shape.head_dim, dtype=dtype)
        return Rows(self._keys, self._values, self.num_rows, table, queries)

    def advance(self, tokens: TokenIds) -> None:
        self._log.append(tokens)

    def _select(self, at: int) -> None:
        """Choose anew for the first `at` committed tokens: sinks, the best chunks, and a tail from there on."""
        self._selected_at = at
        chosen_chunks = (self._budget - self._recent + 1) // self._chunk - 1  # the tail has up to chunk - 1 rows more
        num_chunks = max(at - self._recent, 0) // self._chunk  # candidates, sinks included
        if num_chunks <= chosen_chunks:
            self._tail_start = self._num_chosen = 0  # everything fits
            return
        self._tail_start = num_chunks * self._chunk
        self._num_chosen = chosen_chunks * self._chunk
        self._reserve(self._num_chosen)
        chunks = self._best_chunks(num_chunks, chosen_chunks, at)  # [layers, kv_heads, chosen_chunks]
        for ours, theirs in ((self._keys, self._source.keys), (self._values, self._source.values)):
            whole = theirs[:, :, : num_chunks * self._chunk].view(*theirs.shape[:2], num_chunks, self._chunk, -1)
            for layer in range(len(ours)):
                for head in range(ours.shape[1]):
                    kept = ours[layer, head, : self._num_chosen].view(chosen_chunks, self._chunk, -1)
                    torch.index_select(whole[layer, head], 0, chunks[layer, head], out=kept)

    def _best_chunks(self, num_chunks: int, chosen: int, at: int) -> Tensor:
        self._extend_means(num_chunks)
        queries = self._source.queries(at, NUM_QUERIES)
        scores = []
        for layer, keys in enumerate(self._source.keys):
            chunks = keys[:, : num_chunks * self._chunk].view(len(keys), num_chunks, self._chunk, -1)
            scores.append(self._policy.score(queries[layer], chunks, self._means[layer, :, :num_chunks]))
        ranked = torch.stack(scores)
        ranked[..., : self._sink_chunks] = float("inf")
        return ranked.topk(chosen, -1).indices.sort(-1).values

    def _extend_means(self, num_chunks: int) -> None:
        """Chunk means are kept: only new chunks are averaged."""
        known = self._means.shape[2]
        if num_chunks > known:
            rows = self._source.keys[:, :, known * self._chunk : num_chunks * self._chunk]
            means = rows.view(*rows.shape[:2], num_chunks - known, self._chunk, -1).mean(3)
            self._means = torch.cat((self._means, means), 2)

    def _copy_tail(self, begin: int, end: int) -> None:
        if end > begin:
            first = self._num_chosen - self._tail_start
            self._reserve(first + end)
            self._keys[:, :, first + begin : first + end] = self._source.keys[:, :, begin:end]
            self._values[:, :, first + begin : first + end] = self._source.values[:, :, begin:end]

    def _reserve(self, rows: int) -> None:
        if rows > self._keys.shape[2]:
            spare = self._keys.new_empty(*self._keys.shape[:2], rows, self._keys.shape[3])
            self._keys = torch.cat((self._keys, spare), 2)
            self._values = torch.cat((self._values, torch.empty_like(spare)), 2)
