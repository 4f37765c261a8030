"""Tokens become less likely once the generated text has said them."""

from __future__ import annotations

from torch import Tensor

from triforce.controls.base import Call
from triforce.controls.counts import TokenCounts
from triforce.tokens import TokenIds


class PresencePenalty:
    """As OpenAI and vLLM define it: the penalty once, however often, not for what only the prompt says."""

    name = "presence_penalty"

    def __init__(self, penalty: float, call: Call) -> None:
        self._penalty = penalty
        self._counts = TokenCounts(call.vocab_size, start=call.prompt_tokens)

    def apply(self, logits: Tensor, tokens: TokenIds) -> None:
        for row, counts in zip(logits, self._counts.rows(tokens, len(logits)), strict=True):
            row.sub_((counts > 0).to(row.dtype), alpha=self._penalty)
