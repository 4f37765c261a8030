"""What the text must match: allows at each position the tokens that some matching text goes on with.

Holds one engine's matcher and a log of the ids that it has read; a history is compared with the log by ids, and the
matcher rolls back to what they share. Knows no engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from triforce.controls.base import rows
from triforce.tokens import TokenIds, TokenLog


class Matcher(Protocol):
    """A grammar in the course of reading a text, token by token."""

    def consume(self, token: int) -> bool:
        """Read one token; False, and nothing has changed, where the text cannot go on with it."""
        ...

    def rollback(self, num_tokens: int) -> None:
        """Forget the last tokens read."""
        ...

    def accepts_end(self) -> bool:
        """Whether the text may end here."""
        ...

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Whether each token [words] may come next; ids beyond them may not, and ends of a text are not told."""
        ...

    def forced(self) -> list[int]:
        """Tokens that spell what must come next in any case, perhaps none."""
        ...


class _State(Enum):
    """Where a history leaves the grammar."""

    OPEN = "the text may go on, perhaps end"
    ENDED = "it has ended"
    IMPOSSIBLE = "it has a token that cannot be read"


class Grammar:
    """The control, and the source of forced drafts. The text is what is generated; the prompt is not read.

    Where the text may end, the ids that end it are allowed; after one of them nothing else is. After a token that
    cannot be read nothing is: the row's law is empty, and nobody gets there, since the token's own law was 0.
    """

    def __init__(self, name: str, matcher: Matcher, prompt_tokens: int, end_token_ids: Sequence[int]) -> None:
        self.name = name
        self._matcher = matcher
        self._prompt_tokens = prompt_tokens
        self._ends = list(end_token_ids)
        self._log = TokenLog()

    def apply(self, logits: Tensor, tokens: TokenIds) -> None:
        for row, history in rows(logits, tokens):
            row.masked_fill_(~torch.from_numpy(self._allowed(history, len(row))), -torch.inf)

    def forced(self, tokens: TokenIds) -> list[int]:
        """What must follow `tokens`, as the tokeniser spells it; an id that ends the text where nothing else may."""
        if self._follow(tokens) is not _State.OPEN:
            return []
        forced = self._matcher.forced()
        if not forced and self._matcher.accepts_end() and not self._matcher.allowed().any():
            return self._ends[:1]
        return forced

    def _allowed(self, history: TokenIds, vocab_size: int) -> npt.NDArray[np.bool_]:
        allowed = np.zeros(vocab_size, dtype=np.bool_)
        state = self._follow(history)
        if state is _State.OPEN:
            words = self._matcher.allowed()[:vocab_size]
            allowed[: len(words)] = words
        if state is _State.ENDED or (state is _State.OPEN and self._matcher.accepts_end()):
            allowed[self._ends] = True
        return allowed

    def _follow(self, history: TokenIds) -> _State:
        """Have the matcher read the generated part of `history`, as far as it can be read."""
        text = history[self._prompt_tokens :]
        kept = self._log.common_prefix(text)
        if kept < len(self._log):
            self._matcher.rollback(len(self._log) - kept)
            self._log.truncate(kept)
        for token in text[kept:].tolist():
            if token in self._ends:
                return _State.ENDED if self._matcher.accepts_end() else _State.IMPOSSIBLE
            if not self._matcher.consume(token):
                return _State.IMPOSSIBLE
            self._log.append([token])
        return _State.OPEN
