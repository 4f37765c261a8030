"""One call's generation, token by token: prefill, steps, stops, and the books."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch

from triforce.completion import Completion, Generation, Timings
from triforce.config import DEEPEST, SamplingParams
from triforce.methods import Parts, create_drafter
from triforce.sampling import Sampler
from triforce.speculative import step
from triforce.text.stream import TextStream
from triforce.text.tokenizer import Tokenizer
from triforce.tokens import TokenIds, extend


class Stream(Iterator[Completion]):
    """Iterates over the completions of one call; `generation()` tells at any time what is there so far.

    An exception or Ctrl-C while a token is made ends the stream; what was handed out stays.
    """

    def __init__(
        self,
        parts: Parts,
        tokenizer: Tokenizer,
        tokens: TokenIds,
        sampling: SamplingParams,
        on_prefill: Callable[[int, int], None] | None = None,
        load_seconds: float = 0.0,
    ) -> None:
        self._parts = parts
        self._load_seconds = load_seconds
        self._eos_token_ids = {*parts.target.model.config.eos_token_ids, *tokenizer.eos_token_ids}
        self._drafter = create_drafter(parts)
        self._sampler = Sampler(sampling)
        self._tokens = tokens
        self._prompt_tokens = len(tokens)
        self._limit = len(tokens) + sampling.max_new_tokens
        self._on_prefill = on_prefill
        self._text_stream = TextStream(tokenizer, at_start=False)
        self._text: list[str] = []
        self._ready: list[Completion] = []  # verified and not yet handed out, last one first
        self._handed_out: list[int] = []
        self._finish_reason: str | None = None
        self._prefilled = self._broken = False
        self._prefill_seconds = self._decode_seconds = 0.0
        self._prefill_tokens = 0

    def __next__(self) -> Completion:
        if self._broken or (self._finish_reason and not self._ready):
            raise StopIteration
        self._broken = True  # until this is through: what an interruption left half done is not gone on with
        if not self._ready:
            with torch.inference_mode():
                if not self._prefilled:
                    self._prefill()
                self._step()
        completion = self._ready.pop()
        self._handed_out.append(completion.token_id)
        self._text.append(completion.text)
        self._broken = False
        return completion

    def generation(self) -> Generation:
        """What was handed out so far, as one record."""
        return Generation(
            text="".join(self._text),
            token_ids=list(self._handed_out),
            prompt_tokens=self._prompt_tokens,
            completion_tokens=len(self._handed_out),
            finish_reason=self._finish_reason if self._finish_reason and not self._ready else "interrupted",
            timings=Timings(
                load_seconds=self._load_seconds,
                prefill_seconds=self._prefill_seconds,
                prefill_tokens=self._prefill_tokens,
                decode_seconds=self._decode_seconds,
                decode_tokens=len(self._tokens) - self._prompt_tokens,
            ),
            levels=[replace(level) for level in self._parts.levels],
        )

    def _prefill(self) -> None:
        """Bring the full cache to all tokens but the last, which stays pending."""
        prompt = self._tokens[:-1]
        start = time.perf_counter()
        held = self._parts.target.cache.sync(prompt)

        def report(rows: int) -> None:
            if self._on_prefill:
                self._on_prefill(rows, len(prompt))

        self._parts.target.prefill(prompt, report)
        self._prefill_seconds = time.perf_counter() - start
        self._prefill_tokens = len(prompt) - held
        self._prefilled = True

    def _step(self) -> None:
        start = time.perf_counter()
        depth = min(self._parts.decoding.gamma2 or DEEPEST, self._limit - len(self._tokens) - 1)
        verdict = step(self._tokens, self._parts.target, self._drafter, depth, self._sampler)
        for token, level in zip(verdict.tokens, verdict.levels, strict=True):
            self._tokens = extend(self._tokens, [token])
            self._finish_reason = self._reason_to_stop(token)
            text = self._text_stream.push(token)
            if self._finish_reason:
                text += self._text_stream.flush()
            self._ready.insert(0, Completion(token, text, level, self._finish_reason))
            if self._finish_reason:
                break
        self._decode_seconds += time.perf_counter() - start

    def _reason_to_stop(self, token: int) -> str | None:
        if token in self._eos_token_ids:
            return "stop"
        return "length" if len(self._tokens) >= self._limit else None
