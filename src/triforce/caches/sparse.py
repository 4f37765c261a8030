"""The sparse cache: a few rows of the full one, chosen by a policy, and everything recent (TriForce, section 4.1).

It never keeps what it computed itself: as soon as the full cache holds a row for a token, that row is taken. Which rows
are selected depends on the committed tokens alone: selection is renewed at multiples of `stride`, never while drafting.
Generated rows are selectable like the prompt's, so output length has no limit.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from triforce.attention import attend, chunks, rotate_and_store
from triforce.attention.rope import Rotation
from triforce.caches.base import Rows
from triforce.caches.full import FullCache
from triforce.caches.memory import grown
from triforce.config import Decoding
from triforce.policies import create_policy
from triforce.policies.base import Candidates
from triforce.tokens import TokenIds, TokenLog

NUM_QUERIES = 8  # recent queries that a selection is made by
_SPARE_ROWS = 16  # room for rows past the committed ones, before the cache must grow
_SPARE_CHUNKS = 64  # room for the means of chunks to come


class SparseCache:
    """`decoding.budget` rows of `source` per KV head: sinks, chunks of rows that the policy chose, and the last ones.

    A model's sliding window is not applied here: a drafter may see what the target cannot, and only drafts worse.
    Layout: chosen rows first (of any position, their keys rotated as in `source`), then the tail, whose positions are
    consecutive up to `length`. Rows of the tail below `_exact` are copies of the full cache's.
    """

    def __init__(self, source: FullCache, decoding: Decoding) -> None:
        budget, stride = decoding.budget, decoding.stride
        assert source.num_queries >= NUM_QUERIES + stride, (source.num_queries, stride)
        self._source, self._policy = source, create_policy(decoding.policy)
        self._budget, self._chunk, self._stride, self._recent = budget, decoding.chunk, stride, decoding.recent
        self._sink_chunks = -(-decoding.sinks // decoding.chunk)
        self._rotation = Rotation(source.rope)
        self._log = TokenLog()
        self._exact = 0
        self._selected_at = 0  # committed length that the selection was made for
        self._tail_start = 0
        self._num_chosen = 0  # rows before the tail
        layers, heads, rows, dim = source.keys.shape
        device = source.keys.device
        self._means: tuple[Tensor, ...] = (  # in 8 bits, with their scales
            torch.empty(layers, heads, 0, dim, dtype=torch.int8, device=device),
            torch.empty(layers, heads, 0, 1, dtype=torch.float32, device=device),
        )
        self._num_means = 0
        capacity = min(budget + stride, rows) + _SPARE_ROWS
        self._planes = tuple(plane.new_empty(layers, heads, capacity, plane.shape[3]) for plane in source.planes)

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
        self._num_means = min(self._num_means, own // self._chunk)  # those of rows that were replaced are not kept
        if renewal != self._selected_at or own < renewal:
            self._select(renewal)
            stale = self._tail_start
        self._copy_tail(max(stale, self._tail_start), exact)
        return self.length

    def missing(self, tokens: TokenIds) -> Iterable[range]:
        return [range(self.length, len(tokens))]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, wanted: int) -> Tensor:
        begin = self.num_rows
        end = begin + len(q)
        self._reserve(end)
        table = self._rotation.at(self.length, len(q), q.dtype, q.device)
        keys, values, *scales = (plane[layer, :, :end] for plane in self._planes)
        q = rotate_and_store(q, k, v, table, keys, values, begin, scales)
        return attend(q[len(q) - wanted :], keys, values, scales=scales)

    def rows(self, n: int, dtype: torch.dtype) -> Rows:
        self._reserve(self.num_rows + n)
        keys, values, *scales = self._planes
        table = self._rotation.at(self.length, n, dtype, keys.device)
        shape = self._source.shape
        queries = keys.new_empty(shape.num_layers, n, shape.num_heads, shape.head_dim, dtype=dtype)
        return Rows(keys, values, self.num_rows, table, queries, None, scales)

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
        best = self._best_chunks(num_chunks, chosen_chunks, at)  # [layers, kv_heads, chosen_chunks]
        for ours, theirs in zip(self._planes, self._source.planes, strict=True):
            chunks.gather(theirs, best, self._chunk, ours)

    def _best_chunks(self, num_chunks: int, chosen: int, at: int) -> Tensor:
        self._extend_means(num_chunks)
        keys, scales = self._source.keys, self._source.key_scales

        def chunks_of(layer: int) -> Tensor:
            own = slice(layer, layer + 1)
            return chunks.split(keys[own], None if scales is None else scales[own], self._chunk, 0, num_chunks)[0]

        candidates = Candidates(*self._first_means(num_chunks), chunks_of)
        scores = self._policy.score(self._source.queries(at, NUM_QUERIES), candidates)
        scores[..., : self._sink_chunks] = float("inf")
        return scores.topk(chosen, -1).indices.sort(-1).values

    def _extend_means(self, num_chunks: int) -> None:
        """Chunk means are kept: only new chunks are averaged."""
        if num_chunks > self._means[0].shape[2]:
            self._means = tuple(grown(plane, num_chunks + _SPARE_CHUNKS, self._num_means) for plane in self._means)
        if num_chunks > self._num_means:
            means = self._first_means(num_chunks)
            chunks.store_means(self._source.keys, self._source.key_scales, self._chunk, self._num_means, means)
            self._num_means = num_chunks

    def _first_means(self, num_chunks: int) -> tuple[Tensor, Tensor]:
        """Those of the first chunks, and their scales: views."""
        means, scales = self._means
        return means[:, :, :num_chunks], scales[:, :, :num_chunks]

    def _copy_tail(self, begin: int, end: int) -> None:
        if end > begin:
            first = self._num_chosen - self._tail_start
            self._reserve(first + end)
            for ours, theirs in zip(self._planes, self._source.planes, strict=True):
                ours[:, :, first + begin : first + end] = theirs[:, :, begin:end]

    def _reserve(self, rows: int) -> None:
        if rows > self._planes[0].shape[2]:
            self._planes = tuple(grown(plane, rows + _SPARE_ROWS, plane.shape[2]) for plane in self._planes)
