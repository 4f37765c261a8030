"""A full cache of random rows: as costly to read as a real one of that length, and there at once.

No prompt is read: keys, values and the remembered queries are standard normal numbers, and the log of tokens says that
they belong to the given ids. What is measured over it is time; its logits mean nothing.
"""

from __future__ import annotations

from triforce.caches.full import FullCache, row_layout
from triforce.caches.memory import PlainMemory
from triforce.caches.sparse import NUM_QUERIES
from triforce.config import Decoding
from triforce.models.decoder import Decoder
from triforce.models.rope_scaling import build_rope
from triforce.tokens import TokenIds

import torch
from torch import Tensor

SPARE_ROWS = 128  # for rows fed past the given ones


def random_rows(model: Decoder, length: int, dtype: torch.dtype = torch.float16) -> tuple[Tensor, Tensor]:
    """Keys and values [layers, kv_heads, length + spare, dim] of standard normal numbers."""
    config = model.config
    shape = (config.num_layers, config.num_kv_heads, length + SPARE_ROWS, config.head_dim)
    block = torch.randn(1 << 20).to(dtype)  # repeated: 1.5 billion draws would take half a minute

    def filled() -> Tensor:
        rows = torch.empty(shape, dtype=dtype)
        for part in torch.split(rows.view(-1), len(block) - 1):  # an odd period, so that rows do not repeat as such
            part.copy_(block[: len(part)])
        return rows

    return filled(), filled()


def synthetic_cache(model: Decoder, tokens: TokenIds, rows: tuple[Tensor, Tensor]) -> FullCache:
    """A full cache that holds `rows` for `tokens`; several caches may share the same rows."""
    num_queries = NUM_QUERIES + Decoding.stride
    memory = PlainMemory(row_layout(model.cache_shape, rows[0].dtype), rows)
    cache = FullCache(model.cache_shape, build_rope(model.config), num_queries=num_queries, memory=memory)
    assert len(tokens) + SPARE_ROWS <= cache.keys.shape[2], (len(tokens), cache.keys.shape)
    cache._queries.normal_()
    cache.log.append(tokens)
    return cache
