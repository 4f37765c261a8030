"""A pass over few tokens in one native call: a decoder's weights as C reads them. Knows nothing of files or caches.

The Python of a pass layer by layer costs milliseconds, as much as the arithmetic of a small model over a sparse cache.
"""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_int32, c_int64, c_void_p

import torch
from torch import Tensor

from triforce.caches.base import Rows
from triforce.models.config import ModelConfig
from triforce.models.matrix import FiledMatrix, Matrix
from triforce.models.weights import LayerWeights, Weights
from triforce.native import NARROW, ROW_TYPES, Kernels, serves_attention

_MOST_PARTS = 3


class _Part(ctypes.Structure):
    _fields_ = [("weights", c_void_p), ("out", c_int64), ("row_bytes", c_int64), ("type", c_int32)]


class _Matrix(ctypes.Structure):
    _fields_ = [
        ("parts", _Part * _MOST_PARTS),
        ("bias", c_void_p),
        ("in_", c_int64),
        ("out", c_int64),
        ("num_parts", c_int32),
    ]


class _Layer(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("attention_norm", "q_norm", "k_norm", "mlp_norm")),
        *((name, _Matrix) for name in ("qkv", "output", "gate_up", "down")),
    ]


class _Model(ctypes.Structure):
    _fields_ = [
        ("layers", ctypes.POINTER(_Layer)),
        ("norm", c_void_p),
        *((name, c_int64) for name in ("hidden", "inner")),
        *((name, c_int32) for name in ("num_layers", "heads", "kv_heads", "dim")),
        ("eps", c_float),
    ]


class _Rows(ctypes.Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("keys", "values", "queries", "cos", "sin")),
        *((name, c_int64) for name in ("layer_stride", "head_stride", "row", "window")),
        *((name, c_int32) for name in ("width", "type")),
    ]


class NativePass:
    """All layers and the final norm of one model, for at most `NARROW` tokens of one sequence."""

    def __init__(self, kernels: Kernels, config: ModelConfig, weights: Weights) -> None:
        self._kernels = kernels
        self._config = config
        self._weights = weights  # what the pointers point into
        self._layers = (_Layer * config.num_layers)(*map(_layer, weights.layers))
        self._model = _Model(
            self._layers,
            weights.norm.data_ptr(),
            config.hidden_size,
            config.intermediate_size,
            config.num_layers,
            config.num_heads,
            config.num_kv_heads,
            config.head_dim,
            config.norm_eps,
        )

    @staticmethod
    def serves(weights: Weights) -> bool:
        """Whether every matrix lies as the native kernels read it."""
        return all(
            isinstance(matrix, FiledMatrix) and len(matrix.parts) <= _MOST_PARTS
            for layer in weights.layers
            for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )

    def __call__(self, x: Tensor, rows: Rows) -> Tensor | None:
        """Hidden states [n, hidden] after the final norm of embeddings `x` [n, hidden], which are overwritten.

        Fills the new rows and `rows.queries`. None, and nothing done, where the kernels do not serve these shapes.
        """
        n, config = len(x), self._config
        queries = rows.queries
        if n > NARROW or not serves_attention(queries[0], rows.keys[0], rows.values[0]):
            return None
        cos, sin = rows.table
        assert x.is_contiguous(), x.stride()
        assert queries.shape == (config.num_layers, n, config.num_heads, config.head_dim), queries.shape
        assert queries.is_contiguous(), queries.stride()
        assert rows.keys.shape[0] == config.num_layers, rows.keys.shape
        assert rows.keys.shape[1] == config.num_kv_heads, rows.keys.shape
        assert rows.keys.stride() == rows.values.stride(), (rows.keys.stride(), rows.values.stride())
        assert rows.row + n <= rows.keys.shape[2], (rows.row, n, rows.keys.shape)
        assert cos.shape == sin.shape == (n, 1, cos.shape[-1]), (cos.shape, sin.shape)
        assert cos.dtype == sin.dtype == torch.float32, (cos.dtype, sin.dtype)
        out = torch.empty_like(x)
        self._kernels.forward(ctypes.byref(self._model), ctypes.byref(_pointers(rows)), x, out)
        return out


def _pointers(rows: Rows) -> _Rows:
    cos, sin = rows.table
    return _Rows(
        rows.keys.data_ptr(),
        rows.values.data_ptr(),
        rows.queries.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        rows.keys.stride(0),
        rows.keys.stride(1),
        rows.row,
        rows.window or 0,
        cos.shape[-1],
        ROW_TYPES[rows.keys.dtype],
    )


def _layer(weights: LayerWeights) -> _Layer:
    return _Layer(
        weights.attention_norm.data_ptr(),
        weights.q_norm.data_ptr() if weights.q_norm is not None else None,
        weights.k_norm.data_ptr() if weights.k_norm is not None else None,
        weights.mlp_norm.data_ptr(),
        _matrix(weights.qkv),
        _matrix(weights.output),
        _matrix(weights.gate_up),
        _matrix(weights.down),
    )


def _matrix(matrix: Matrix) -> _Matrix:
    assert isinstance(matrix, FiledMatrix), matrix
    parts = [_Part(part.weights.data_ptr(), *part.weights.shape, part.kind) for part in matrix.parts]
    bias = matrix.bias.data_ptr() if matrix.bias is not None else None
    return _Matrix((_Part * _MOST_PARTS)(*parts), bias, matrix.width, matrix.out, len(parts))
