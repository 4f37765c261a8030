"""RoPE frequencies of a model, stretched for long contexts the way transformers and llama.cpp do.

Knows nothing of positions or of caches: a table of angles is made by `triforce.attention.rope`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from triforce.attention.rope import Rope
from triforce.models.config import ModelConfig, RopeScaling


def build_rope(config: ModelConfig, context_length: int | None = None) -> Rope:
    """The rotary embedding of `config` for a cache that may come to hold `context_length` rows.

    Only `dynamic` scaling depends on the length. It must stay fixed for a cache's life, since rows already rotated by
    other frequencies would no longer be a function of the tokens; None means the longest context the model serves.
    """
    scaling = config.rope_scaling
    plain = _frequencies(config.rope_theta, config.head_dim)
    if scaling is None:
        return Rope(plain)
    if scaling.kind == "linear":
        return Rope(plain / scaling.factor)
    if scaling.kind == "dynamic":
        return Rope(_dynamic(config, scaling, context_length or config.max_position))
    if scaling.kind == "yarn":
        return Rope(_yarn(config, scaling, plain), _attention_factor(scaling))
    if scaling.kind == "llama3":
        return Rope(_llama3(config, scaling, plain))
    assert scaling.kind == "divisors", scaling
    return Rope(plain / torch.tensor(scaling.divisors, dtype=torch.float64))


def _frequencies(theta: float, dim: int) -> Tensor:
    return theta ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)  # [dim / 2]


def _dynamic(config: ModelConfig, scaling: RopeScaling, context_length: int) -> Tensor:
    """NTK-aware: the base grows so that the slowest frequency spans `context_length`."""
    dim = config.head_dim
    stretch = scaling.factor * max(context_length / config.original_max_position, 1.0) - (scaling.factor - 1.0)
    return _frequencies(config.rope_theta * stretch ** (dim / (dim - 2)), dim)


def _llama3(config: ModelConfig, scaling: RopeScaling, plain: Tensor) -> Tensor:
    """Slow frequencies are interpolated, fast ones kept, those between blended."""
    turns = config.original_max_position * plain / (2 * math.pi)  # of each frequency within the original context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return plain * (kept + (1.0 - kept) / scaling.factor)


def _yarn(config: ModelConfig, scaling: RopeScaling, plain: Tensor) -> Tensor:
    """NTK-by-parts (arXiv 2309.00071, section 3.2), with bounds rounded outwards unless `truncate` is off."""
    dim, theta, original = config.head_dim, config.rope_theta, config.original_max_position

    def dimension(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # transformers' way around a division by zero
    interpolated = ((torch.arange(dim // 2, dtype=torch.float64) - low) / (high - low)).clamp(0.0, 1.0)
    return plain * (1.0 - interpolated) + plain / scaling.factor * interpolated


def _attention_factor(scaling: RopeScaling) -> float:
    """What multiplies cosine and sine (arXiv 2309.00071, equation 22)."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(scaling.factor) + 1.0 if scaling.factor > 1.0 else 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return scale(scaling.mscale) / scale(scaling.mscale_all_dim)
    return scale(1.0)
