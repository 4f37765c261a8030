"""Every way of stacking drafters on a table model, by name: what the law is tested over."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tables import TableRunner, random_table
from torch import Tensor

from triforce.config import SamplingParams
from triforce.drafters.cascade import Cascade
from triforce.drafters.lookup import Lookup
from triforce.drafters.model import ModelDrafter
from triforce.drafters.none import NoDrafter
from triforce.sampling import Sampler
from triforce.speculative import Drafter
from triforce.tokens import TokenIds

VOCAB = 5
PREFIX: TokenIds = np.array([3, 1, 4, 1, 2, 0, 1], dtype=np.int32)  # lookup finds the 1 again
SAMPLINGS: dict[str, SamplingParams] = {
    "T=1": SamplingParams(temperature=1.0, seed=11),
    "T=0.6 p=0.9": SamplingParams(temperature=0.6, top_p=0.9, seed=12),
    "T=0": SamplingParams(temperature=0.0, seed=13),
}


def blended(own: int, weight: float) -> Tensor:
    """A table that shares `weight` of the target's logits, the rest its own: accepted often and rejected often."""
    return weight * random_table(VOCAB, 1) + (1 - weight) * random_table(VOCAB, own)


def target() -> TableRunner:
    return TableRunner("target", random_table(VOCAB, 1))


def middle() -> TableRunner:
    return TableRunner("sparse", blended(2, 0.6))


def small() -> ModelDrafter:
    return ModelDrafter(TableRunner("draft", blended(3, 0.3)), VOCAB)


def smaller() -> ModelDrafter:
    """One whose vocabulary lacks the target's last token."""
    return ModelDrafter(TableRunner("draft", blended(3, 0.3)[:4, :4, :4]), VOCAB)


def lookup() -> Lookup:
    return Lookup(VOCAB, min_match=1)


def fourth() -> Cascade:
    return Cascade(TableRunner("lower", blended(4, 0.5)), small(), 1)


COMPOSITIONS: dict[str, Callable[[int], Drafter]] = {
    "ar": lambda _: NoDrafter(),
    "lookup": lambda _: lookup(),
    "draft": lambda _: small(),
    "smaller vocabulary": lambda _: smaller(),
    "retrieval": lambda gamma1: Cascade(middle(), NoDrafter(), gamma1),
    "model, middle": lambda gamma1: Cascade(middle(), small(), gamma1),
    "lookup, middle": lambda gamma1: Cascade(middle(), lookup(), gamma1),
    "model, lower, middle": lambda gamma1: Cascade(middle(), fourth(), gamma1),
}


def sampler(sampling: str) -> Sampler:
    return Sampler(SAMPLINGS[sampling])
