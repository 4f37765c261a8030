"""The algorithm: a drafter proposes, a runner verifies, the rejection rule keeps the runner's law.

A runner sped up by a drafter is itself a drafter (see `triforce.drafters.cascade`), so the three levels of TriForce
(arXiv 2404.11912, section 4) are one function applied twice, and plain decoding is the same function with an empty
draft. Knows nothing of models, caches or text.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from triforce.sampling import Sampler
from triforce.statistics import LevelStats
from triforce.tokens import TokenIds, extend


@dataclass(frozen=True)
class Draft:
    """`tokens` [n] with `laws` [n, vocab], the law each token was drawn from, and the level that each came from."""

    tokens: list[int]
    laws: Tensor
    levels: list[str]


@dataclass(frozen=True)
class Verdict:
    """The tokens a verifier emits, with its own laws [len(tokens), vocab]: accepted ones, then one more of its own.

    `logits` [len(tokens), vocab] are the raw ones behind these laws, where they came from a runner.
    The one more is missing where the verifier's law is empty: its controls rule out every token there.
    """

    tokens: list[int]
    laws: Tensor
    levels: list[str]
    num_accepted: int
    logits: Tensor | None = None


class Runner(Protocol):
    """One model reading one cache; a level that verifies."""

    stats: LevelStats

    def logits(self, tokens: TokenIds, num_rows: int) -> Tensor:
        """Logits [num_rows, vocab] that follow each of the last `num_rows` of `tokens`; the cache catches up first."""
        ...


class Drafter(Protocol):
    """A level that proposes."""

    @property
    def stats(self) -> LevelStats:
        """The books of what proposed last."""
        ...

    def propose(self, tokens: TokenIds, depth: int, sampler: Sampler) -> Draft | None:
        """About `depth` tokens to follow `tokens`, or None; whether to propose one may depend on those before it."""
        ...


def verify(draft: Draft | None, laws: Tensor, level: str, sampler: Sampler) -> Verdict:
    """Keep the longest acceptable prefix of `draft` and add one token, so that every token follows `laws` exactly.

    `laws` [n + 1, vocab] are the verifier's, one per draft token and one after the last. Token x with draft law d and
    verifier law v is accepted with probability min(1, v(x) / d(x)); at the first rejection one token is drawn from
    norm(max(0, v - d)); if none is rejected, one from the last law (Leviathan et al., arXiv 2211.17192, theorem 1).
    """
    if draft is None:
        return _verdict([], [], laws[0], laws, level, sampler)
    n = len(draft.tokens)
    assert len(laws) == n + 1, (len(laws), n)
    index = torch.tensor(draft.tokens, dtype=torch.long)[:, None]  # [n, 1]
    v, d = laws[:n].gather(1, index)[:, 0], draft.laws.gather(1, index)[:, 0]
    accepted = sampler.uniforms(n) * d < v  # strict: a token with v = 0 never passes
    k = int(accepted.int().cumprod(0).sum())
    last = laws[k]
    if k < n:
        residual = (last - draft.laws[k]).clamp(min=0.0)
        mass = residual.sum()
        last = residual / mass if mass > 0 else last  # an empty residual can only be rounding, or an empty law
    return _verdict(draft.tokens[:k], draft.levels[:k], last, laws, level, sampler)


def _verdict(
    accepted: list[int], levels: list[str], last: Tensor, laws: Tensor, level: str, sampler: Sampler
) -> Verdict:
    """`accepted` and one token more, drawn from `last`."""
    k, token = len(accepted), sampler.draw(last)
    if token is None:
        return Verdict(accepted, laws[:k], levels, k)
    return Verdict([*accepted, token], laws[: k + 1], [*levels, level], k)


def step(tokens: TokenIds, runner: Runner, drafter: Drafter, depth: int, sampler: Sampler) -> Verdict:
    """Draft, verify, account: the tokens to append to `tokens`, each following the runner's law; none at a dead end."""
    draft = drafter.propose(tokens, depth, sampler)
    drafted = draft.tokens if draft else []
    read = extend(tokens, drafted)
    logits = runner.logits(read, len(drafted) + 1)
    verdict = verify(draft, sampler.laws(logits, read), runner.stats.name, sampler)
    drafter.stats.count(len(drafted), verdict.num_accepted)
    return replace(verdict, logits=logits[: len(verdict.tokens)])
