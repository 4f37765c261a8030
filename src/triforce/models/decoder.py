"""One decoder-only transformer for every family: Llama's layout with optional biases, q/k norms and tied embeddings.

Inference only. The caches are arguments and do all of the attention, RoPE included; this file never sees a position.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear, rms_norm, silu

from triforce.caches.base import CacheShape, Segment
from triforce.models.config import ModelConfig
from triforce.models.weights import LayerWeights, Weights


class Decoder:
    """The weights of one model and the pass through them. `cache_shape` is what a cache for it must be made of."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config = config
        self.dtype = weights.embedding.dtype
        self.device = weights.embedding.device
        self.cache_shape = CacheShape(
            config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim, config.sliding_window
        )
        self._weights = weights

    def __call__(self, tokens: Tensor, segments: Sequence[Segment]) -> Tensor:
        """Hidden states [T, hidden], after the final norm, of `tokens` [T] int64, which `segments` share in order.

        Every layer of every segment's cache attends once; closing the pass with `advance` is left to the caller.
        """
        assert sum(segment.num_tokens for segment in segments) == len(tokens), (segments, len(tokens))
        weights = self._weights
        x = embedding(tokens, weights.embedding)  # [T, hidden], updated in place from here on
        for index, layer in enumerate(weights.layers):
            self._add_attention(x, index, layer, segments)
            self._add_mlp(x, layer)
        return self._norm(x, weights.norm)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocab] float32 of hidden states [n, hidden]."""
        return linear(hidden, self._weights.head).float()

    def _add_attention(self, x: Tensor, index: int, layer: LayerWeights, segments: Sequence[Segment]) -> None:
        heads, kv_heads = self.config.num_heads, self.config.num_kv_heads
        qkv = _affine(self._norm(x, layer.attention_norm), layer.qkv, layer.qkv_bias)
        q, k, v = qkv.view(len(x), -1, self.config.head_dim).split_with_sizes(
            (heads, kv_heads, kv_heads), 1
        )  # [T, heads, dim]
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        if len(segments) == 1:
            attended = segments[0].cache.attend(index, q, k, v)
        else:
            sizes = [segment.num_tokens for segment in segments]
            shares = zip(segments, *(rows.split_with_sizes(sizes) for rows in (q, k, v)), strict=True)
            attended = torch.cat([segment.cache.attend(index, *rows) for segment, *rows in shares])
        if layer.output_bias is not None:
            x += layer.output_bias
        x.addmm_(attended.reshape(len(x), -1), layer.output)

    def _add_mlp(self, x: Tensor, layer: LayerWeights) -> None:
        gate_up = _affine(self._norm(x, layer.mlp_norm), layer.gate_up, layer.gate_up_bias)
        gate, up = gate_up.chunk(2, -1)
        if layer.down_bias is not None:
            x += layer.down_bias
        x.addmm_(silu(gate).mul_(up), layer.down)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight.shape, weight, self.config.norm_eps)  # in float32 whatever the dtype


def _affine(x: Tensor, matrix: Tensor, bias: Tensor | None) -> Tensor:
    return torch.mm(x, matrix) if bias is None else torch.addmm(bias, x, matrix)
