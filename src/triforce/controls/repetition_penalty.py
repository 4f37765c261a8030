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
            penalised = torch.where(row < 0, row * self._penalty, row / self._penalty)
            row.copy_(torch.where(counts > 0, penalised, row))
