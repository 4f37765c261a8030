"""The tensors of a decoder, fused, and how they are gathered from a checkpoint of any format.

Knows nothing of files: a `WeightSource` reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from triforce.models.config import ModelConfig
from triforce.models.family import WeightNames


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Matrices are [in, out], whichever way they lie in memory; biases and norms are [out]."""

    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Tensor
    output_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


@dataclass(frozen=True)
class Weights:
    """All tensors of a decoder, in one dtype on one device."""

    embedding: Tensor  # [vocab, hidden]
    layers: tuple[LayerWeights, ...]
    norm: Tensor  # [hidden]
    head: Tensor  # [vocab, hidden]; the embedding itself when tied


class WeightSource(Protocol):
    """A checkpoint being read."""

    names: WeightNames

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor that the checkpoint calls `name`, in the wanted dtype. Raises `ModelError` unless it is so."""
        ...


def gather(config: ModelConfig, source: WeightSource, device: torch.device) -> Weights:
    """Read every tensor that `config` calls for, fused, onto `device`. Raises `ModelError`."""
    table = (config.vocab_size, config.hidden_size)
    embedding = _Reader(source, None).weight("embedding", table).to(device)
    layers = tuple(_gather_layer(config, _Reader(source, layer), device) for layer in range(config.num_layers))
    norm = _Reader(source, None).weight("norm", (config.hidden_size,)).to(device)
    head = embedding if config.tied_embeddings else _Reader(source, None).weight("head", table).to(device)
    return Weights(embedding, layers, norm, head)


class _Reader:
    """Reads one layer by our own names."""

    def __init__(self, source: WeightSource, layer: int | None) -> None:
        self._source = source
        self._layer = layer

    def weight(self, name: str, shape: tuple[int, ...]) -> Tensor:
        return self._source.read(f"{self._source.names[name].format(self._layer)}.weight", shape)

    def bias(self, name: str, size: int) -> Tensor:
        return self._source.read(f"{self._source.names[name].format(self._layer)}.bias", (size,))


def _gather_layer(config: ModelConfig, reader: _Reader, device: torch.device) -> LayerWeights:
    hidden, inner = config.hidden_size, config.intermediate_size
    heads, kv_heads = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    qkv = (("q", heads), ("k", kv_heads), ("v", kv_heads))
    gate_up = (("gate", inner), ("up", inner))

    def fused(parts: tuple[tuple[str, int], ...]) -> Tensor:
        matrix = torch.cat([reader.weight(name, (rows, hidden)) for name, rows in parts]).to(device).t()
        # On the CPU one to three tokens pass through a widening matrix a third faster when it lies this way
        return matrix.contiguous() if device.type == "cpu" else matrix

    def biases(parts: tuple[tuple[str, int], ...], present: bool) -> Tensor | None:
        return torch.cat([reader.bias(name, rows) for name, rows in parts]).to(device) if present else None

    def norm(name: str, size: int, present: bool = True) -> Tensor | None:
        return reader.weight(name, (size,)).to(device) if present else None

    attention_norm, mlp_norm = norm("attention_norm", hidden), norm("mlp_norm", hidden)
    assert attention_norm is not None
    assert mlp_norm is not None
    return LayerWeights(
        attention_norm=attention_norm,
        qkv=fused(qkv),
        qkv_bias=biases(qkv, config.qkv_bias),
        q_norm=norm("q_norm", config.head_dim, config.qk_norm),
        k_norm=norm("k_norm", config.head_dim, config.qk_norm),
        output=reader.weight("output", (hidden, heads)).to(device).t(),
        output_bias=biases((("output", hidden),), config.output_bias),
        mlp_norm=mlp_norm,
        gate_up=fused(gate_up),
        gate_up_bias=biases(gate_up, config.mlp_bias),
        down=reader.weight("down", (hidden, inner)).to(device).t(),
        down_bias=biases((("down", hidden),), config.mlp_bias),
    )
