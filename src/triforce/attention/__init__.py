"""Attention as the caches call it: the native kernels where they serve, PyTorch's own elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from triforce.attention import reference
from triforce.native import kernels, serves_attention

__all__ = ["attend", "rotate_and_store"]


def attend(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    window: int | None = None,
    ancestors: Tensor | None = None,
    scales: Sequence[Tensor] = (),
) -> Tensor:
    """Attention of the last n rows, perhaps none, over all rows; arguments as in `reference.attend`."""
    if not len(q):  # a kernel takes one query at least
        return q
    native = kernels()
    if native and serves_attention(q, keys, values):
        return native.attend(q, keys, values, window, ancestors, scales)
    return reference.attend(q, keys, values, window, ancestors, scales)


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
    """Rotate q and k, store k and v from `row` on; shapes as in `triforce.attention.reference.rotate_and_store`."""
    native = kernels()
    if native and serves_attention(q, keys, values):
        return native.rotate_and_store(q, k, v, table, keys, values, row, scales)
    return reference.rotate_and_store(q, k, v, table, keys, values, row, scales)
