"""Rows in mapped memory, so that a fork shares them and a saved file is read where it lies. Linux, CPU.

Rows lie in an anonymous file. Its owner writes through to it; a fork maps the same file privately, so the system
copies each page (4 KiB) that the fork writes, and only those. Rows that some fork still reads are never written by the
owner: when it is to, it becomes a private reader as well. Pages of a saved file are mapped over the first rows.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from weakref import WeakSet

import torch
from torch import Tensor

from triforce.caches.memory import PlainMemory, RowLayout, RowMemory, copy_rows

MOST_ROWS = 1 << 20  # reserved at once; addresses cost nothing, but there are not endlessly many
_NO_RESERVE = 0x4000  # MAP_NORESERVE and MAP_FIXED, which Python does not name
_FIXED = 0x10


def forkable_memory(layout: RowLayout, capacity: int, device: torch.device | str = "cpu") -> RowMemory:
    """Memory for `capacity` rows whose forks share rows, where the system has it; else plain memory."""
    if torch.device(device).type == "cpu" and sys.platform == "linux":
        try:
            return MappedMemory(layout, _Pages(layout, min(capacity, MOST_ROWS)), owner=True)
        except OSError:  # no memfd, too few file descriptors or addresses
            pass
    return PlainMemory.empty(layout, min(capacity, 1024), device)


def memory_over(rows: FileRows, capacity: int, device: torch.device | str = "cpu") -> RowMemory:
    """Memory for `capacity` rows that begins with those of a saved file: mapped where that is possible, else copied."""
    if torch.device(device).type == "cpu" and sys.platform == "linux":
        try:
            pages = _Pages(rows.layout, min(max(capacity, rows.num_rows), MOST_ROWS), rows)
            return MappedMemory(rows.layout, pages, owner=True)
        except OSError:
            pass
    memory = PlainMemory.empty(rows.layout, rows.num_rows, device)
    copy_rows(rows.planes, memory.planes, 0, rows.num_rows)
    return memory


class FileRows:
    """The rows in a saved file, whose descriptor this takes over.

    `starts` has the offset of each plane. A run is what one layer and head have of a plane, padded to `run_bytes`. The
    `planes` [layers, heads, rows and padding, width] are views of the file, mapped privately.
    """

    def __init__(
        self, file: Descriptor, layout: RowLayout, starts: Sequence[int], run_bytes: Sequence[int], num_rows: int
    ) -> None:
        self.file = file
        self.layout = layout
        self.starts = starts
        self.run_bytes = run_bytes
        self.num_rows = num_rows
        content = torch.frombuffer(mmap.mmap(file.number, 0, access=mmap.ACCESS_COPY), dtype=torch.uint8)
        runs = layout.layers * layout.heads
        self.planes = tuple(
            content[start : start + runs * length]
            .view(plane.dtype)
            .view(layout.layers, layout.heads, length // plane.row_bytes, plane.width)
            for start, length, plane in zip(starts, run_bytes, layout.planes, strict=True)
        )

    def mapped_bytes(self, plane: int) -> int:
        """Bytes of each run of `plane` that can be mapped: its whole pages, where the file is aligned to pages."""
        aligned = all(offset % mmap.PAGESIZE == 0 for offset in (self.starts[plane], self.run_bytes[plane]))
        return self.num_rows * self.layout.planes[plane].row_bytes // mmap.PAGESIZE * mmap.PAGESIZE if aligned else 0


class Descriptor:
    """An open file's number, closed with the last reference."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        os.close(self.number)


