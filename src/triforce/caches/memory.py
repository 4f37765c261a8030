"""Where a cache's rows lie: tensors with room to grow, which a fork copies or, if they are mapped, shares.

Knows nothing of what rows mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Plane(NamedTuple):
    """One tensor [layers, heads, capacity, width] of a cache: its keys, or its values."""

    name: str
    width: int
    dtype: torch.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of one row of one layer and head."""
        return self.width * self.dtype.itemsize


@dataclass(frozen=True)
class RowLayout:
    """What the rows of a cache consist of."""

    layers: int
    heads: int
    planes: tuple[Plane, ...]


class RowMemory(Protocol):
    """Planes of rows, written only after `prepare`."""

    layout: RowLayout

    @property
    def planes(self) -> tuple[Tensor, ...]:
        """Tensors [layers, heads, capacity, width]."""
        ...

    def prepare(self, start: int, end: int) -> RowMemory:
        """The memory to go on with, perhaps another one: rows `start` to `end` can be written, those before are kept.

        Rows from `start` on may have lost what they held.
        """
        ...

    def fork(self, used: int) -> RowMemory:
        """Another memory that holds the first `used` rows; what is written to one is not seen by the other."""
        ...


class PlainMemory:
    """Tensors on any device. They grow by doubling, and a fork copies."""

    def __init__(self, layout: RowLayout, planes: tuple[Tensor, ...]) -> None:
        self.layout = layout
        self.planes = planes

    @classmethod
    def empty(cls, layout: RowLayout, capacity: int, device: torch.device | str = "cpu") -> PlainMemory:
        """Room for `capacity` rows."""
        shape = (layout.layers, layout.heads, capacity)
        planes = [torch.empty(*shape, plane.width, dtype=plane.dtype, device=device) for plane in layout.planes]
        return cls(layout, tuple(planes))

    @classmethod
    def copied(cls, memory: RowMemory, capacity: int, used: int) -> PlainMemory:
        """The first `used` rows of `memory`, with room for `capacity`."""
        return cls(memory.layout, tuple(grown(plane, capacity, used) for plane in memory.planes))

    def prepare(self, start: int, end: int) -> PlainMemory:
        capacity = self.planes[0].shape[2]
        return self if end <= capacity else PlainMemory.copied(self, max(end, 2 * capacity), start)

    def fork(self, used: int) -> PlainMemory:
        return PlainMemory.copied(self, used, used)


def grown(rows: Tensor, capacity: int, used: int) -> Tensor:
    """A copy of the first `used` rows of `rows` [layers, heads, rows, width], with room for `capacity`."""
    larger = rows.new_empty(*rows.shape[:2], capacity, rows.shape[3])
    larger[:, :, :used] = rows[:, :, :used]
    return larger


def copy_rows(source: tuple[Tensor, ...], target: tuple[Tensor, ...], start: int, end: int) -> None:
    """Copy rows `start` to `end` of all planes."""
    for theirs, ours in zip(source, target, strict=True):
        ours[:, :, start:end] = theirs[:, :, start:end]
