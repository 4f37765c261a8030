"""Rotary position embedding (RoFormer, arXiv 2104.09864) over the two halves of a head, at absolute positions.

Knows nothing of models: frequencies and scale are given, already scaled for long contexts where the model asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Rope:
    """`inv_freq` [rotary_dim / 2] float64 on the CPU; `scale` multiplies cosine and sine (YaRN's attention factor)."""

    inv_freq: Tensor
    scale: float = 1.0

    def table(self, positions: Tensor, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """Cosines and sines for `positions` [n], each [n, 1, rotary_dim]: halves repeated, sine signed for `rotate`."""
        angles = positions.to(torch.float64)[:, None] * self.inv_freq
        cos, sin = angles.cos() * self.scale, angles.sin() * self.scale
        tables = torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)
        return tables[0][:, None].to(device, dtype), tables[1][:, None].to(device, dtype)


class Rotation:
    """The table of the pass at hand: computed for its first layer, reused by the others."""

    def __init__(self, rope: Rope) -> None:
        self._rope = rope
        self._kept: tuple[tuple[int, int, torch.dtype, torch.device], tuple[Tensor, Tensor]] | None = None

    def at(self, start: int, n: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """The table for `n` positions from `start`."""
        at = (start, n, dtype, device)
        if self._kept is None or self._kept[0] != at:
            # Key and table in one assignment: an interruption between two would leave a wrong table for good
            self._kept = at, self._rope.table(torch.arange(start, start + n, device="cpu"), dtype, device)
        return self._kept[1]


def rotate(x: Tensor, table: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate `x` [n, heads, dim] by a table of `Rope.table`; dimensions past the table's width pass through."""
    cos, sin = table
    width = cos.shape[-1]
    if width < x.shape[-1]:
        return torch.cat((rotate(x[..., :width], table), x[..., width:]), -1)
    return x * cos + x.roll(width // 2, -1) * sin
