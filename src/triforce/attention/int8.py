"""Rows of 8-bit integers with a scale each: a value is the integer times its row's scale. The C kernels do the same."""

from __future__ import annotations

import torch
from torch import Tensor

_LEAST = 1e-30  # rows without a larger element are kept as zeros: the inverse of a smaller scale is no float


def quantise(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Integers [..., dim] and scales [..., 1] float32 of `rows` [..., dim]: a scale is 1/127 of the largest element."""
    rows = rows.float()
    largest = rows.abs().amax(-1, keepdim=True)
    inverse = torch.where(largest > _LEAST, 127 / largest, 0)
    return (rows * inverse).round().to(torch.int8), largest / 127


def dequantise(rows: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values [..., dim] of integers [..., dim] with scales [..., 1]."""
    return rows.to(dtype) * scales.to(dtype)
