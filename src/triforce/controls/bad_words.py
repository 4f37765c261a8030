"""Sequences of ids that never occur: the last one is banned wherever the ones before it stand."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from triforce.config import SamplingParams
from triforce.controls.base import Call, Words, rows
from triforce.errors import UsageError
from triforce.tokens import TokenIds


class BadWords:
    """As transformers' `NoBadWordsLogitsProcessor`: an id that ends the text is not banned by itself."""

    name = "bad_words"

    def __init__(self, words: Iterable[str | Sequence[int]], call: Call) -> None:
        self._alone: list[int] = []
        self._after: defaultdict[int, list[tuple[tuple[int, ...], int]]] = defaultdict(list)  # by the last id before
        for word in words:
            assert not isinstance(word, str), "spell it first"
            if max(word) >= call.vocab_size:
                raise UsageError(
                    f"bad_words names token {max(word)}, but the model's ids end at {call.vocab_size - 1}: leave it out"
                )
            if len(word) > 1:
                self._after[word[-2]].append((tuple(word[:-1]), word[-1]))
            elif word[0] not in call.end_token_ids:
                self._alone.append(word[0])

    def apply(self, logits: Tensor, tokens: TokenIds) -> None:
        logits[:, torch.tensor(self._alone, dtype=torch.long)] = -torch.inf
        if self._after:
            for row, history in rows(logits, tokens):
                for before, last in self._after.get(int(history[-1]), ()):
                    if tuple(history[-len(before) :].tolist()) == before:
                        row[last] = -torch.inf


def spell(params: SamplingParams, words: Words) -> SamplingParams:
    """The same with bad words as ids only: each text as it stands within another, with and without a space before it.

    Other ways to put the same letters together from tokens are not banned, as in transformers.
    """
    if not any(isinstance(word, str) for word in params.bad_words):
        return params
    spelt: dict[tuple[int, ...], None] = {}  # in order, each once
    for word in params.bad_words:
        if isinstance(word, str):
            spelt |= dict.fromkeys(tuple(words.encode_within(text)) for text in (word, f" {word}"))
        else:
            spelt[tuple(word)] = None
    return replace(params, bad_words=tuple(ids for ids in spelt if ids))
