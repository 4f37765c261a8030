"""What a control of the logits is, and what it may know of the call that it serves. Knows no particular control."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from triforce.tokens import TokenIds


@dataclass(frozen=True)
class Call:
    """One generation: its prompt's length, the logits' width, and the ids that end it, the model's and the caller's."""

    prompt_tokens: int
    vocab_size: int
    end_token_ids: tuple[int, ...] = ()


class Words(Protocol):
    """What is asked of a tokeniser."""

    def spellings(self) -> Sequence[bytes]:
        """What each id adds to the text; empty for ids that add nothing, as special ones."""
        ...

    def encode_within(self, text: str) -> list[int]:
        """The ids of `text` where it continues another."""
        ...


class Control(Protocol):
    """Changes logits by what came before them.

    What it does to a row is a function of the row and its history, and of nothing else: drafted tokens come and go, at
    several levels, so own state is kept true by comparing ids, as caches do with a `TokenLog`.
    """

    name: str
    """The setting that it serves."""

    def apply(self, logits: Tensor, tokens: TokenIds) -> None:
        """Change `logits` [n, vocab] float32 in place; row i follows `tokens[: len(tokens) - n + 1 + i]`."""
        ...


def rows(logits: Tensor, tokens: TokenIds) -> Iterator[tuple[Tensor, TokenIds]]:
    """Each row [vocab] of `logits`, a view, with its history."""
    first = len(tokens) - len(logits) + 1
    for i, row in enumerate(logits):
        yield row, tokens[: first + i]