class _Pages:
    """An anonymous file for `capacity` rows, perhaps with a saved one's over its beginning; who maps it."""

    def __init__(self, layout: RowLayout, capacity: int, rows: FileRows | None = None) -> None:
        self.layout = layout
        self.capacity = -(-capacity // mmap.PAGESIZE) * mmap.PAGESIZE  # so that runs of any width begin with a page
        self.rows = rows
        self._size = sum(layout.layers * layout.heads * self.capacity * plane.row_bytes for plane in layout.planes)
        self._file = Descriptor(os.memfd_create("triforce-rows"))
        os.ftruncate(self._file.number, self._size)
        self.forks: WeakSet[MappedMemory] = WeakSet()
        self._frozen = 0  # no fork reads rows of this file from here on
        self._process_forks = _process_forks()
        self._forks_before = self._process_forks.count

    def map(self, shared: bool) -> tuple[Tensor, ...]:
        """The planes, in new mappings. Raises `OSError` where the system has no more of them."""
        flags = (mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE) | _NO_RESERVE
        pages = mmap.mmap(self._file.number, self._size, flags)  # unmapped with the last view of it
        content = torch.frombuffer(pages, dtype=torch.uint8)
        planes, start = [], 0
        for index, plane in enumerate(self.layout.planes):
            shape = (self.layout.layers, self.layout.heads, self.capacity, plane.width)
            end = start + prod(shape) * plane.dtype.itemsize
            runs = content[start:end].view(shape[0] * shape[1], -1)
            if self.rows is not None:
                _map_runs(runs, self.rows, index)
            planes.append(runs.view(plane.dtype).view(shape))
            start = end
        return tuple(planes)

    def freeze(self, rows: int) -> None:
        """A fork reads the first `rows` rows."""
        self._frozen = max(self._frozen, rows)

    def writable(self, row: int) -> bool:
        """Whether the owner may write `row` and all after it."""
        if self._process_forks.count != self._forks_before:
            return False  # another process maps these pages: one must not see what the other writes
        if row < self._frozen:
            self._frozen = max((fork.inherited for fork in self.forks), default=0)
        return row >= self._frozen and row >= self._first_own_row()

    def _first_own_row(self) -> int:
        """The first row no byte of which lies in pages of the saved file."""
        if self.rows is None:
            return 0
        return max(-(-self.rows.mapped_bytes(i) // plane.row_bytes) for i, plane in enumerate(self.layout.planes))


class MappedMemory:
    """Rows in `pages`, which one `owner` writes and all others map privately."""

    def __init__(self, layout: RowLayout, pages: _Pages, *, owner: bool, inherited: int = 0) -> None:
        self.planes = pages.map(shared=owner)
        self.inherited = inherited
        """Rows of a fork that lie in the common pages; those from here on are its own."""
        self.layout = layout
        self._pages = pages
        self._owner = owner
        if owner and pages.rows is not None:
            _copy_ends(pages.rows, self.planes)
        if not owner:
            pages.forks.add(self)
            pages.freeze(inherited)

    def prepare(self, start: int, end: int) -> RowMemory:
        if end > self._pages.capacity:
            return PlainMemory.copied(self, max(end, 2 * self._pages.capacity), start)
        if self._owner and not self._pages.writable(start):
            return self.fork(start)
        self.inherited = min(self.inherited, start)
        return self

    def fork(self, used: int) -> RowMemory:
        own = used if self._owner else min(self.inherited, used)  # rows from here on must be copied
        try:
            fork = MappedMemory(self.layout, self._pages, owner=False, inherited=own)
        except OSError:  # the system has no more mappings or addresses
            return PlainMemory.copied(self, used, used)
        copy_rows(self.planes, fork.planes, own, used)
        return fork


def _map_runs(runs: Tensor, rows: FileRows, plane: int) -> None:
    """Put the whole pages of a saved file's runs in place of the first ones of `runs` [layers * heads, bytes]."""
    length = rows.mapped_bytes(plane)
    for index in range(len(runs) if length else 0):
        offset = rows.starts[plane] + index * rows.run_bytes[plane]
        _map_over(runs[index].data_ptr(), length, rows.file.number, offset)


def _copy_ends(rows: FileRows, planes: tuple[Tensor, ...]) -> None:
    """Copy what `_map_runs` leaves: the last, broken page of each run."""
    for index, (theirs, ours) in enumerate(zip(rows.planes, planes, strict=True)):
        start, end = rows.mapped_bytes(index), rows.num_rows * rows.layout.planes[index].row_bytes
        ours.view(torch.uint8).flatten(2)[..., start:end] = theirs.view(torch.uint8).flatten(2)[..., start:end]


def _map_over(address: int, length: int, fd: int, offset: int) -> None:
    """Map a file privately over pages that are mapped already. Raises `OSError`."""
    flags = mmap.MAP_PRIVATE | _FIXED | _NO_RESERVE
    if _mmap()(address, length, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, offset) != address:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


@lru_cache
def _mmap() -> Callable[..., int]:
    """The system's own call, which can replace mappings in part, as Python's cannot."""
    call = ctypes.CDLL(None, use_errno=True).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64)
    return call


class _ProcessForks:
    """Counts how often this process forked: both processes map the same pages then, so neither may write them."""

    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        self.count += 1


@lru_cache
def _process_forks() -> _ProcessForks:
    """The count, from the first mapped memory on."""
    forks = _ProcessForks()
    os.register_at_fork(before=forks.add)
    return forks
