"""One decoder-only transformer for every family: Llama's layout with optional biases, q/k norms and tied embeddings.

Inference only. The caches are arguments and do all of the attention, RoPE included; this file never sees a position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from triforce.caches.base import CacheShape, Segment
from triforce.models.config import ModelConfig
from triforce.models.fingerprint import fingerprint
from triforce.models.native_pass import NativePass
from triforce.models.weights import LayerWeights, Weights
from triforce.native import NARROW, kernels


class Decoder:
    """The weights of one model and the pass through them. `cache_shape` is what a cache for it must be made of."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.dtype = weights.dtype
        self.device = weights.device
        self.cache_shape = CacheShape(
            config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim, config.sliding_window
        )
        self._weights = weights
        self._native = kernels() if weights.device.type == "cpu" and weights.dtype == torch.float32 else None
        serves = self._native and NativePass.serves(config, weights)
        self._native_pass = NativePass(self._native, config, weights) if self._native and serves else None

    @property
    def reads_half_rows(self) -> bool:
        """Whether rows of a cache in float16 are read at full speed and computed with in float32."""
        return self._native_pass is not None

    @cached_property
    def fingerprint(self) -> str:
        """What tells these weights from others: 64 hexadecimal digits."""
        return fingerprint(self.config, self._weights)

    def __call__(self, tokens: Tensor, segments: Sequence[Segment]) -> Tensor:
        """Hidden states [wanted, hidden], after the final norm, of `tokens` [T] int64, which `segments` share in order.

        Only of those that the segments want: in a pass of many tokens the last layer stops, for the others, at the
        queries, keys and values that its cache keeps. Every layer of every segment's cache attends once; closing the
        pass with `advance` is left to the caller.
        """
        assert sum(segment.num_tokens for segment in segments) == len(tokens), (segments, len(tokens))
        weights = self._weights
        x = weights.embedding.rows(tokens)  # [T, hidden], updated in place from here on
        if self._native_pass and len(segments) == 1 and len(tokens) <= NARROW:
            rows = segments[0].cache.rows(len(tokens), self.dtype)
            hidden = self._native_pass(x, rows) if rows else None
            if hidden is not None:
                return _wanted(hidden, segments)
        for index, layer in enumerate(weights.layers):
            last = index == len(weights.layers) - 1
            attended = self._attend(x, index, layer, segments, last)
            if last:
                x = _wanted(x, segments)
            if len(x):  # kernels take one row at least
                layer.output.add_to(x, attended)
                self._add_mlp(x, layer)
        return self._norm(x, weights.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocab] float32 of hidden states [n, hidden]."""
        return self._weights.head.apply(hidden).float()

    def _attend(self, x: Tensor, index: int, layer: LayerWeights, segments: Sequence[Segment], last: bool) -> Tensor:
        """Rows [T, heads * dim], or [wanted, heads * dim] of the last layer, before the output projection."""
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        qkv = layer.qkv.apply(self._norm(x, layer.attention_norm)).view(len(x), -1, self.config.head_dim)
        q, k, v = qkv.split_with_sizes((heads, kv_heads, kv_heads), 1)  # [T, heads, dim]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        attended = [
            segment.cache.attend(index, q[own], k[own], v[own], segment.wanted if last else segment.num_tokens)
            for segment, own in _shares(segments)
        ]
        return _joined(attended).flatten(1)

    def _add_mlp(self, x: Tensor, layer: LayerWeights) -> None:
        gate_up = layer.gate_up.apply(self._norm(x, layer.mlp_norm))
        layer.down.add_to(x, self._gate(gate_up))

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        if self._native:
            return self._native.rms_norm(x, weight, self.config.norm_eps)
        return rms_norm(x, weight.shape, weight, self.config.norm_eps)  # in float32 whatever the dtype

    def _gate(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up for [T, 2 * inner]."""
        if self._native:
            return self._native.silu_mul(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return silu(gate).mul_(up)


def _shares(segments: Sequence[Segment]) -> Iterator[tuple[Segment, slice]]:
    """Every segment and where its tokens stand in the batch."""
    start = 0
    for segment in segments:
        yield segment, slice(start, start + segment.num_tokens)
        start += segment.num_tokens


def _wanted(x: Tensor, segments: Sequence[Segment]) -> Tensor:
    """The rows [wanted, hidden] of all rows [T, hidden]."""
    return _joined([x[own.stop - segment.wanted : own.stop] for segment, own in _shares(segments)])


def _joined(rows: list[Tensor]) -> Tensor:
    return rows[0] if len(rows) == 1 else torch.cat(rows)
