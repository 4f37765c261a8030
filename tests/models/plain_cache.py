"""The simplest cache that a decoder can be tested with: rows in a list, attention by definition."""

from __future__ import annotations

import torch
from torch import Tensor

from triforce.attention.rope import Rope, rotate
from triforce.caches.base import Segment
from triforce.models.decoder import Decoder
from triforce.models.rope_scaling import build_rope


class PlainCache:
    """Keeps every row; attends in float32 to those that the sliding window allows."""

    def __init__(self, decoder: Decoder, rope: Rope) -> None:
        self._shape = decoder.cache_shape
        self._rope = rope
        self._rows: list[tuple[Tensor, Tensor]] = []

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, wanted: int) -> Tensor:
        if layer == len(self._rows):
            self._rows.append((k[:0], v[:0]))
        start = len(self._rows[layer][0])
        positions = torch.arange(start, start + len(q))
        table = self._rope.table(positions, torch.float32, torch.device("cpu"))
        keys = torch.cat((self._rows[layer][0], rotate(k.float(), table)))
        values = torch.cat((self._rows[layer][1], v.float()))
        self._rows[layer] = keys, values
        group = self._shape.num_heads // self._shape.num_kv_heads
        scores = torch.einsum("qhd,khd->hqk", rotate(q.float(), table), keys.repeat_interleave(group, 1))
        distance = positions[:, None] - torch.arange(len(keys))
        window = self._shape.sliding_window or len(keys)
        scores.masked_fill_((distance < 0) | (distance >= window), -torch.inf)
        weights = (scores / self._shape.head_dim**0.5).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(group, 1)).to(q.dtype)
        return attended[len(q) - wanted :]

    def rows(self, n: int, dtype: torch.dtype) -> None:
        """Rows in a list have no place of their own."""


def plain_cache(decoder: Decoder, context_length: int | None = None) -> PlainCache:
    return PlainCache(decoder, build_rope(decoder.config, context_length))


def logits_of(decoder: Decoder, tokens: list[int], context_length: int | None = None) -> Tensor:
    """Logits [len(tokens), vocab] of one sequence in one pass."""
    segment = Segment(plain_cache(decoder, context_length), len(tokens), len(tokens))
    return decoder.logits(decoder(torch.tensor(tokens), [segment]))
