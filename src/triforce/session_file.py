"""One saved session as a file: rows of the full cache, remembered queries, token ids, and what they were made by.

A safetensors file, so others can read it too: first the rows, each run of them padded to whole pages of 4 KiB so that
it can be mapped, then `page_sums`, `queries`, `tokens`, `notes` and a SHA-256 of all but the rows. Knows no models.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd, prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from triforce.atomic import replacing
from triforce.caches.mapped import Descriptor, FileRows
from triforce.caches.memory import Plane, RowLayout
from triforce.errors import SessionError, shown
from triforce.tokens import TokenIds

_FORMAT, _VERSION = "triforce-session", "1"
_PAGE = 4096
_MOST_HEADER = 1 << 20
_DTYPES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int8: "I8", torch.uint8: "U8"}
_BYTES = hashlib.sha256().digest_size
_DAMAGED = "delete it, or read the prompt anew into another file"


@dataclass(frozen=True)
class Origin:
    """What the rows of a session were computed by: rows of another origin are refused."""

    model: str
    """For people."""
    fingerprint: str
    """Of the weights."""
    inv_freq: tuple[float, ...]
    rope_scale: float


@dataclass(frozen=True)
class Saved:
    """What a file holds besides the rows. `queries` [layers, n, heads, dim] are those of the last n rows."""

    origin: Origin
    tokens: TokenIds
    queries: Tensor
    notes: Mapping[str, Any]
    """Whatever else is to be kept, as JSON."""


def write_session(path: Path, saved: Saved, layout: RowLayout, planes: Sequence[Tensor], num_rows: int) -> None:
    """Replace `path` by a file of `saved` and the first `num_rows` rows of `planes` [layers, heads, capacity, width].

    Raises `SessionError`; an older file is then as it was.
    """
    notes = _written(path, saved.notes)
    try:
        with replacing(path) as file:
            _write(file, saved, notes, layout, planes, num_rows)
    except OSError as error:
        reason = "it is a directory" if error.errno == errno.EISDIR else error.strerror or str(error)
        raise SessionError(f"cannot save {path} ({reason}): choose another place, or make room") from None


def read_session(path: Path, verify: bool = True) -> tuple[Saved, FileRows]:
    """What `path` holds, its rows mapped. Raises `SessionError` for all that is not a whole session file.

    All but the rows is always checked, byte by byte; rows too unless `verify` is off, which reads none of them.
    """
    try:
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)  # do not wait for a pipe
        file = Descriptor(os.open(path, flags))
        kind = os.fstat(file.number).st_mode
        if not stat.S_ISREG(kind):
            what = "a directory" if stat.S_ISDIR(kind) else "no regular file"
            raise SessionError(f"{path} is {what}: give a session file")
        return _Reader(path, file).read(verify)
    except FileNotFoundError:
        raise SessionError(f"{path}: no such file; check the path") from None
    except OSError as error:
        reason = "it is a directory" if error.errno == errno.EISDIR else error.strerror or str(error)
        raise SessionError(f"cannot read {path} ({reason}): give a session file") from None


def is_session_file(path: Path) -> bool:
    """Whether the first bytes of `path` are those of a session file, damaged or not."""
    try:
        header, _ = _Reader(path, Descriptor(os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0)))).header()
    except (OSError, SessionError):
        return False
    metadata = header.get("__metadata__")
    return isinstance(metadata, dict) and metadata.get("format") == _FORMAT


def session_path(path: object) -> Path:
    """`path` as one that a file system can take. Raises `SessionError`."""
    name = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(name, str) or name == "" or "\0" in name or not _encodes(name):
        raise SessionError(f"the session's path is {shown(path)}: give the name of a file")
    return Path(name)


def _encodes(name: str) -> bool:
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def _written(path: Path, notes: Mapping[str, Any]) -> npt.NDArray[np.uint8]:
    try:
        return np.frombuffer(json.dumps(notes, allow_nan=False).encode(), dtype=np.uint8)
    except (TypeError, ValueError, RecursionError) as error:
        remedy = "keep plain values in the session's notes"
        raise SessionError(f"cannot save {path} (its notes are no JSON: {error}): {remedy}") from None


def _write(
    file: BinaryIO,
    saved: Saved,
    notes: npt.NDArray[np.uint8],
    layout: RowLayout,
    planes: Sequence[Tensor],
    num_rows: int,
) -> None:
    queries = saved.queries.contiguous().cpu()
    lengths = [_run_bytes(plane, num_rows) for plane in layout.planes]
    num_pages = layout.layers * layout.heads * sum(lengths) // _PAGE
    entries: list[tuple[str, str, tuple[int, ...]]] = [
        (plane.name, _DTYPES[plane.dtype], (layout.layers, layout.heads, length // plane.row_bytes, plane.width))
        for plane, length in zip(layout.planes, lengths, strict=True)
    ]
    entries += [("page_sums", "I64", (num_pages,)), ("queries", "F32", tuple(queries.shape))]
    entries += [("tokens", "I32", (len(saved.tokens),)), ("notes", "U8", (len(notes),)), ("sha256", "U8", (_BYTES,))]
    metadata = {
        "format": _FORMAT,
        "version": _VERSION,
        "rows": str(num_rows),
        "model": saved.origin.model,
        "fingerprint": saved.origin.fingerprint,
        "rope": json.dumps([saved.origin.rope_scale, *saved.origin.inv_freq]),
    }
    header = _header(entries, metadata)
    file.write(header)
    sums = _write_rows(file, planes, lengths, num_rows)
    digest = hashlib.sha256(header)
    for part in (sums, queries.numpy(), saved.tokens, notes):
        data = np.ascontiguousarray(part).view(np.uint8).data
        file.write(data)
        digest.update(data)
    file.write(digest.digest())


def _header(entries: Sequence[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """Length and JSON, padded so that what follows begins with a page."""
    header: dict[str, Any] = {"__metadata__": metadata}
    start = 0
    for name, dtype, shape in entries:
        end = start + prod(shape) * _SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % _PAGE)
    return len(text).to_bytes(8, "little") + text


def _write_rows(
    file: BinaryIO, planes: Sequence[Tensor], lengths: Sequence[int], num_rows: int
) -> npt.NDArray[np.int64]:
    """Write all runs, padded with zeros; the sums of their pages."""
    sums = [np.empty(0, np.int64)]
    for plane, length in zip(planes, lengths, strict=True):
        for run in plane.flatten(0, 1):
            data = run[:num_rows].contiguous().cpu().view(torch.uint8).numpy().reshape(-1)
            whole = len(data) // _PAGE * _PAGE
            end = np.zeros(length - whole, np.uint8)
            end[: len(data) - whole] = data[whole:]
            for part in (data[:whole], end):
                file.write(part.data)
                sums.append(_page_sums(part))
    return np.concatenate(sums)


def _page_sums(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    """The sum of each page's 64-bit words. One changed word changes it; it is no defence against forgers."""
    pages: npt.NDArray[np.int64] = np.frombuffer(data.data, "<i8").reshape(-1, _PAGE // 8)
    sums: npt.NDArray[np.int64] = pages.sum(1)
    return sums


def _run_bytes(plane: Plane, num_rows: int) -> int:
    """The least whole number of rows and of pages."""
    step = plane.row_bytes * _PAGE // gcd(plane.row_bytes, _PAGE)
    return -(-num_rows * plane.row_bytes // step) * step


_SIZES = {"F32": 4, "F16": 2, "BF16": 2, "I8": 1, "U8": 1, "I32": 4, "I64": 8}


class _Reader:
    """Checks one file from its first byte to its last."""

    def __init__(self, path: Path, file: Descriptor) -> None:
        self._path = path
        self._file = file
        self._size = os.fstat(file.number).st_size
        self._digest = hashlib.sha256()

    def read(self, verify: bool) -> tuple[Saved, FileRows]:
        """Whether the header is that of a session, then what it says, then the digest, and only then the rest."""
        header, data = self.header()
        metadata = header.get("__metadata__")
        if not isinstance(metadata, dict) or metadata.get("format") != _FORMAT:
            raise SessionError(f"{self._path} is not a session file: give one that a session was saved in")
        if metadata.get("version") != _VERSION:
            found = metadata.get("version")
            raise SessionError(
                f"{self._path} has format version {found}, this triforce reads {_VERSION}: use the other"
            )
        try:
            entries = [_Entry(name, value, data) for name, value in header.items() if name != "__metadata__"]
            return self._contents(entries, metadata, data, verify)
        except (KeyError, ValueError, TypeError, IndexError, AttributeError, ArithmeticError, RuntimeError) as error:
            raise self._damaged(f"its header is wrong, {type(error).__name__}") from None

    def header(self) -> tuple[dict[str, Any], int]:
        """The header's JSON, and where the data begins."""
        prefix = self._bytes(0, min(8, self._size))
        length = int.from_bytes(prefix, "little")
        if len(prefix) == 8 and 2 <= length <= min(_MOST_HEADER, self._size - 8):
            text = self._bytes(8, 8 + length)
            self._digest.update(prefix + text)
            try:
                header = json.loads(text)
                if isinstance(header, dict):
                    return header, 8 + length
            except (ValueError, RecursionError):
                pass
        raise SessionError(
            f"{self._path} is not a session file, or its first bytes are damaged: give another, or a new name"
        )

    def _contents(
        self, entries: list[_Entry], metadata: Mapping[str, str], data: int, verify: bool
    ) -> tuple[Saved, FileRows]:
        *planes, sums, queries, tokens, notes, digest = entries
        if self._size != digest.end or [entry.start for entry in entries] != [data, *(e.end for e in entries[:-1])]:
            raise self._damaged("it is cut short, or longer than it should be")
        found = {entry.name: self._bytes(entry.start, entry.end) for entry in (sums, queries, tokens, notes)}
        for content in found.values():
            self._digest.update(content)
        if self._bytes(digest.start, digest.end) != self._digest.digest():
            raise self._damaged("its checksum is wrong")
        rows = self._rows(planes, int(metadata["rows"]))
        if prod(sums.shape) * _PAGE != sums.start - data:
            raise self._damaged("its checksums are not as many as its pages")
        if verify:
            self._verify(data, np.frombuffer(found["page_sums"], "<i8"))
        scale, *inv_freq = json.loads(metadata["rope"])
        kept = json.loads(found["notes"])
        if not isinstance(kept, dict):
            raise self._damaged("its notes are no JSON object")
        saved = Saved(
            Origin(metadata["model"], metadata["fingerprint"], tuple(inv_freq), scale),
            np.frombuffer(found["tokens"], "<i4").astype(np.int32),
            torch.from_numpy(np.frombuffer(found["queries"], "<f4").astype(np.float32)).view(queries.shape),
            kept,
        )
        if len(queries.shape) != 4 or not queries.shape[1] <= rows.num_rows <= len(saved.tokens):
            raise self._damaged("it has more rows than tokens")
        return saved, rows

    def _rows(self, planes: Sequence[_Entry], num_rows: int) -> FileRows:
        layers, heads = planes[0].shape[:2]
        dtypes = {name: dtype for dtype, name in _DTYPES.items()}
        layout = RowLayout(layers, heads, tuple(Plane(p.name, p.shape[3], dtypes[p.dtype]) for p in planes))
        lengths = [_run_bytes(plane, num_rows) for plane in layout.planes]
        if any(p.end - p.start != layers * heads * length for p, length in zip(planes, lengths, strict=True)):
            raise self._damaged("its rows are not as many as it says")
        return FileRows(self._file, layout, [plane.start for plane in planes], lengths, num_rows)

    def _verify(self, start: int, sums: npt.NDArray[np.int64]) -> None:
        """Compare the sums of all pages of rows, some megabytes at a time."""
        step = 1024
        for first in range(0, len(sums), step):
            expected = sums[first : first + step]
            begin = start + first * _PAGE
            pages = self._bytes(begin, begin + len(expected) * _PAGE)
            if not np.array_equal(_page_sums(np.frombuffer(pages, np.uint8)), expected):
                raise self._damaged("a checksum of its rows is wrong")

    def _bytes(self, start: int, end: int) -> bytes:
        """The bytes from `start` to `end`, all of them."""
        parts = list(_read(self._file.number, start, end))
        if sum(map(len, parts)) != end - start:
            raise self._damaged("it is cut short")
        return b"".join(parts)

    def _damaged(self, how: str) -> SessionError:
        return SessionError(f"{self._path} is damaged ({how}): {_DAMAGED}")


class _Entry:
    """One tensor of the header; offsets count from the file's beginning. Raises `ValueError` for nonsense."""

    def __init__(self, name: str, value: Mapping[str, Any], data: int) -> None:
        self.name = name
        self.dtype = str(value["dtype"])
        self.shape = tuple(int(size) for size in value["shape"])
        self.start, self.end = (data + int(offset) for offset in value["data_offsets"])
        if min(self.shape) < 0 or self.end - self.start != prod(self.shape) * _SIZES[self.dtype]:
            raise ValueError(name)


def _read(descriptor: int, start: int, end: int) -> Iterator[bytes]:
    """Pieces until `end` or the end of the file."""
    os.lseek(descriptor, start, os.SEEK_SET)
    while start < end and (piece := os.read(descriptor, min(end - start, 1 << 30))):
        yield piece
        start += len(piece)
