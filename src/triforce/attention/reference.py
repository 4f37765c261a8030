"""Attention over stored rows with PyTorch's own kernel: runs anywhere; other backends are tested against it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from triforce.attention.int8 import dequantise, quantise
from triforce.attention.rope import rotate

_GROUPED_ROWS = 64  # up to here a KV head's query heads are rows of one product, so its keys are read once


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    window: int | None = None,
    ancestors: Tensor | None = None,
    scales: Sequence[Tensor] = (),
) -> Tensor:
    """Causal attention of the last n rows over all rows.

    `q` [n, heads, dim]; `keys` and `values` [kv_heads, rows, dim], whose last n rows belong to the queries. A query
    sees itself and all rows before it, or only the last `window` rows, itself included. `ancestors` [n, n] bool says
    instead which of the new rows each new row sees, itself included, as in a tree; the window goes by rows even so.
    `scales` are those of 8-bit keys and values, [kv_heads, rows, 1] float32 each.
    Returns [n, heads, dim].
    """
    n, heads, dim = q.shape
    kv_heads, rows, _ = keys.shape
    if scales:
        keys, values = dequantise(keys, scales[0], q.dtype), dequantise(values, scales[1], q.dtype)
    elif keys.device.type == "cpu":  # where PyTorch is far faster in float32 than in 16 bits, conversion included
        keys, values = keys.to(q.dtype), values.to(q.dtype)
    group = heads // kv_heads
    grouped = q.to(keys.dtype).view(n, kv_heads, group, dim).permute(1, 2, 0, 3)  # [kv_heads, group, n, dim]
    plain = ancestors is None and (window is None or rows <= window)
    if n <= _GROUPED_ROWS:
        mask = None if n == 1 and plain else _mask(n, rows, group, window, ancestors, keys.dtype, keys.device)
        out = F.scaled_dot_product_attention(
            grouped.reshape(1, kv_heads, group * n, dim), keys[None], values[None], attn_mask=mask
        ).view(kv_heads, group, n, dim)
    else:
        keys, values = keys[:, None].expand(-1, group, -1, -1), values[:, None].expand(-1, group, -1, -1)
        causal = n == rows and plain
        mask = None if causal else _mask(n, rows, 1, window, ancestors, torch.bool, keys.device)
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask, is_causal=causal)
    return out.permute(2, 0, 1, 3).reshape(n, heads, dim).to(q.dtype)


def rotate_and_store(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: tuple[Tensor, Tensor],
    keys: Tensor,
    values: Tensor,
    row: int,
    scales: Sequence[Tensor] = (),
) -> Tensor:
    """Rotate `q` [n, heads, dim] and `k` [n, kv_heads, dim] by `table`; returns the rotated queries.

    Rotated keys and `v` [n, kv_heads, dim] become the rows from `row` on of `keys` and `values` [kv_heads, rows, dim];
    those of 8 bits come with `scales`, [kv_heads, rows, 1] float32 each.
    """
    new = slice(row, row + len(k))
    for rows, x, scale in zip((keys, values), (rotate(k, table), v), scales or (None, None), strict=True):
        if scale is None:
            rows[:, new] = x.transpose(0, 1)
        else:
            rows[:, new], scale[:, new] = quantise(x.transpose(0, 1))
    return rotate(q, table)


def _mask(
    n: int,
    rows: int,
    group: int,
    window: int | None,
    ancestors: Tensor | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """[group * n, rows]: true (or 0) where a query may look, false (or -inf) elsewhere."""
    if ancestors is None:
        return _causal_mask(n, rows, group, window, dtype, device)
    return _as_mask(_seen(n, rows, window, ancestors, device), group, dtype)


@lru_cache(maxsize=2)  # the layers of a pass ask for the same one
def _causal_mask(n: int, rows: int, group: int, window: int | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    return _as_mask(_seen(n, rows, window, None, device), group, dtype)


def _seen(n: int, rows: int, window: int | None, ancestors: Tensor | None, device: torch.device) -> Tensor:
    """[n, rows] bool: whether a query sees a row."""
    query = torch.arange(rows - n, rows, device=device)[:, None]
    row = torch.arange(rows, device=device)
    seen = row <= query
    if ancestors is not None:
        seen[:, rows - n :] = ancestors
    if window is not None:
        seen &= row > query - window
    return seen


def _as_mask(seen: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    seen = seen.repeat(group, 1)
    if dtype == torch.bool:
        return seen
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))
