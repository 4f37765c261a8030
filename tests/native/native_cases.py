"""What the tests of native kernels are made of: the variants that run here, rows and weights of every type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import gguf
import numpy as np
import torch
from torch import Tensor

from triforce.attention.int8 import quantise
from triforce.errors import UsageError
from triforce.native import Kernels, library

BUILT = library._built()
FORMATS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]


def variants() -> list[str]:
    """The names of all that this processor runs."""
    names = []
    for name in ("portable", "avx2", "avx512", "neon") if BUILT else ():
        with suppress(UsageError):
            names.append(Kernels(BUILT, name).variant)
    return names


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stored(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Sequence[Tensor]]:
    """Rows [2, kv_heads, rows, dim] as a cache of `dtype` keeps them, and their scales if it has any."""
    if dtype != torch.int8:
        return rows.to(dtype), ()
    held, scales = quantise(rows)
    return held, tuple(scales)


def cut(rows: Tensor, scales: Sequence[Tensor], end: int) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """The first `end` keys and values, and their scales."""
    return rows[0, :, :end], rows[1, :, :end], tuple(side[:, :end] for side in scales)


def blocks(kind: str, rows: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random rows in a format, and their values by the gguf library."""
    number = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[number]
    random = np.random.default_rng(seed)
    if kind in ("F32", "F16", "BF16"):
        values = torch.from_numpy(random.normal(size=(rows, width)).astype(np.float32))
        values = values.to({"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind])
        return values.contiguous().view(torch.uint8), values.float()
    raw = random.integers(0, 256, (rows, width // block, size), dtype=np.uint8)
    scales = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2)}.get(kind, (0,))
    for at in scales:  # any bits make weights, but scales must be finite halves
        raw[:, :, at : at + 2] = random.normal(size=(rows, width // block, 1)).astype(np.float16).view(np.uint8)
    raw = raw.reshape(rows, -1)
    return torch.from_numpy(raw), torch.from_numpy(gguf.quants.dequantize(raw, number).reshape(rows, width))
