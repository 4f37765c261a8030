"""What tells one model from another: its architecture and a sample of every weight. Knows nothing of files.

The same checkpoint has the same fingerprint whether its weights are kept as filed or expanded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from triforce.models.config import ModelConfig
from triforce.models.weights import Weights

_ROWS = 4  # of each matrix


def fingerprint(config: ModelConfig, weights: Weights) -> str:
    """64 hexadecimal digits, equal for equal weights; settings of length and of stopping do not count.

    A model that was trained further differs nearly everywhere; a change of a few rows only may go unnoticed.
    """
    plain = replace(config, rope_scaling=None, max_position=0, original_max_position=0, eos_token_ids=())
    digest = hashlib.sha256(repr(plain).encode())
    for sample in _samples(weights):
        digest.update(sample.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _samples(weights: Weights) -> Iterator[Tensor]:
    yield weights.embedding.sample(_ROWS)
    yield weights.head.sample(_ROWS)
    norms = [weights.norm]
    for layer in weights.layers:
        for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down):
            yield matrix.sample(_ROWS)
        own = (layer.attention_norm, layer.q_norm, layer.k_norm, layer.mlp_norm)
        norms += [norm for norm in own if norm is not None]
    yield from (norm.float().cpu() for norm in norms)
