"""What the native kernels take: which tensors they serve, and checks that keep all others from them.

C checks nothing: what neither this nor `Kernels` nor `triforce.models.native_pass` asserts may crash the process.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from triforce.native.structs import MAX_DIM, MOST_QUERIES

NARROW = 64  # most rows that a narrow kernel takes
ROW_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int8: 3}


def serves_attention(q: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether the native kernel takes this shape: float32 queries on the CPU, heads that `serves_head` takes."""
    n, heads, dim = q.shape
    kv_heads = len(keys)
    return (
        q.device.type == keys.device.type == values.device.type == "cpu"
        and q.dtype == torch.float32
        and keys.dtype in ROW_TYPES
        and keys.dtype == values.dtype
        and keys.shape == values.shape
        and keys.shape[2] == dim
        and serves_head(dim)
        and heads >= kv_heads > 0
        and heads % kv_heads == 0
        and min(n, NARROW) * heads // kv_heads <= MOST_QUERIES
        and keys.stride() == values.stride()
        and keys.stride()[1:] == (dim, 1)
    )


def serves_scores(queries: Tensor, means: Tensor) -> bool:
    """Whether native scoring takes queries [layers, n, heads, dim] and 8-bit means [layers, kv_heads, chunks, dim]."""
    kv_heads, dim = means.shape[1], means.shape[3]
    return (
        queries.device.type == means.device.type == "cpu"
        and queries.dtype == torch.float32
        and queries.shape[1] >= 1
        and means.dtype == torch.int8
        and queries.shape[0] == means.shape[0]
        and queries.shape[2] >= kv_heads > 0
        and queries.shape[2] % kv_heads == 0
        and queries.shape[3] == dim
        and serves_head(dim)
        and means.shape[2] >= 1
        and lies_by_head(means)
    )


def serves_means(keys: Tensor) -> bool:
    """Whether native averaging takes keys [layers, kv_heads, rows, dim]."""
    return keys.device.type == "cpu" and keys.dtype in ROW_TYPES and serves_head(keys.shape[3]) and lies_by_head(keys)


def serves_head(dim: int) -> bool:
    """Whether native attention takes heads of `dim`: whole vectors of the widest variant."""
    return dim % 16 == 0 and 0 < dim <= MAX_DIM


def lies_by_head(rows: Tensor) -> bool:
    """Whether the rows [layers, kv_heads, rows, dim] of each head lie together, and heads equally many rows apart."""
    kv_heads, dim = rows.shape[1], rows.shape[3]
    return rows.stride()[2:] == (dim, 1) and rows.stride(0) == kv_heads * rows.stride(1) and rows.stride(1) % dim == 0


def check_table(table: tuple[Tensor, Tensor], n: int, dim: int) -> None:
    """Assert that `table` is one of `Rope.table`, for `n` positions and heads of `dim`."""
    for side in table:
        width = side.shape[-1]
        assert side.shape == (n, 1, width) and width % 2 == 0 and width <= dim, (side.shape, n, dim)
        assert side.dtype == torch.float32 and side.is_contiguous(), (side.dtype, side.stride())
    assert table[0].shape == table[1].shape, (table[0].shape, table[1].shape)


def check_scales(scales: Sequence[Tensor], rows: Tensor) -> None:
    """Assert that `scales` are two of 8-bit `rows` [..., rows, dim], laid out like them, or none of others."""
    assert len(scales) == (2 if rows.dtype == torch.int8 else 0), (len(scales), rows.dtype)
    for side in scales:
        assert side.dtype == torch.float32 and side.device == rows.device, (side.dtype, side.device)
        assert side.shape == (*rows.shape[:-1], 1), (side.shape, rows.shape)
        assert [step * rows.shape[-1] for step in side.stride()[:-1]] == list(rows.stride()[:-1]), side.stride()


def check_new_rows(q: Tensor, k: Tensor, v: Tensor, keys: Tensor, values: Tensor, row: int) -> None:
    """Assert that `q`, and `k` and `v` for `keys` and `values` from `row` on, lie as the kernel reads and writes."""
    (n, _, dim), (kv_heads, capacity, _) = q.shape, keys.shape
    assert dim <= MAX_DIM, dim
    assert k.shape == v.shape == (n, kv_heads, dim), (k.shape, v.shape)
    assert all(x.stride()[1:] == (dim, 1) and x.dtype == torch.float32 for x in (q, k, v)), (q.stride(), q.dtype)
    assert keys.shape == values.shape and keys.shape[2] == dim, (keys.shape, values.shape, dim)
    assert keys.dtype == values.dtype and keys.dtype in ROW_TYPES, (keys.dtype, values.dtype)
    assert keys.stride() == values.stride() and keys.stride()[1:] == (dim, 1), (keys.stride(), values.stride())
    assert 0 <= row <= capacity - n, (row, n, capacity)
