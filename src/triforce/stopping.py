"""Where a text ends: after every token, in order, what text it settles and whether it is the last.

The one place that decides it, so that text, ids, log-probabilities and counts are cut at the same point. Knows nothing
of models, caches or time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from triforce.config import SamplingParams
from triforce.errors import UsageError
from triforce.text.stops import StopStrings
from triforce.text.stream import TextStream
from triforce.text.tokenizer import Tokenizer
from triforce.tokens import TokenIds

Reason = tuple[str, str | int | None]  # finish_reason and stop_reason


@dataclass(frozen=True)
class Cut:
    """After one token: the `text` that it settled, the text that is held back, and why it is the last, if it is."""

    text: str
    held: str
    reason: Reason | None


class Stopper:
    """Reads the tokens that follow a prompt of `prompt_tokens`, one by one, until one ends the text.

    `end_token_ids` are the model's own. Raises `UsageError` for a stop id that the vocabulary lacks.
    """

    def __init__(
        self,
        sampling: SamplingParams,
        tokenizer: Tokenizer,
        end_token_ids: Iterable[int],
        vocab_size: int,
        prompt_tokens: int,
    ) -> None:
        self._sampling = sampling
        self._prompt_tokens = prompt_tokens
        self.limit = prompt_tokens + sampling.max_new_tokens
        """Tokens, prompt included, that are never exceeded."""
        self._ends: dict[int, str | int] = {} if sampling.ignore_eos else {i: i for i in end_token_ids}
        for stop in sampling.stop:  # no text shows a special token, so its spelling stands for its id
            token_id = tokenizer.special_id(stop)
            if token_id is not None:
                self._ends[token_id] = stop
        for token_id in sampling.stop_token_ids:
            if token_id >= vocab_size:
                raise UsageError(f"stop_token_ids holds {token_id}: use ids of the vocabulary, 0..{vocab_size - 1}")
            self._ends[int(token_id)] = int(token_id)
        self._text = TextStream(tokenizer, at_start=False)
        self._strings = StopStrings(list(sampling.stop))

    def push(self, tokens: TokenIds, out_of_time: bool = False) -> Cut:
        """What the last of `tokens` (the prompt's, and all new ones so far) does; `out_of_time`: no more are made."""
        token = int(tokens[-1])
        armed = len(tokens) - self._prompt_tokens > self._sampling.min_new_tokens
        end = self._ends.get(token) if armed else None
        shown = end is None or self._sampling.include_stop
        text, found = self._strings.push(self._text.push(token) if shown else "", armed)
        if found is not None:
            return Cut(text + found if self._sampling.include_stop else text, "", ("stop", found))
        reason = ("stop", end) if end is not None else self._other_reason(tokens, out_of_time)
        held = self._strings.held + self._text.rest
        return Cut(text, held, None) if reason is None else Cut(text + held, "", reason)

    def _other_reason(self, tokens: TokenIds, out_of_time: bool) -> Reason | None:
        seen = tokens.view()
        seen.flags.writeable = False  # it is the history itself
        for criterion in self._sampling.criteria:
            if criterion(seen):
                return "stop", getattr(criterion, "__name__", type(criterion).__name__)
        if len(tokens) >= self.limit:
            return "length", None
        return ("time", None) if out_of_time else None
