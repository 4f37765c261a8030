"""Tokens that prompt or text have said become less likely by a factor (CTRL, arXiv 1909.05858, section 4.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from triforce.controls.base import Call
from triforce.controls.counts import TokenCounts
from triforce.tokens import TokenIds


class RepetitionPenalty:
    """As transformers' `RepetitionPenaltyLogitsProcessor`: positive logits are divided, negative ones multiplied."""

    name = "repetition_penalty"

    def __init__(self, penalty: float, call: Call) -> None:
        self._penalty = penalty
        self._counts = TokenCounts(call.vocab_size)

    def apply(self, logits: Tensor, tokens: TokenIds) -> None:
        for row, counts in zip(logits, self._counts.rows(tokens, len(logits)), strict=True):
            said = counts.nonzero()[:, 0]  # mostly a small part of the vocabulary
            logits_said = row[said]
            row[said] = torch.where(logits_said < 0, logits_said * self._penalty, logits_said / self._penalty)
