"""The engine: prompt in, exact text out. Prefills, decodes by `step`, stops, and keeps the books."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from triforce.caches.full import FullCache
from triforce.caches.sparse import NUM_QUERIES
from triforce.completion import Completion, Generation, Timings
from triforce.config import Decoding, SamplingParams
from triforce.errors import ModelError, PromptError
from triforce.methods import Parts, create_drafter
from triforce.models.config import RopeScaling
from triforce.models.decoder import Decoder
from triforce.models.rope_scaling import build_rope
from triforce.sampling import Sampler
from triforce.speculative import step
from triforce.text.chat import encode_chat
from triforce.text.stream import TextStream
from triforce.text.tokenizer import Tokenizer
from triforce.tokens import TokenIds, extend

_SPARE_ROWS = 128  # for tokens drafted past the limit, so that the cache need not grow


class Engine:
    """A target model, perhaps a drafter, and the target's full cache, which the next call reuses as far as it fits.

    Keys and values are kept in `cache_dtype` (the target's own by default), which is part of what the target is.
    For one thread. Streams may take turns, each stays exact, but at every turn the other's rows are read anew.
    """

    def __init__(
        self,
        target: Decoder,
        tokenizer: Tokenizer,
        draft: Decoder | None = None,
        load_seconds: float = 0.0,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        self.target = target
        self.tokenizer = tokenizer
        self.draft = draft
        self.load_seconds = load_seconds
        self._cache_dtype = cache_dtype or target.dtype
        self._cache: FullCache | None = None

    @property
    def context_length(self) -> int:
        """The most tokens, prompt and new ones together, that the target serves."""
        return self.target.config.max_position

    def generate(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        decoding: Decoding | None = None,
        *,
        chat: bool = False,
    ) -> Generation:
        """The whole continuation of `prompt` (text, or token ids). Raises as `stream` does."""
        stream = self.stream(prompt, sampling, decoding, chat=chat)
        for _ in stream:
            pass
        return stream.generation()

    def stream(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        decoding: Decoding | None = None,
        *,
        chat: bool = False,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Stream:
        """Token by token; `chat` wraps the prompt in the model's chat template as one user message.

        `on_prefill` hears (rows held, rows wanted) while the prompt is read. Raises `PromptError` for a prompt that is
        empty or too long, `UsageError` for settings that cannot be honoured.
        """
        sampling = sampling or SamplingParams()
        tokens = self._encode(prompt, chat)
        self._check_length(len(tokens), sampling.max_new_tokens)
        decoding = decoding or Decoding()
        cache = self._full_cache(len(tokens) + sampling.max_new_tokens, decoding)
        parts = Parts(self.target, cache, self.draft, decoding)
        return Stream(self, parts, tokens, sampling, on_prefill)

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """The target's logits [vocab] after `tokens`, by plain decoding. Raises `PromptError`."""
        ids = self._encode(tokens, chat=False)
        plain = Decoding(method="ar")
        target = Parts(self.target, self._full_cache(len(ids), plain), None, plain).target
        return target.logits(ids, 1)[0]

    def _encode(self, prompt: str | Sequence[int], chat: bool) -> TokenIds:
        if isinstance(prompt, str):
            messages = [{"role": "user", "content": prompt}]
            prompt = encode_chat(self.tokenizer, messages) if chat else self.tokenizer.encode(prompt)
        elif chat:
            raise PromptError("a chat message must be text: give a str, or leave chat out for token ids")
        ids = _integers(prompt)
        if len(ids) == 0:
            raise PromptError("the prompt is empty: give some text, a file with -f, or - for standard input")
        if ids.min() < 0 or ids.max() >= self.target.config.vocab_size:
            raise PromptError(f"the prompt has a token id outside 0..{self.target.config.vocab_size - 1}")
        return ids.astype(np.int32)

    def _check_length(self, prompt_tokens: int, new_tokens: int) -> None:
        limit = self.context_length
        excess = prompt_tokens + new_tokens - limit
        if excess <= 0:
            return
        factor = -(-(prompt_tokens + new_tokens) // limit)
        remedy = f"shorten it or extend the model with --rope-scaling yarn:{factor}"
        if prompt_tokens < limit:
            remedy = f"ask for {limit - prompt_tokens:,} new tokens at most (-n), {remedy}"
        raise PromptError(
            f"the prompt's {prompt_tokens:,} tokens and {new_tokens:,} new ones are {excess:,} more than "
            f"the {limit:,} that the model allows: {remedy}"
        )

    def _full_cache(self, context_length: int, decoding: Decoding) -> FullCache:
        """The cache of the last call, if it was made with the same rotation and remembers queries enough."""
        rope = build_rope(self.target.config, context_length)
        num_queries = NUM_QUERIES + decoding.stride
        cache = self._cache
        if cache is None or not cache.serves(rope, num_queries):
            cache = self._cache = FullCache(
                self.target.cache_shape,
                rope,
                capacity=context_length + _SPARE_ROWS,
                num_queries=num_queries,
                dtype=self._cache_dtype,
                device=self.target.device,
            )
        return cache


def _integers(prompt: Sequence[int]) -> npt.NDArray[np.integer[Any]]:
    """Token ids as an array, whatever sequence they came in."""
    try:
        ids = np.asarray(prompt)
    except (ValueError, TypeError, OverflowError):
        ids = np.asarray(None)
    if ids.ndim == 1 and (ids.dtype.kind in "iu" or ids.size == 0):
        return ids.astype(np.int64) if ids.size == 0 else ids
    raise PromptError("the prompt is neither text nor a sequence of integers: give a str, or a list of token ids")


class Stream(Iterator[Completion]):
    """Iterates over the completions of one call; `generation()` tells at any time what is there so far.

    An exception or Ctrl-C while a token is made ends the stream; what was handed out stays.
    """

    def __init__(
        self,
        engine: Engine,
        parts: Parts,
        tokens: TokenIds,
        sampling: SamplingParams,
        on_prefill: Callable[[int, int], None] | None,
    ) -> None:
        self._engine = engine
        self._parts = parts
        self._drafter = create_drafter(parts)
        self._sampler = Sampler(sampling)
        self._tokens = tokens
        self._prompt_tokens = len(tokens)
        self._limit = len(tokens) + sampling.max_new_tokens
        self._on_prefill = on_prefill
        self._text_stream = TextStream(engine.tokenizer, at_start=False)
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
                load_seconds=self._engine.load_seconds,
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
        depth = min(self._parts.decoding.gamma2, self._limit - len(self._tokens) - 1)
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
        if token in self._engine.target.config.eos_token_ids or token in self._engine.tokenizer.eos_token_ids:
            return "stop"
        return "length" if len(self._tokens) >= self._limit else None


def load(
    model: str,
    *,
    draft: str | None = None,
    dtype: str = "auto",
    cache_dtype: str = "auto",
    device: str = "auto",
    rope_scaling: str | None = None,
) -> Engine:
    """An engine for `model`: a known name ("smollm2"), a Hugging Face directory or hub id, or a GGUF file.

    `draft` is a smaller model of the same vocabulary. `dtype` is that of the weights, `cache_dtype` that of the keys
    and values kept: float32, bfloat16, float16 or auto, which keeps weights as the file has them and rows in float16
    where native kernels read those. `rope_scaling` as "yarn:2" extends the target past its trained context. Raises
    `ModelError` for what cannot be loaded, `UsageError` for settings that cannot be honoured.
    """
    from triforce.models import load_model
    from triforce.models.load import parse_dtype
    from triforce.pull import resolve_model
    from triforce.text.tokenizer import load_tokenizer

    start = time.perf_counter()
    path = resolve_model(model)
    scaling = RopeScaling.parse(rope_scaling) if rope_scaling else None
    target = load_model(path, dtype=dtype, device=device, rope_scaling=scaling)
    tokenizer = load_tokenizer(path)
    drafter = None
    if draft is not None:
        draft_path = resolve_model(draft)
        if load_tokenizer(draft_path).vocabulary() != tokenizer.vocabulary():
            raise ModelError(f"{draft} has another vocabulary than {model}: choose a drafter of the same tokenizer")
        drafter = load_model(draft_path, dtype=dtype, device=device)
    rows = parse_dtype(cache_dtype) or (torch.float16 if target.reads_half_rows else target.dtype)
    return Engine(target, tokenizer, drafter, time.perf_counter() - start, rows)
