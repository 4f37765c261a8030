"""The native kernels, called on the memory of tensors through ctypes. Arguments are checked here, never in C.

Every function has an equal in PyTorch (`triforce.attention.reference`, `triforce.models.matrix`); without a compiler at
installation, or with TRIFORCE_NATIVE=0 in the environment, those serve.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

SWITCH = "TRIFORCE_NATIVE"  # 0 turns the kernels off, a variant's name chooses it
NARROW = 64  # most rows that a narrow kernel takes
MAX_DIM = 256
_MAX_QUERIES = 512  # query rows of one KV head
ROW_TYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


CArgument: TypeAlias = Any  # what ctypes.byref gives, a type that typeshed does not name


class _Attend(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("q", "keys", "values", "key_scales", "value_scales", "ancestors", "out")),
        *((name, c_int64) for name in ("rows", "head_stride", "window")),
        *((name, c_int32) for name in ("n", "heads", "kv_heads", "dim", "type")),
    ]


class _Rotate(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("q", "k", "v", "cos", "sin", "rotated", "keys", "values")),
        *((name, c_int64) for name in ("q_stride", "k_stride", "v_stride", "row", "head_stride")),
        *((name, c_int32) for name in ("n", "heads", "kv_heads", "dim", "width", "type")),
    ]


class _Linear(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("x", "weights", "bias", "y")),
        *((name, c_int32) for name in ("type", "n", "accumulate")),
        *((name, c_int64) for name in ("in_", "out", "row_bytes", "y_stride")),
    ]


class Kernels:
    """The library in one variant: "avx512", "avx2", "neon" or "portable"; unless named, the processor's best."""

    def __init__(self, path: Path, variant: str | None = None) -> None:
        # PyTorch is imported by now, so both share one OpenMP runtime and its threads.
        self._library = ctypes.CDLL(str(path))
        self._library.triforce_use.restype = ctypes.c_char_p
        self._library.triforce_linear.restype = None
        self._library.triforce_rotate_and_store.restype = None
        name = self._library.triforce_use(variant.encode() if variant else None)
        if name is None:
            raise ValueError(f"this processor does not run the {variant} kernels")
        self.variant = name.decode()

    @property
    def num_threads(self) -> int:
        return int(self._library.triforce_threads())

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, window: int | None = None, ancestors: Tensor | None = None
    ) -> Tensor:
        """As `triforce.attention.reference.attend`, for at most `NARROW` rows; see `serves_attention`.

        `ancestors` [n, n] bool: which of the new rows each new row sees, itself included; else those up to itself.
        """
        n, heads, dim = q.shape
        kv_heads, rows, _ = keys.shape
        assert serves_attention(q, keys, values), (q.shape, q.dtype, keys.shape, keys.dtype, keys.stride())
        assert rows >= n >= 1, (rows, n)
        if ancestors is not None:
            assert ancestors.shape == (n, n), ancestors.shape
            ancestors = ancestors.contiguous()
        q = q.contiguous()
        out = torch.empty_like(q)
        status = self._library.triforce_attend(
            byref(
                _Attend(
                    q.data_ptr(),
                    keys.data_ptr(),
                    values.data_ptr(),
                    None,
                    None,
                    ancestors.data_ptr() if ancestors is not None else None,
                    out.data_ptr(),
                    rows,
                    keys.stride(0),
                    window or 0,
                    n,
                    heads,
                    kv_heads,
                    dim,
                    ROW_TYPES[keys.dtype],
                )
            )
        )
        if status:
            raise MemoryError("no memory for the partial results of attention")
        return out

    def rotate_and_store(
        self, q: Tensor, k: Tensor, v: Tensor, table: tuple[Tensor, Tensor], keys: Tensor, values: Tensor, row: int
    ) -> Tensor:
        """Rotate `q` and `k` by `table`; store `k` and `v` in `keys` and `values` [kv_heads, capacity, dim] at `row`.

        `q` [n, heads, dim], `k` and `v` [n, kv_heads, dim] may be views of one row-wise product. Returns the rotated
        queries [n, heads, dim].
        """
        n, heads, dim = q.shape
        kv_heads, capacity, _ = keys.shape
        cos, sin = table
        assert row + n <= capacity, (row, n, capacity)
        assert k.shape == v.shape == (n, kv_heads, dim), (k.shape, v.shape)
        assert keys.stride()[1:] == values.stride()[1:] == (dim, 1), (keys.stride(), values.stride())
        assert keys.stride(0) == values.stride(0), (keys.stride(), values.stride())
        assert all(x.stride()[1:] == (dim, 1) and x.dtype == torch.float32 for x in (q, k, v)), (q.stride(), q.dtype)
        assert cos.shape == (n, 1, cos.shape[-1]) and cos.dtype == torch.float32, (cos.shape, cos.dtype)
        out = torch.empty(n, heads, dim)
        self._library.triforce_rotate_and_store(
            byref(
                _Rotate(
                    q.data_ptr(),
                    k.data_ptr(),
                    v.data_ptr(),
                    cos.data_ptr(),
                    sin.data_ptr(),
                    out.data_ptr(),
                    keys.data_ptr(),
                    values.data_ptr(),
                    q.stride(0),
                    k.stride(0),
                    v.stride(0),
                    row,
                    keys.stride(0),
                    n,
                    heads,
                    kv_heads,
                    dim,
                    cos.shape[-1],
                    ROW_TYPES[keys.dtype],
                )
            )
        )
        return out

    def linear(
        self,
        x: Tensor,
        weights: Tensor,
        kind: int,
        y: Tensor,
        *,
        bias: Tensor | None = None,
        accumulate: bool = False,
    ) -> None:
        """`y` [n, out] = `x` [n, in] times rows of `weights` [out, row_bytes] in GGUF's format `kind`, plus `bias`.

        With `accumulate` it is added to `y`. `y` may be a block of columns of a wider matrix. Products are in float32.
        """
        n, width = x.shape
        out, row_bytes = weights.shape
        assert 1 <= n <= NARROW, n
        assert y.shape == (n, out) and y.stride(1) == 1 and y.dtype == torch.float32, (y.shape, y.stride(), y.dtype)
        assert x.is_contiguous() and x.dtype == torch.float32, (x.stride(), x.dtype)
        assert weights.is_contiguous() and weights.dtype == torch.uint8, (weights.stride(), weights.dtype)
        assert row_bytes == self.row_bytes(kind, width), (kind, width, row_bytes)
        assert bias is None or (bias.shape == (out,) and bias.dtype == torch.float32 and bias.is_contiguous())
        self._library.triforce_linear(
            byref(
                _Linear(
                    x.data_ptr(),
                    weights.data_ptr(),
                    bias.data_ptr() if bias is not None else None,
                    y.data_ptr(),
                    kind,
                    n,
                    accumulate,
                    width,
                    out,
                    row_bytes,
                    y.stride(0),
                )
            )
        )

    def row_bytes(self, kind: int, width: int) -> int:
        """Bytes of a row of `width` weights in format `kind`, or -1 where rows of that width do not exist."""
        return int(self._library.triforce_row_bytes(c_int(kind), c_int64(width)))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """RMS norm over the last dimension of `x` [..., dim] float32."""
        dim = weight.numel()
        assert x.shape[-1] == dim and x.dtype == weight.dtype == torch.float32, (x.shape, x.dtype)
        x = x.contiguous()
        out = torch.empty_like(x)
        self._library.triforce_rms_norm(
            c_void_p(x.data_ptr()),
            c_void_p(weight.data_ptr()),
            c_void_p(out.data_ptr()),
            c_int64(x.numel() // dim),
            c_int64(dim),
            c_float(eps),
        )
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up for `gate_up` [n, 2 * inner] float32, gates first."""
        n, double = gate_up.shape
        assert gate_up.is_contiguous() and gate_up.dtype == torch.float32 and double % 2 == 0, gate_up.shape
        out = torch.empty(n, double // 2)
        self._library.triforce_silu_mul(
            c_void_p(gate_up.data_ptr()), c_void_p(out.data_ptr()), c_int64(n), c_int64(double // 2)
        )
        return out

    def forward(self, model: CArgument, rows: CArgument, x: Tensor, out: Tensor) -> None:
        """All layers of a decoder; `triforce.models.native_pass` makes and checks the arguments."""
        status = self._library.triforce_forward(
            model, rows, c_void_p(x.data_ptr()), c_void_p(out.data_ptr()), c_int(len(x))
        )
        if status:
            raise MemoryError("no memory for the activations of a pass")

    def dequantise(self, weights: Tensor, kind: int, width: int) -> Tensor:
        """Rows of weights [rows, row_bytes] uint8 in format `kind` as floats [rows, width]."""
        rows, row_bytes = weights.shape
        assert weights.is_contiguous() and row_bytes == self.row_bytes(kind, width), (kind, width, row_bytes)
        out = torch.empty(rows, width)
        self._library.triforce_dequantise(
            c_int(kind),
            c_void_p(weights.data_ptr()),
            c_void_p(out.data_ptr()),
            c_int64(rows),
            c_int64(row_bytes),
            c_int64(width),
        )
        return out


def serves_attention(q: Tensor, keys: Tensor, values: Tensor) -> bool:
    """Whether the native kernel takes this shape: few float32 rows on the CPU, heads of a multiple of 16 up to 256."""
    n, heads, dim = q.shape
    return (
        n <= NARROW
        and q.device.type == "cpu"
        and q.dtype == torch.float32
        and keys.dtype in ROW_TYPES
        and keys.dtype == values.dtype
        and dim % 16 == 0
        and dim <= MAX_DIM
        and n * heads // keys.shape[0] <= _MAX_QUERIES
        and keys.stride() == values.stride()
        and keys.stride()[1:] == (dim, 1)
    )


@lru_cache(maxsize=1)
def kernels() -> Kernels | None:
    """The native kernels, or None where they were not built or TRIFORCE_NATIVE=0 turns them off."""
    wanted = os.environ.get(SWITCH)
    return Kernels(_built()[0], wanted) if wanted != "0" and _built() else None


def why_missing() -> str:
    """Why `kernels` gives None, and the remedy."""
    if _built():
        return f"native kernels are turned off by {SWITCH}=0"
    return "native kernels were not built: install a C compiler, then triforce again"


def _built() -> list[Path]:
    return sorted(path for path in Path(__file__).parent.glob("_kernels*") if path.suffix in (".so", ".pyd", ".dylib"))
