"""One GGUF file: its metadata and its tensors, as they lie or dequantised.

The header is read here and not by `gguf.GGUFReader`, which takes seconds over the token lists; blocks are decoded by
`gguf.quants`. Knows nothing of architectures or of tokenizers.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triforce.errors import ModelError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
SUPPORTED_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_VALUES_AT_ONCE = 1 << 19  # a thread's share; bounds the float32 copy of what is wanted in 16 bits
_MOST_ENTRIES, _MOST_DIMENSIONS, _LONGEST_NAME = 1 << 20, 4, 256  # above any model: signs of damage


@dataclass(frozen=True)
class _TensorInfo:
    shape: tuple[int, ...]  # torch order
    type_id: int
    offset: int  # in the file
    num_bytes: int


class _DamagedError(Exception):
    """The header contradicts itself or the file's end; becomes a `ModelError` that names the file."""


class GgufFile:
    """A GGUF file opened for reading. Raises `ModelError` when it is not one, is cut short or holds unknown types."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._bytes = _map_file(self.path)
        try:
            reader = _HeaderReader(self._bytes)
            self._metadata, self._tensors = reader.read()
        except (_DamagedError, struct.error) as error:
            raise ModelError(f"{self.path}: damaged or cut short ({error}); download the GGUF file again") from None
        except ModelError as error:
            raise ModelError(f"{self.path}: {error}") from None
        if self.get("split.count", 1) > 1:
            raise ModelError(f"{self.path}: one part of several; join them with llama-gguf-split --merge")

    def get(self, key: str, default: Any = None) -> Any:
        """The metadata value under `key` (str, int, float, bool or a list of them), or `default`."""
        return self._metadata.get(key, default)

    @property
    def keys(self) -> list[str]:
        """The keys of all metadata."""
        return list(self._metadata)

    @property
    def tensor_names(self) -> list[str]:
        """Names in file order."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of tensor `name` in torch order (rows first). Raises `ModelError` when it is absent."""
        return self._info(name).shape

    def dequantised(self, name: str, dtype: torch.dtype) -> Tensor:
        """Tensor `name` in `dtype`, on the CPU, owning its memory. Raises `ModelError` when it is absent."""
        info = self._info(name)
        count = math.prod(info.shape)
        values = torch.empty(count, dtype=dtype)

        def fill(start: int) -> None:
            end = min(start + _VALUES_AT_ONCE, count)
            values[start:end] = self._dequantised_part(info, start, end)

        starts = range(0, count, _VALUES_AT_ONCE)
        if len(starts) > 1:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                list(pool.map(fill, starts))
        elif count:
            fill(0)
        return values.view(info.shape)

    def blocks(self, name: str) -> tuple[Tensor, int]:
        """Matrix `name` as it lies in the file, a copy: rows [out, row_bytes] uint8 and GGUF's number of their format.

        Raises `ModelError` when it is absent.
        """
        info = self._info(name)
        raw = np.frombuffer(self._bytes, np.uint8, info.num_bytes, info.offset).copy()
        return torch.from_numpy(raw).view(info.shape[0], -1), info.type_id

    def _dequantised_part(self, info: _TensorInfo, start: int, end: int) -> Tensor:
        """Values `start` to `end`, whole blocks, in float32."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize

        kind = GGMLQuantizationType(info.type_id)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        num_bytes = (end - start) // block * block_bytes
        raw = np.frombuffer(self._bytes, np.uint8, num_bytes, info.offset + start // block * block_bytes)
        # dequantize loops in Python over groups of rows; rows of this width cost half of a narrow model's own
        width = math.gcd(end - start, 4096)
        values = dequantize(raw.reshape(-1, width // block * block_bytes), kind)
        return torch.from_numpy(np.require(values, np.float32, ["C", "W"])).view(-1)

    def _info(self, name: str) -> _TensorInfo:
        info = self._tensors.get(name)
        if info is None:
            raise ModelError(f"{self.path}: tensor {name} is missing; convert or download the GGUF file again")
        return info


def _map_file(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; check the path") from None
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise ModelError(f"{path}: cannot be read as GGUF ({error}); check the file") from None


class _HeaderReader:
    """A cursor over the header: counts, metadata, tensor infos."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._end = len(data)
        self._at = 0

    def read(self) -> tuple[dict[str, Any], dict[str, _TensorInfo]]:
        if self._take(4) != MAGIC:
            raise ModelError("not a GGUF file; give a .gguf file or a directory with config.json and safetensors")
        version = self._u32()
        if version not in VERSIONS:
            known = " and ".join(map(str, VERSIONS))
            raise ModelError(f"GGUF version {version}, versions {known} can be read; convert the model again")
        num_tensors, num_values = self._count("tensors"), self._count("metadata values")
        metadata = {self._string(): self._value(self._u32()) for _ in range(num_values)}
        infos = [self._tensor_info() for _ in range(num_tensors)]
        return metadata, self._placed(infos, metadata.get("general.alignment", 32))

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        if not name.isprintable() or len(name) > _LONGEST_NAME:
            raise _DamagedError("a tensor has an unreadable name")
        num_dimensions = self._u32()
        if num_dimensions > _MOST_DIMENSIONS:
            raise _DamagedError(f"tensor {name} has {num_dimensions} dimensions")
        shape = tuple(reversed([self._u64() for _ in range(num_dimensions)]))
        return name, shape, self._u32(), self._u64()

    def _placed(self, infos: list[tuple[str, tuple[int, ...], int, int]], alignment: Any) -> dict[str, _TensorInfo]:
        """Infos with offsets in the file, checked against its end."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        if not isinstance(alignment, int) or alignment < 1:
            raise _DamagedError(f"alignment is {alignment}")
        base = -(-self._at // alignment) * alignment
        tensors: dict[str, _TensorInfo] = {}
        for name, shape, type_id, offset in infos:
            names = {member.value: member.name for member in GGMLQuantizationType}
            kind = names.get(type_id, f"number {type_id}")
            if kind not in SUPPORTED_TYPES:
                known = ", ".join(SUPPORTED_TYPES)
                raise ModelError(f"tensor {name} has type {kind}, which is not supported; use one of {known}")
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(type_id)]
            if not shape or shape[-1] % block:
                raise _DamagedError(f"tensor {name} has shape {list(shape)}, not whole blocks of {kind}")
            info = _TensorInfo(shape, type_id, base + offset, math.prod(shape) // block * block_bytes)
            if info.offset + info.num_bytes > self._end:
                raise _DamagedError(f"tensor {name} ends at byte {info.offset + info.num_bytes} of {self._end}")
            tensors[name] = info
        return tensors

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(self._u32(), self._u64())
        (value,) = struct.unpack("<" + _scalar(kind), self._take(struct.calcsize("<" + _scalar(kind))))
        return value

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind == _STRING:
            return self._strings(count)
        code = _scalar(kind)
        data = self._take(count * struct.calcsize("<" + code))
        dtype: np.dtype[Any] = np.dtype("?" if code == "?" else "<" + code)
        return list(np.frombuffer(data, dtype).tolist())

    def _strings(self, count: int) -> list[str]:
        """`count` strings in one loop: this is where a header's time goes."""
        data, at, end, unpack = self._data, self._at, self._end, _U64.unpack_from
        strings = []
        for _ in range(count):
            start = at + 8
            at = start + unpack(data, at)[0]
            if at > end:
                raise _DamagedError("a string runs past the end")
            strings.append(data[start:at].decode("utf-8", "replace"))
        self._at = at
        return strings

    def _count(self, what: str) -> int:
        count = self._u64()
        if count > _MOST_ENTRIES:
            raise _DamagedError(f"{count} {what}")
        return count

    def _string(self) -> str:
        return self._take(self._u64()).decode("utf-8", "replace")

    def _u32(self) -> int:
        return int(_U32.unpack(self._take(4))[0])

    def _u64(self) -> int:
        return int(_U64.unpack(self._take(8))[0])

    def _take(self, count: int) -> bytes:
        start = self._at
        self._at += count
        if self._at > self._end:
            raise _DamagedError(f"the header runs past the end at byte {self._end}")
        return self._data[start : self._at]


def _scalar(kind: int) -> str:
    if kind not in _SCALARS:
        raise _DamagedError(f"metadata of unknown type {kind}")
    return _SCALARS[kind]
