"""Chunks of rows: how much queries want each, and the chosen ones side by side; native where that serves."""

from __future__ import annotations

import torch
from torch import Tensor

from triforce.attention.int8 import dequantise
from triforce.native import kernels, serves_scores


def score(queries: Tensor, means: Tensor, scales: Tensor) -> Tensor:
    """Attention over chunks' mean keys, summed over the queries and query heads of a KV head.

    `queries` [layers, n, heads, dim], rotated; `means` [layers, kv_heads, chunks, dim] int8 with `scales`
    [layers, kv_heads, chunks, 1]. Returns [layers, kv_heads, chunks].
    """
    native = kernels()
    if native and serves_scores(queries, means):
        return native.score_chunks(queries, means, scales)
    weights = group_queries(queries, means.shape[1]) @ dequantise(means, scales, queries.dtype).mT
    return torch.softmax(weights * means.shape[-1] ** -0.5, -1).sum(2)


def gather(source: Tensor, chunks: Tensor, chunk: int, out: Tensor) -> None:
    """Copy chunks of `chunk` rows of `source`, by number [layers, kv_heads, count], to the first rows of `out`.

    `source` and `out` are [layers, kv_heads, rows, width].
    """
    native = kernels()
    if native and source.device.type == "cpu":
        return native.gather_chunks(source, chunks, chunk, out)
    rows = (chunks[..., None] * chunk + torch.arange(chunk, device=chunks.device)).flatten(2)
    out[:, :, : rows.shape[2]] = source.gather(2, rows[..., None].expand(-1, -1, -1, source.shape[3]))
    return None


def group_queries(queries: Tensor, kv_heads: int) -> Tensor:
    """[..., n, heads, dim] to [..., kv_heads, n * group, dim]: the queries that share each KV head."""
    *layers, n, _, dim = queries.shape
    return queries.reshape(*layers, n, kv_heads, -1, dim).transpose(-4, -3).flatten(-3, -2)
