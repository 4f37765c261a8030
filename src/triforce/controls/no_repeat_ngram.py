"""No sequence of n tokens occurs twice, in prompt and text together."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from triforce.controls.base import rows
from triforce.tokens import TokenIds


class NoRepeatNgram:
    """As transformers' `NoRepeatNGramLogitsProcessor`. Searches anew in each row: one comparison of the whole history
    with its last token, which takes microseconds, and then only of what it found."""

    name = "no_repeat_ngram_size"

    def __init__(self, size: int) -> None:
        self._size = size

    def apply(self, logits: Tensor, tokens: TokenIds) -> None:
        for row, history in rows(logits, tokens):
            row[torch.from_numpy(_followers(history, self._size - 1)).long()] = -torch.inf


def _followers(history: TokenIds, length: int) -> TokenIds:
    """The tokens that have followed the last `length` ones before."""
    if len(history) <= length:
        return history[:0]
    if length == 0:
        return history
    ends = np.flatnonzero(history[length - 1 : -1] == history[-1]) + length - 1
    for back in range(1, length):
        ends = ends[history[ends - back] == history[-1 - back]]
    followers: TokenIds = history[ends + 1]
    return followers
