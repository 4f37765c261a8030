"""A pass over few tokens in one native call: a decoder's weights as C reads them. Knows nothing of files or caches.

The Python of a pass layer by layer costs milliseconds, as much as the arithmetic of a small model over a sparse cache.
"""

from __future__ import annotations

import torch
from torch import Tensor

from triforce.caches.base import Rows
from triforce.models.config import ModelConfig
from triforce.models.matrix import FiledMatrix, Matrix
from triforce.models.weights import LayerWeights, Weights
from triforce.native import (
    NARROW,
    ROW_TYPES,
    Kernels,
    check_scales,
    check_table,
    floats,
    serves_attention,
    serves_head,
    structs,
)
from triforce.native.structs import at


class NativePass:
    """All layers and the final norm of one model, for at most `NARROW` tokens of one sequence."""

    def __init__(self, kernels: Kernels, config: ModelConfig, weights: Weights) -> None:
        self._kernels = kernels
        self._config = config
        self._weights = weights  # what the pointers point into
        self._layers = (structs.Layer * config.num_layers)(*map(_layer, weights.layers))
        self._model = structs.Model(
            layers=self._layers,
            norm=at(weights.norm),
            hidden=config.hidden_size,
            inner=config.intermediate_size,
            num_layers=config.num_layers,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            dim=config.head_dim,
            eps=config.norm_eps,
        )

    @staticmethod
    def serves(config: ModelConfig, weights: Weights) -> bool:
        """Whether native attention takes the heads, and every matrix lies as the native kernels read it."""
        return serves_head(config.head_dim) and all(
            isinstance(matrix, FiledMatrix) and len(matrix.parts) <= structs.MOST_PARTS
            for layer in weights.layers
            for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down)
        )

    def __call__(self, x: Tensor, rows: Rows) -> Tensor | None:
        """Hidden states [n, hidden] after the final norm of embeddings `x` [n, hidden], which are overwritten.

        Fills the new rows and `rows.queries`. None, and nothing done, where the kernels do not serve these shapes.
        """
        if len(x) > NARROW or not serves_attention(rows.queries[0], rows.keys[0], rows.values[0]):
            return None
        self._check(x, rows)
        out = floats(*x.shape)
        self._kernels.forward(self._model, _cache_rows(rows), x, out)
        return out

    def _check(self, x: Tensor, rows: Rows) -> None:
        """Assert what `serves_attention` leaves open."""
        n, config, keys, queries = len(x), self._config, rows.keys, rows.queries
        assert x.shape == (n, config.hidden_size) and x.dtype == torch.float32, (x.shape, x.dtype)
        assert x.is_contiguous(), x.stride()
        assert queries.shape == (config.num_layers, n, config.num_heads, config.head_dim), queries.shape
        assert queries.is_contiguous(), queries.stride()
        assert keys.shape[:2] == (config.num_layers, config.num_kv_heads), keys.shape
        assert keys.shape == rows.values.shape, (keys.shape, rows.values.shape)
        assert keys.stride() == rows.values.stride(), (keys.stride(), rows.values.stride())
        assert 0 <= rows.row <= keys.shape[2] - n, (rows.row, n, keys.shape)
        assert rows.window is None or rows.window >= 1, rows.window
        check_scales(rows.scales, keys)
        check_table(rows.table, n, config.head_dim)


def _cache_rows(rows: Rows) -> structs.CacheRows:
    cos, sin = rows.table
    return structs.CacheRows(
        keys=at(rows.keys),
        values=at(rows.values),
        key_scales=at(rows.scales[0] if rows.scales else None),
        value_scales=at(rows.scales[1] if rows.scales else None),
        queries=at(rows.queries),
        cos=at(cos),
        sin=at(sin),
        layer_stride=rows.keys.stride(0),
        head_stride=rows.keys.stride(1),
        row=rows.row,
        window=rows.window or 0,
        width=cos.shape[-1],
        type=ROW_TYPES[rows.keys.dtype],
    )


def _layer(weights: LayerWeights) -> structs.Layer:
    norms = (weights.attention_norm, weights.q_norm, weights.k_norm, weights.mlp_norm)
    assert all(norm is None or (norm.dtype == torch.float32 and norm.is_contiguous()) for norm in norms)
    return structs.Layer(
        attention_norm=at(weights.attention_norm),
        q_norm=at(weights.q_norm),
        k_norm=at(weights.k_norm),
        mlp_norm=at(weights.mlp_norm),
        qkv=_matrix(weights.qkv),
        output=_matrix(weights.output),
        gate_up=_matrix(weights.gate_up),
        down=_matrix(weights.down),
    )


def _matrix(matrix: Matrix) -> structs.Matrix:
    assert isinstance(matrix, FiledMatrix), matrix
    assert matrix.bias is None or (matrix.bias.dtype == torch.float32 and matrix.bias.is_contiguous()), matrix.bias
    parts = [
        structs.Part(weights=at(part.weights), out=len(part.weights), row_bytes=part.weights.shape[1], type=part.kind)
        for part in matrix.parts
    ]
    return structs.Matrix(
        parts=(structs.Part * structs.MOST_PARTS)(*parts),
        bias=at(matrix.bias),
        in_=matrix.width,
        out=matrix.out,
        num_parts=len(parts),
    )
