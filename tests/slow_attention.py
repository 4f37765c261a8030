"""Attention by its definition: one query, one head and one row at a time."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def slow_attend(q: Tensor, keys: Tensor, values: Tensor, window: int | None = None) -> Tensor:
    """What `triforce.attention.reference.attend` must return, in float64: [n, heads, dim]."""
    n, heads, dim = q.shape
    kv_heads, rows, _ = keys.shape
    out = torch.zeros(n, heads, dim, dtype=torch.float64)
    for i in range(n):
        position = rows - n + i
        seen = [row for row in range(position + 1) if window is None or position - row < window]
        for head in range(heads):
            kv_head = head // (heads // kv_heads)
            out[i, head] = weigh(q[i, head], keys[kv_head, seen], values[kv_head, seen])
    return out


def weigh(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Softmax attention of one `query` [dim] over `keys` and `values` [rows, dim], in float64."""
    scores = [float(query.double() @ key.double()) / math.sqrt(len(query)) for key in keys]
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    return sum(w * value.double() for w, value in zip(weights, values, strict=True)) / sum(weights)  # type: ignore[return-value]
