"""The matrices and norms of a decoder, fused, and how they are gathered from a checkpoint of any format.

Knows nothing of files: a `WeightSource` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from triforce.models.config import ModelConfig
from triforce.models.family import WeightNames
from triforce.models.matrix import KINDS, DenseMatrix, Filed, FiledMatrix, Matrix
from triforce.native import kernels


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Norms are [hidden], or [head_dim] for those of queries and keys."""

    attention_norm: Tensor
    qkv: Matrix
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Matrix
    mlp_norm: Tensor
    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True)
class Weights:
    """All of a decoder, on one device; `dtype` is what activations are computed in."""

    embedding: Matrix  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [hidden]
    head: Matrix  # [vocab, hidden]; the embedding itself when tied
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Placement:
    """Where weights go and in what form: `dtype` None keeps what the file has, where native kernels can use it."""

    device: torch.device
    dtype: torch.dtype | None = None

    @property
    def compute_dtype(self) -> torch.dtype:
        """What activations, norms and biases are in: float32 beside native kernels, which widen each weight to it."""
        if self.native:
            return torch.float32
        return self.dtype or (torch.float32 if self.device.type == "cpu" else torch.bfloat16)

    @property
    def native(self) -> bool:
        return self.device.type == "cpu" and kernels() is not None


class WeightSource(Protocol):
    """A checkpoint being read."""

    names: WeightNames

    def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """The tensor that the checkpoint calls `name`, on the CPU. Raises `ModelError` unless it has that shape."""
        ...

    def read_filed(self, name: str, shape: tuple[int, ...]) -> Filed:
        """The matrix `name` as it lies in the file. Raises `ModelError` unless it has that shape."""
        ...


def gather(config: ModelConfig, source: WeightSource, placement: Placement) -> Weights:
    """Read every tensor that `config` calls for, fused, into place. Raises `ModelError`."""
    reader = _Reader(source, placement, None)
    table = (("embedding", config.vocab_size),)
    embedding = reader.matrix(table, config.hidden_size)
    layers = tuple(_gather_layer(config, _Reader(source, placement, layer)) for layer in range(config.num_layers))
    norm = reader.vector("norm", config.hidden_size)
    head = embedding if config.tied_embeddings else reader.matrix((("head", config.vocab_size),), config.hidden_size)
    return Weights(embedding, layers, norm, head, placement.compute_dtype, placement.device)


def _gather_layer(config: ModelConfig, reader: _Reader) -> LayerWeights:
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return LayerWeights(
        attention_norm=reader.vector("attention_norm", hidden),
        qkv=reader.matrix((("q", heads), ("k", kv_heads), ("v", kv_heads)), hidden, config.qkv_bias),
        q_norm=reader.vector("q_norm", config.head_dim) if config.qk_norm else None,
        k_norm=reader.vector("k_norm", config.head_dim) if config.qk_norm else None,
        output=reader.matrix((("output", hidden),), heads, config.output_bias),
        mlp_norm=reader.vector("mlp_norm", hidden),
        gate_up=reader.matrix((("gate", inner), ("up", inner)), hidden, config.mlp_bias),
        down=reader.matrix((("down", hidden),), inner, config.mlp_bias),
    )


class _Reader:
    """Reads one layer by our own names, into place."""

    def __init__(self, source: WeightSource, placement: Placement, layer: int | None) -> None:
        self._source = source
        self._placement = placement
        self._layer = layer

    def vector(self, name: str, size: int) -> Tensor:
        return self._read(f"{self._name(name)}.weight", (size,))

    def matrix(self, parts: tuple[tuple[str, int], ...], width: int, biased: bool = False) -> Matrix:
        """The matrices `parts` (name, rows), all `width` wide, as one."""
        bias = torch.cat([self._read(f"{self._name(name)}.bias", (rows,)) for name, rows in parts]) if biased else None
        native = kernels() if self._placement.native else None
        if native and native.row_bytes(KINDS[torch.float32], width) > 0:
            return FiledMatrix(native, [self._filed(name, rows, width) for name, rows in parts], width, bias)
        weight = torch.cat([self._read(f"{self._name(name)}.weight", (rows, width)) for name, rows in parts])
        return DenseMatrix(weight, bias)

    def _filed(self, name: str, rows: int, width: int) -> Filed:
        name, dtype = f"{self._name(name)}.weight", self._placement.dtype
        if dtype is None:
            return self._source.read_filed(name, (rows, width))
        return filed(self._source.read(name, (rows, width), dtype))

    def _read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._source.read(name, shape, self._placement.compute_dtype).to(self._placement.device)

    def _name(self, name: str) -> str:
        return self._source.names[name].format(self._layer)


def filed(weight: Tensor) -> Filed:
    """A plain tensor [out, in] as the bytes that native kernels read."""
    return Filed(weight.contiguous().view(torch.uint8), KINDS[weight.dtype])
