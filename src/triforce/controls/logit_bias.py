"""A number added to the logits of chosen tokens; -inf bans one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from triforce.controls.base import Call
from triforce.errors import UsageError
from triforce.tokens import TokenIds


class LogitBias:
    """As OpenAI's `logit_bias`, and transformers' `SequenceBiasLogitsProcessor` for single tokens."""

    name = "logit_bias"

    def __init__(self, biases: Mapping[int, float] | Sequence[tuple[int, float]], call: Call) -> None:
        added = dict(biases)
        beyond = [token for token in added if token >= call.vocab_size]
        if beyond:
            raise UsageError(
                f"logit_bias names token {beyond[0]}, but the model's ids end at {call.vocab_size - 1}: leave it out"
            )
        self._ids = torch.tensor(list(added))
        self._biases = torch.tensor(list(added.values()), dtype=torch.float32)

    def apply(self, logits: Tensor, tokens: TokenIds) -> None:
        del tokens
        logits.index_add_(1, self._ids, self._biases.expand(len(logits), -1))
