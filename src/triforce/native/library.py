"""The native kernels, called on the memory of tensors through ctypes. Arguments are checked before, never in C.

Every function has an equal in PyTorch (`triforce.attention.reference`, `triforce.models.matrix`); without a compiler at
installation, or with TRIFORCE_NATIVE=0 in the environment, those serve.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from ctypes import byref
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from torch import Tensor

from triforce.errors import UsageError
from triforce.native import structs
from triforce.native.shapes import (
    NARROW,
    ROW_TYPES,
    check_new_rows,
    check_scales,
    check_table,
    lies_by_head,
    serves_attention,
    serves_means,
    serves_scores,
)
from triforce.native.structs import at

SWITCH = "TRIFORCE_NATIVE"  # 0 turns the kernels off, a variant's name chooses it


class Kernels:
    """The library in one variant: "avx512", "avx2", "neon" or "portable"; unless named, the processor's best.

    The choice is the process's: the last object made decides for all. Raises `OSError` where the library cannot be
    loaded, `UsageError` for a variant that this processor does not run.
    """

    def __init__(self, path: Path, variant: str | None = None) -> None:
        self._library = _loaded(path)
        name = self._library.triforce_use(variant.encode() if variant else None)
        if name is None:
            raise UsageError(
                f"this processor does not run native kernels called {variant!r}: "
                f"unset {SWITCH} for the best it runs, or set it to 0 for PyTorch"
            )
        self.variant = str(name.decode())

    @property
    def num_threads(self) -> int:
        return int(self._library.triforce_threads())

    def attend(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        window: int | None = None,
        ancestors: Tensor | None = None,
        scales: Sequence[Tensor] = (),
    ) -> Tensor:
        """As `triforce.attention.reference.attend`, for what `serves_attention` says."""
        n, heads, dim = q.shape
        kv_heads, rows, _ = keys.shape
        assert serves_attention(q, keys, values), (q.shape, q.dtype, keys.shape, keys.dtype, keys.stride())
        assert rows >= n >= 1, (rows, n)
        assert window is None or window >= 1, window
        check_scales(scales, keys)
        if ancestors is not None:
            assert ancestors.shape == (n, n) and ancestors.dtype == torch.bool, (ancestors.shape, ancestors.dtype)
            ancestors = ancestors.contiguous()
        q = q.contiguous()
        out = floats(n, heads, dim)
        job = structs.Attend(
            q=at(q),
            keys=at(keys),
            values=at(values),
            key_scales=at(scales[0] if scales else None),
            value_scales=at(scales[1] if scales else None),
            ancestors=at(ancestors),
            out=at(out),
            rows=rows,
            head_stride=keys.stride(0),
            window=window or 0,
            n=n,
            heads=heads,
            kv_heads=kv_heads,
            dim=dim,
            type=ROW_TYPES[keys.dtype],
        )
        if self._library.triforce_attend(byref(job)):
            raise MemoryError("no memory for the partial results of attention")
        return out

    def rotate_and_store(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        table: tuple[Tensor, Tensor],
        keys: Tensor,
        values: Tensor,
        row: int,
        scales: Sequence[Tensor] = (),
    ) -> Tensor:
        """As `triforce.attention.reference.rotate_and_store`; `q`, `k` and `v` may be views of one row-wise product."""
        n, heads, dim = q.shape
        cos, sin = table
        check_new_rows(q, k, v, keys, values, row)
        check_table(table, n, dim)
        check_scales(scales, keys)
        out = floats(n, heads, dim)
        job = structs.Rotate(
            q=at(q),
            k=at(k),
            v=at(v),
            cos=at(cos),
            sin=at(sin),
            rotated=at(out),
            keys=at(keys),
            values=at(values),
            key_scales=at(scales[0] if scales else None),
            value_scales=at(scales[1] if scales else None),
            q_stride=q.stride(0),
            k_stride=k.stride(0),
            v_stride=v.stride(0),
            row=row,
            head_stride=keys.stride(0),
            n=n,
            heads=heads,
            kv_heads=len(keys),
            dim=dim,
            width=cos.shape[-1],
            type=ROW_TYPES[keys.dtype],
        )
        self._library.triforce_rotate_and_store(byref(job))
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
        job = structs.Linear(
            x=at(x),
            weights=at(weights),
            bias=at(bias),
            y=at(y),
            type=kind,
            n=n,
            accumulate=accumulate,
            in_=width,
            out=out,
            row_bytes=row_bytes,
            y_stride=y.stride(0),
        )
        self._library.triforce_linear(byref(job))

    def row_bytes(self, kind: int, width: int) -> int:
        """Bytes of a row of `width` weights in format `kind`, or -1 where rows of that width do not exist."""
        assert 0 <= kind < 2**31 and 0 <= width < 2**62, (kind, width)
        return int(self._library.triforce_row_bytes(kind, width))

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """RMS norm over the last dimension of `x` [..., dim] float32, times `weight` [dim]."""
        (dim,) = weight.shape
        assert x.shape[-1] == dim and x.dtype == weight.dtype == torch.float32, (x.shape, x.dtype, weight.dtype)
        assert dim > 0 and weight.is_contiguous(), weight.stride()
        x = x.contiguous()
        out = floats(*x.shape)
        self._library.triforce_rms_norm(at(x), at(weight), at(out), x.numel() // dim, dim, eps)
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up for `gate_up` [n, 2 * inner] float32, gates first."""
        n, double = gate_up.shape
        assert gate_up.is_contiguous() and gate_up.dtype == torch.float32, (gate_up.stride(), gate_up.dtype)
        assert double % 2 == 0, gate_up.shape
        out = floats(n, double // 2)
        self._library.triforce_silu_mul(at(gate_up), at(out), n, double // 2)
        return out

    def dequantise(self, weights: Tensor, kind: int, width: int) -> Tensor:
        """Rows of weights [rows, row_bytes] uint8 in format `kind` as floats [rows, width]."""
        rows, row_bytes = weights.shape
        assert weights.is_contiguous() and weights.dtype == torch.uint8, (weights.stride(), weights.dtype)
        assert row_bytes == self.row_bytes(kind, width), (kind, width, row_bytes)
        out = floats(rows, width)
        self._library.triforce_dequantise(kind, at(weights), at(out), rows, row_bytes, width)
        return out

    def score_chunks(self, queries: Tensor, means: Tensor, scales: Tensor) -> Tensor:
        """As `triforce.attention.chunks.score`, for what `serves_scores` says."""
        layers, n, heads, dim = queries.shape
        kv_heads, chunks = means.shape[1:3]
        assert serves_scores(queries, means), (queries.shape, queries.dtype, means.shape, means.stride())
        check_scales((scales, scales), means)
        queries = queries.contiguous()
        out = floats(layers, kv_heads, chunks)
        job = structs.Score(
            q=at(queries),
            means=at(means),
            scales=at(scales),
            scores=at(out),
            mean_stride=means.stride(1) // dim,
            chunks=chunks,
            layers=layers,
            n=n,
            heads=heads,
            kv_heads=kv_heads,
            dim=dim,
        )
        if self._library.triforce_score_chunks(byref(job)):
            raise MemoryError("no memory for the scores of chunks")
        return out

    def mean_chunks(
        self, keys: Tensor, key_scales: Tensor | None, chunk: int, begin: int, out: Sequence[Tensor]
    ) -> None:
        """As `triforce.attention.chunks.store_means`, for what `serves_means` says."""
        means, scales = out
        end = means.shape[2]
        assert keys.dim() == means.dim() == 4 and serves_means(keys), (keys.shape, keys.dtype, keys.stride())
        check_scales([key_scales] * 2 if key_scales is not None else (), keys)
        check_scales((scales, scales), means)
        assert means.shape[:2] == keys.shape[:2] and means.shape[3] == keys.shape[3], (means.shape, keys.shape)
        assert lies_by_head(means), means.stride()
        assert chunk >= 1 and 0 <= begin <= end and end * chunk <= keys.shape[2], (begin, end, chunk, keys.shape)
        job = structs.Mean(
            keys=at(keys),
            key_scales=at(key_scales),
            means=at(means),
            scales=at(scales),
            head_stride=keys.stride(1),
            mean_stride=means.stride(1) // means.shape[3],
            begin=begin,
            end=end,
            heads=keys.shape[0] * keys.shape[1],
            dim=keys.shape[3],
            chunk=chunk,
            type=ROW_TYPES[keys.dtype],
        )
        self._library.triforce_mean_chunks(byref(job))

    def gather_chunks(self, source: Tensor, chunks: Tensor, chunk: int, out: Tensor) -> None:
        """Copy chunks of `chunk` rows, by number [layers, kv_heads, count], to the first rows of `out`.

        `source` and `out` are [layers, kv_heads, rows, width] on the CPU, of one dtype.
        """
        layers, kv_heads, count = chunks.shape
        for rows in (source, out):
            assert rows.shape[:2] == (layers, kv_heads) and rows.device.type == "cpu", (rows.shape, rows.device)
            assert lies_by_head(rows), rows.stride()
        assert source.dtype == out.dtype and source.shape[3] == out.shape[3], (source.dtype, out.dtype)
        assert chunks.dtype == torch.int64 and chunks.is_contiguous(), (chunks.dtype, chunks.stride())
        assert chunk >= 1 and count * chunk <= out.shape[2], (count, chunk, out.shape)
        assert count == 0 or (chunks.min() >= 0 and int(chunks.max() + 1) * chunk <= source.shape[2]), source.shape
        size = source.element_size()
        job = structs.Gather(
            from_=at(source),
            to=at(out),
            chunks=at(chunks),
            from_stride=source.stride(1) * size,
            to_stride=out.stride(1) * size,
            chunk_bytes=chunk * source.shape[3] * size,
            count=count,
            heads=layers * kv_heads,
        )
        self._library.triforce_gather_chunks(byref(job))

    def forward(self, model: structs.Model, rows: structs.CacheRows, x: Tensor, out: Tensor) -> None:
        """All layers of a decoder; `triforce.models.native_pass` makes and checks the arguments."""
        if self._library.triforce_forward(byref(model), byref(rows), at(x), at(out), len(x)):
            raise MemoryError("no memory for the activations of a pass")


def floats(*shape: int) -> Tensor:
    """Memory for C to fill: float32 on the CPU, whatever PyTorch's defaults are."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


@lru_cache(maxsize=1)
def kernels() -> Kernels | None:
    """The native kernels, or None where TRIFORCE_NATIVE=0 turns them off or `why_missing` says what else is wrong.

    Raises `UsageError` where TRIFORCE_NATIVE names kernels that this processor does not run.
    """
    wanted, path = os.environ.get(SWITCH), _built()
    if wanted == "0" or not path:
        return None
    try:
        return Kernels(path, wanted)
    except OSError:
        return None


def why_missing() -> str:
    """Why `kernels` gives None, and the remedy."""
    path = _built()
    if not path:
        return "native kernels were not built: install a C compiler, then triforce again"
    if os.environ.get(SWITCH) != "0":
        try:
            Kernels(path)
        except OSError as error:
            return f"native kernels cannot be loaded ({error}): install triforce again"
    return f"native kernels are turned off by {SWITCH}=0"


def _built() -> Path | None:
    """The library for this interpreter: an editable install may hold one for each Python that built it."""
    paths = (Path(__file__).parent / f"_kernels{suffix}" for suffix in EXTENSION_SUFFIXES)
    return next((path for path in paths if path.exists()), None)


def _loaded(path: Path) -> ctypes.CDLL:
    """The library, its functions typed. Raises `OSError` where it cannot be loaded or its structs are others."""
    library = ctypes.CDLL(str(path))  # PyTorch is imported by now, so both share one OpenMP runtime and its threads
    try:
        for name, (result, arguments) in structs.SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
    except AttributeError as error:
        raise OSError(f"{path.name} is of another version") from error
    if tuple(library.triforce_size_of(which) for which in range(len(structs.SIZES))) != structs.SIZES:
        raise OSError(f"{path.name} is of another version")
    return library
