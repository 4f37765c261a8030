"""Chunks of rows: their mean keys, how much queries want each, the chosen ones side by side; native where it serves."""

from __future__ import annotations

import torch
from torch import Tensor

from triforce.attention.int8 import dequantise, quantise
from triforce.native import kernels, serves_means, serves_scores

_CHUNKS_AT_ONCE = 64  # chunks at a time: their keys are widened


def store_means(keys: Tensor, key_scales: Tensor | None, chunk: int, begin: int, out: tuple[Tensor, Tensor]) -> None:
    """Fill `out` with the mean keys of chunks of `chunk` rows, from number `begin` to the end of `out`.

    `keys` [layers, kv_heads, rows, dim], 8-bit ones with `key_scales` [layers, kv_heads, rows, 1]; `out` are int8 means
    [layers, kv_heads, chunks, dim] and their scales [layers, kv_heads, chunks, 1].
    """
    native = kernels()
    if native and serves_means(keys):
        return native.mean_chunks(keys, key_scales, chunk, begin, out)
    for first in range(begin, out[0].shape[2], _CHUNKS_AT_ONCE):
        last = min(first + _CHUNKS_AT_ONCE, out[0].shape[2])
        rows = split(keys, key_scales, chunk, first, last)
        for plane, values in zip(out, quantise(rows.mean(3, dtype=torch.float32)), strict=True):
            plane[:, :, first:last] = values
    return None


def split(keys: Tensor, key_scales: Tensor | None, chunk: int, begin: int, end: int) -> Tensor:
    """The keys of chunks `begin` to `end` as numbers [layers, kv_heads, chunks, chunk, dim].

    `keys` [layers, kv_heads, rows, dim], 8-bit ones with `key_scales` [layers, kv_heads, rows, 1].
    """
    own = slice(begin * chunk, end * chunk)
    rows = keys[:, :, own] if key_scales is None else dequantise(keys[:, :, own], key_scales[:, :, own])
    return rows.view(*keys.shape[:2], end - begin, chunk, keys.shape[3])


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
