"""One call's generation, token by token: prefill, steps, and the books. `triforce.stopping` says where it ends."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch

from triforce.checks import listener
from triforce.completion import Completion, Generation, Timings, TokenLogprobs
from triforce.config import DEEPEST, SamplingParams
from triforce.controls.base import Control
from triforce.logprobs import token_logprobs
from triforce.methods import create_drafter
from triforce.parts import Parts
from triforce.sampling import Sampler
from triforce.speculative import Verdict, step
from triforce.stopping import Stopper
from triforce.text.tokenizer import Tokenizer
from triforce.tokens import TokenIds, extend


class Stream(Iterator[Completion]):
    """Iterates over the completions of one call; `generation()` tells at any time what is there so far.

    An exception or Ctrl-C while a token is made ends the stream; what was handed out stays. All is for one thread but
    `cancel`.
    """

    def __init__(
        self,
        parts: Parts,
        tokenizer: Tokenizer,
        end_token_ids: Sequence[int],
        tokens: TokenIds,
        sampling: SamplingParams,
        on_prefill: Callable[[int, int], None] | None = None,
        load_seconds: float = 0.0,
        controls: Sequence[Control] = (),
    ) -> None:
        listener("on_prefill", on_prefill)
        self._parts = parts
        self._load_seconds = load_seconds
        self._pieces = tokenizer.pieces
        vocab_size = parts.target.model.config.vocab_size
        self._stopper = Stopper(sampling, tokenizer, end_token_ids, vocab_size, len(tokens))
        self._drafter = create_drafter(parts)
        self._sampler = Sampler(sampling, controls)
        self._sampling = sampling
        self._tokens = tokens
        self._prompt_tokens = len(tokens)
        self._on_prefill = on_prefill
        self._ready: deque[tuple[Completion, str]] = deque()  # verified and not yet handed out; text held
        self._given: list[Completion] = []
        self._held = ""  # text of what was handed out that may still turn into a stop string or a character
        self._ended: str | None = None  # why no more comes, where the last completion does not say it
        self._cancelled = False
        self._deadline: float | None = None
        self._prefilled = self._broken = False
        self._prefill_seconds = self._decode_seconds = 0.0
        self._prefill_tokens = self._reused_tokens = 0

    def __next__(self) -> Completion:
        if self._broken or self._finish_reason() != "interrupted":
            raise StopIteration
        self._broken = True  # until this is through: what an interruption left half done is not gone on with
        if not self._ready:
            self._advance()
        if self._cancelled or self._ended:
            raise StopIteration
        completion, self._held = self._ready.popleft()
        self._given.append(completion)
        self._broken = False
        return completion

    def cancel(self) -> None:
        """End the stream, from any thread: the pass under way is completed, and no completion follows.

        `generation()` then says "cancelled", with the tokens handed out and their whole text.
        """
        self._cancelled = True

    def close(self) -> None:
        """The same, for `contextlib.closing`."""
        self.cancel()

    def generation(self) -> Generation:
        """What was handed out so far, as one record."""
        given = self._given
        logprobs = [completion.logprobs for completion in given if completion.logprobs is not None]
        return Generation(
            text="".join(completion.text for completion in given) + self._held,
            token_ids=[completion.token_id for completion in given],
            prompt_tokens=self._prompt_tokens,
            completion_tokens=len(given),
            finish_reason=self._finish_reason(),
            timings=Timings(
                load_seconds=self._load_seconds,
                prefill_seconds=self._prefill_seconds,
                prefill_tokens=self._prefill_tokens,
                decode_seconds=self._decode_seconds,
                decode_tokens=len(self._tokens) - self._prompt_tokens,
                reused_tokens=self._reused_tokens,
            ),
            levels=[replace(level) for level in self._parts.levels],
            stop_reason=given[-1].stop_reason if given else None,
            logprobs=None if self._sampling.logprobs is None else logprobs,
        )

    def _finish_reason(self) -> str:
        last = self._given[-1].finish_reason if self._given else None
        return last or self._ended or ("cancelled" if self._cancelled else "interrupted")

    @torch.inference_mode()
    def _advance(self) -> None:
        """Make the next completions ready, or say why there are none."""
        if not self._prefilled:
            if self._sampling.max_seconds is not None:
                self._deadline = time.perf_counter() + self._sampling.max_seconds
            try:
                self._prefill()
            except _EnoughError:
                self._ended = "cancelled" if self._cancelled else "time"
                return
        self._step()

    def _prefill(self) -> None:
        """Bring the full cache to all tokens but the last, which stays pending. May raise `_EnoughError`."""
        prompt, cache = self._tokens[:-1], self._parts.target.cache
        start = time.perf_counter()
        self._reused_tokens = held = cache.sync(prompt)

        def report(rows: int) -> None:
            if self._on_prefill:
                self._on_prefill(rows, len(prompt))
            if self._cancelled or self._is_late():
                raise _EnoughError

        try:
            self._parts.prefill(prompt, report)
        finally:
            self._prefill_seconds = time.perf_counter() - start
            self._prefill_tokens = cache.length - held
        self._prefilled = True

    def _step(self) -> None:
        start = time.perf_counter()
        self._parts.catch_up(self._tokens[:-1])
        depth = min(self._parts.decoding.gamma2 or DEEPEST, self._stopper.limit - len(self._tokens) - 1)
        verdict = step(self._tokens, self._parts.target, self._drafter, depth, self._sampler)
        if not verdict.tokens:
            raise self._sampler.dead_end(len(self._tokens) - self._prompt_tokens)
        late, last = self._is_late(), len(verdict.tokens) - 1
        logprobs = self._logprobs(verdict)
        for i, (token, level) in enumerate(zip(verdict.tokens, verdict.levels, strict=True)):
            self._tokens = extend(self._tokens, [token])
            cut = self._stopper.push(self._tokens, out_of_time=late and i == last)
            finish, stop = cut.reason or (None, None)
            self._ready.append((Completion(token, cut.text, level, finish, stop, logprobs[i]), cut.held))
            if finish:
                break
        self._decode_seconds += time.perf_counter() - start

    def _logprobs(self, verdict: Verdict) -> list[TokenLogprobs] | list[None]:
        if self._sampling.logprobs is None:
            return [None] * len(verdict.tokens)
        assert verdict.logits is not None, "a verdict of `step` has the logits of its runner"
        return token_logprobs(verdict.logits, verdict.tokens, self._sampling.logprobs, self._pieces)

    def _is_late(self) -> bool:
        return self._deadline is not None and time.perf_counter() >= self._deadline


class _EnoughError(Exception):
    """No more of the prompt is to be read."""
