"""From logits to a law, and from a law to a token. The one place where sampling controls are applied, for every level.

A law is a row over the vocabulary that sums to 1, in float32, or is empty (all 0) where the controls rule out every
token. Greedy is the one-hot law of the best token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from triforce.config import SamplingParams
from triforce.controls.base import Control
from triforce.errors import UsageError
from triforce.tokens import TokenIds

_CANDIDATES = 1024  # top-p and typical-p sort only this many tokens first; all of them where these do not suffice


class Sampler:
    """Sampling controls with their own stream of random numbers; the same seed gives the same stream.

    `controls` change the logits first, in their order (`triforce.controls`); each sees the tokens before its row.
    """

    def __init__(self, params: SamplingParams, controls: Sequence[Control] = ()) -> None:
        self.params = params
        self.controls = controls
        self._generator = torch.Generator()
        if params.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(params.seed)

    def laws(self, logits: Tensor, tokens: TokenIds) -> Tensor:
        """Laws [n, vocab] of `logits` [n, vocab]: controls, temperature, top-k, top-p, min-p, typical-p, in this order.

        `tokens` is the whole sequence (prompt, committed and drafted); each of its last n is followed by one row, so
        that row i has `tokens[: len(tokens) - n + 1 + i]` as its history.
        """
        assert len(logits) <= len(tokens), (len(logits), len(tokens))
        if not self.controls:
            return self._shaped(logits.to("cpu", torch.float32))
        logits = logits.to("cpu", torch.float32, copy=True)
        for control in self.controls:
            control.apply(logits, tokens)
        empty = logits.amax(-1, keepdim=True) == -torch.inf
        return self._shaped(logits.masked_fill_(empty, 0.0)).masked_fill_(empty, 0.0)

    def _shaped(self, logits: Tensor) -> Tensor:
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
        if params.typical_p < 1.0:
            laws = _keep_typical(laws, params.typical_p)
        return laws

    def draw(self, law: Tensor) -> int | None:
        """A token from `law` [vocab], by inversion of its cumulative sum; None from an empty law."""
        cumulative = law.double().cumsum(0)
        if cumulative[-1] == 0.0:
            return None
        u = torch.rand((), dtype=torch.float64, generator=self._generator) * cumulative[-1]
        # The first token whose cumulative mass exceeds u has mass of its own, so a token of law 0 is never drawn.
        return int(torch.searchsorted(cumulative, u, right=True))

    def dead_end(self, num_new: int) -> UsageError:
        """The mistake behind an empty law after `num_new` generated tokens."""
        names = [control.name for control in self.controls]
        said, remedy = ("leave", "relax one of them") if len(names) > 1 else ("leaves", "relax it")
        return UsageError(f"{' and '.join(names)} {said} no token possible after {num_new} new ones: {remedy}")

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
    best = laws.topk(min(_CANDIDATES, laws.shape[-1]), -1).values
    before = best.double().cumsum(-1) - best
    if bool((before[:, -1] + best[:, -1] < top_p).any()) and best.shape[-1] < laws.shape[-1]:
        best = laws.sort(-1, descending=True).values
        before = best.double().cumsum(-1) - best
    last = (before < top_p).sum(-1, keepdim=True) - 1
    return best.gather(-1, last)


def _keep_typical(laws: Tensor, mass: float) -> Tensor:
    """The fewest tokens whose surprise is nearest to its mean and whose mass reaches `mass` (arXiv 2202.00666)."""
    surprise = -laws.log()
    entropy = torch.where(laws > 0.0, laws * surprise, 0.0).sum(-1, keepdim=True)
    distance = (surprise - entropy).abs()  # infinite where the law is 0
    near, ids = distance.topk(min(_CANDIDATES, laws.shape[-1]), -1, largest=False)
    reached = laws.gather(-1, ids).double().cumsum(-1)
    if bool((reached[:, -1] < mass).any()) and near.shape[-1] < laws.shape[-1]:
        near, ids = distance.sort(-1)
        reached = laws.gather(-1, ids).double().cumsum(-1)
    last = (reached < mass).sum(-1, keepdim=True).clamp(max=near.shape[-1] - 1)
    kept = torch.where(distance <= near.gather(-1, last), laws, 0.0)
    return kept / kept.sum(-1, keepdim=True)
