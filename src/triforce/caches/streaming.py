"""The drafter's cache: the first rows (sinks) and a recent window (StreamingLLM, arXiv 2309.17453), at constant cost.

Keys are rotated by slot: rows of the window keep their distance to the query, and the sinks stay just behind the window
however far the text goes on, so a drafter trained on 2K tokens works at 128K. What a query sees depends on its position
alone, never on how passes were cut, so a row is a function of the tokens before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from triforce.attention.rope import Rope, rotate
from triforce.caches.base import CacheShape
from triforce.tokens import TokenIds, TokenLog

_SPARE = 256  # rows kept beyond the window, so that rejected drafts can be dropped and evictions are rare
_PASS = 128  # most rows fed at once


class StreamingCache:
    """`slots` rows seen by each query: `sinks` first ones and the most recent others, itself included."""

    def __init__(
        self,
        shape: CacheShape,
        rope: Rope,
        *,
        slots: int = 256,
        sinks: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        assert 0 <= sinks < slots, (sinks, slots)
        self.shape = shape
        self.rope = rope
        self._sinks = sinks
        self._window = slots - sinks
        self._log = TokenLog()
        self._start = sinks  # position of the first row of the window region, which lies at index `sinks`
        rows = (shape.num_layers, shape.num_kv_heads, slots + self._window + _SPARE + _PASS, shape.head_dim)
        self._keys = torch.empty(rows, dtype=dtype, device=device)
        self._values = torch.empty(rows, dtype=dtype, device=device)
        self._pass: _Pass | None = None

    @property
    def length(self) -> int:
        return len(self._log)

    def sync(self, tokens: TokenIds) -> int:
        kept = self._log.common_prefix(tokens)
        self._pass = None
        if self._start > self._sinks and kept - self._window + 1 < self._start:
            kept = 0  # rows that the next query must see are gone: begin anew
        if kept <= self._sinks:
            self._start = self._sinks
        self._log.truncate(kept)
        return kept

    def missing(self, tokens: TokenIds) -> Iterable[range]:
        """The gap, or, where it is far longer than the window, the sinks and then the last two windows.

        A long prompt is not read whole by a drafter that can see only a window of it.
        """
        end = len(tokens)
        resume = end - 2 * self._window
        if resume - self.length > 4 * (self._sinks + self._window):
            yield from _cut(range(self.length, self._sinks))
            self._log.append(tokens[self.length : resume])
            self._start = resume
        yield from _cut(range(self.length, end))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, wanted: int) -> Tensor:
        now = self._prepare(q)
        keys, values = self._keys[layer], self._values[layer]  # [kv_heads, rows, dim]
        keys[:, now.new] = rotate(k, now.table).transpose(0, 1).to(keys.dtype)
        values[:, now.new] = v.transpose(0, 1).to(values.dtype)
        if not wanted:
            return q[:0]
        now, q = now.last(wanted), q[len(q) - wanted :]
        return _attend(rotate(q, now.sink_table), rotate(q, now.table), keys.to(q.dtype), values.to(q.dtype), now)

    def rows(self, n: int, dtype: torch.dtype) -> None:
        """None: queries meet the sinks and the window at two rotations, which only `attend` knows."""

    def advance(self, tokens: TokenIds) -> None:
        self._log.append(tokens)
        self._pass = None

    def _prepare(self, q: Tensor) -> _Pass:
        """What all layers of one pass share: made by the first, dropped by `advance`."""
        if self._pass is None:
            begin, end = self.length, self.length + len(q)
            if self._index(end) > self._keys.shape[2]:
                self._evict()
            oldest = min(max(begin - self._window + 1, self._start), end)  # end: sinks alone so far
            self._pass = _Pass(
                new=slice(self._index(begin), self._index(end)),
                sinks=slice(0, min(self._sinks, end)),
                window=slice(self._index(oldest), self._index(end)),
                table=self.rope.table(torch.arange(begin, end), q.dtype, q.device),
                sink_table=self._sink_table(begin, end, q),
                mask=self._mask(begin, end, oldest).to(q.device, q.dtype),
            )
        return self._pass

    def _sink_table(self, begin: int, end: int, like: Tensor) -> tuple[Tensor, Tensor]:
        slots = torch.arange(begin, end).clamp(max=self._sinks + self._window - 1)
        return self.rope.table(slots, like.dtype, like.device)

    def _mask(self, begin: int, end: int, oldest: int) -> Tensor:
        """[n, sinks + window rows]: 0 where a query may look, -inf elsewhere."""
        query = torch.arange(begin, end)[:, None]
        sink, row = torch.arange(min(self._sinks, end)), torch.arange(oldest, end)
        visible = torch.cat((sink <= query, (row <= query) & (row > query - self._window)), -1)
        return torch.zeros(visible.shape).masked_fill_(~visible, float("-inf"))

    def _index(self, position: int) -> int:
        """Where the row of `position` lies in the buffer."""
        return position if position < self._sinks else self._sinks + position - self._start

    def _evict(self) -> None:
        """Move what the next queries see, and some rows before it for rejected drafts, to the front."""
        start = self.length - self._window - _SPARE // 2
        old, n = self._index(start), self.length - start
        for rows in (self._keys, self._values):
            rows[:, :, self._sinks : self._sinks + n] = rows[:, :, old : old + n].clone()
        self._start = start


@dataclass(frozen=True)
class _Pass:
    new: slice
    sinks: slice
    window: slice
    table: tuple[Tensor, Tensor]
    sink_table: tuple[Tensor, Tensor]
    mask: Tensor  # [n, sinks + window]

    def last(self, n: int) -> _Pass:
        """The same for the queries of the last `n` rows."""
        if n == len(self.mask):
            return self
        own = slice(len(self.mask) - n, None)
        (cos, sin), (sink_cos, sink_sin) = self.table, self.sink_table
        return replace(self, table=(cos[own], sin[own]), sink_table=(sink_cos[own], sink_sin[own]), mask=self.mask[own])


def _attend(q_sinks: Tensor, q: Tensor, keys: Tensor, values: Tensor, now: _Pass) -> Tensor:
    """Attention of `q` [n, heads, dim] over two blocks of rows, each met by the query at its own rotation."""
    n, heads, dim = q.shape
    kv_heads = keys.shape[0]
    num_sinks = now.sinks.stop

    def grouped(x: Tensor) -> Tensor:
        return x.view(n, kv_heads, -1, dim).permute(1, 2, 0, 3).reshape(kv_heads, -1, dim)  # [kv_heads, group * n, dim]

    scores = torch.cat(
        (
            grouped(q_sinks) @ keys[:, now.sinks].transpose(1, 2),
            grouped(q) @ keys[:, now.window].transpose(1, 2),
        ),
        -1,
    )
    scores = scores.view(kv_heads, -1, n, now.mask.shape[1]) * dim**-0.5 + now.mask
    weights = scores.softmax(-1).view(kv_heads, -1, now.mask.shape[1])
    out = weights[..., :num_sinks] @ values[:, now.sinks] + weights[..., num_sinks:] @ values[:, now.window]
    mixed: Tensor = out.view(kv_heads, heads // kv_heads, n, dim).permute(2, 0, 1, 3)
    return mixed.reshape(n, heads, dim)


def _cut(positions: range) -> Iterable[range]:
    for start in range(positions.start, positions.stop, _PASS):
        yield range(start, min(start + _PASS, positions.stop))
