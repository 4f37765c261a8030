"""From logits to a law, and from a law to a token. The one place where sampling controls are applied, for every level.

A law is a row over the vocabulary that sums to 1, in float32. Greedy is the one-hot law of the best token.
"""

from __future__ import annotations

import torch
from torch import Tensor

from triforce.config import SamplingParams

_NUCLEUS_CANDIDATES = 1024  # top-p sorts only this many tokens first; the whole vocabulary where they do not suffice


class Sampler:
    """Sampling controls with their own stream of random numbers; the same seed gives the same stream."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._generator = torch.Generator()
        if params.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(params.seed)

    def laws(self, logits: Tensor) -> Tensor:
        """Laws [n, vocab] of `logits` [n, vocab]: temperature, then top-k, top-p and min-p, in this order."""
        logits = logits.to("cpu", torch.float32)
        params = self.params
        if params.temperature == 0.0:
            return one_hot(logits.argmax(-1), logits.shape[-1])
        below_best = logits - logits.amax(-1, keepdim=True)  # so that a tiny temperature cannot overflow
        laws = torch.softmax(below_best / params.temperature, -1)
        if 0 < params.top_k < laws.shape[-1]:
            laws = _keep_at_least(laws, laws.topk(params.top_k, -1).values[:, -1:])
        if params.top_p < 1.0:
            laws = _keep_at_least(laws, _nucleus_threshold(laws, params.top_p))
        if params.min_p > 0.0:
            laws = _keep_at_least(laws, laws.amax(-1, keepdim=True) * params.min_p)
        return laws

    def draw(self, law: Tensor) -> int:
        """A token from `law` [vocab], by inversion of its cumulative sum."""
        cumulative = law.double().cumsum(0)
        u = torch.rand((), dtype=torch.float64, generator=self._generator) * cumulative[-1]
        # The first token whose cumulative mass exceeds u has mass of its own, so a token of law 0 is never drawn.
        return int(torch.searchsorted(cumulative, u, right=True))

    def uniforms(self, n: int) -> Tensor:
        """`n` fresh numbers in [0, 1), float64."""
        return torch.rand(n, dtype=torch.float64, generator=self._generator)


def one_hot(tokens: Tensor, vocab_size: int) -> Tensor:
    """Laws [n, vocab] that give all mass to `tokens` [n]."""
    laws = torch.zeros(len(tokens), vocab_size, dtype=torch.float32)
    return laws.scatter_(1, tokens[:, None], 1.0)


def _keep_at_least(laws: Tensor, threshold: Tensor) -> Tensor:
    """Drop tokens below `threshold` [n, 1] and renormalise; a rule by value, so ties never depend on an order."""
    kept = torch.where(laws >= threshold, laws, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def _nucleus_threshold(laws: Tensor, top_p: float) -> Tensor:
    """The smallest probability [n, 1] inside the nucleus: the fewest best tokens whose mass reaches `top_p`."""
    best = laws.topk(min(_NUCLEUS_CANDIDATES, laws.shape[-1]), -1).values
    before = best.double().cumsum(-1) - best
    if bool((before[:, -1] + best[:, -1] < top_p).any()) and best.shape[-1] < laws.shape[-1]:
        best = laws.sort(-1, descending=True).values
        before = best.double().cumsum(-1) - best
    last = (before < top_p).sum(-1, keepdim=True) - 1
    return best.gather(-1, last)
