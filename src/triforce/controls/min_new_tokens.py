"""The text does not end before it has so many tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from triforce.controls.base import Call, rows
from triforce.tokens import TokenIds


class MinNewTokens:
    """As transformers' `MinNewTokensLengthLogitsProcessor`, for every id that ends or stops a text."""

    name = "min_new_tokens"

    def __init__(self, least: int, call: Call) -> None:
        self._until = call.prompt_tokens + least
        self._ends = torch.tensor(call.end_token_ids, dtype=torch.long)

    def apply(self, logits: Tensor, tokens: TokenIds) -> None:
        for row, history in rows(logits, tokens):
            if len(history) < self._until:
                row[self._ends] = -torch.inf
