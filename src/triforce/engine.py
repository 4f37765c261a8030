"""The engine: a model, its tokenizer and its cache. Prompt in, exact text out; `triforce.stream` generates it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from triforce.caches.full import FullCache
from triforce.caches.sparse import NUM_QUERIES
from triforce.checks import chosen, whole
from triforce.completion import Generation
from triforce.config import MOST_TEXTS, Decoding, SamplingParams
from triforce.controls import ControlFactory, grammar_of
from triforce.errors import ModelError, PromptError
from triforce.models.config import RopeScaling
from triforce.models.decoder import Decoder
from triforce.models.rope_scaling import build_rope
from triforce.parts import Parts
from triforce.stream import Stream
from triforce.text.chat import encode_chat
from triforce.text.tokenizer import Tokenizer
from triforce.tokens import TokenIds

if TYPE_CHECKING:
    from triforce.session import Session

SPARE_ROWS = 128  # for tokens drafted past the limit, so that the cache need not grow


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
        self.cache_dtype = cache_dtype or target.dtype
        self._cache: FullCache | None = None

    @property
    def context_length(self) -> int:
        """The most tokens, prompt and new ones together, that the target serves."""
        return self.target.config.max_position

    @property
    def end_token_ids(self) -> tuple[int, ...]:
        """The ids that end a text, each once: the tokenizer's, then the others of the target."""
        return tuple(dict.fromkeys([*self.tokenizer.eos_token_ids, *self.target.config.eos_token_ids]))

    @cached_property
    def _controls(self) -> ControlFactory:
        return ControlFactory(self.tokenizer, self.target.config.vocab_size, self.end_token_ids)

    def generate(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams | None = None,
        decoding: Decoding | None = None,
        *,
        chat: bool = False,
    ) -> Generation:
        """The whole continuation of `prompt` (text, or token ids). Raises as `stream` does."""
        return _drawn(self.stream(prompt, sampling, decoding, chat=chat))

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
        sampling, decoding = chosen("sampling", sampling, SamplingParams), chosen("decoding", decoding, Decoding)
        tokens = self.encode(prompt, chat)
        self.check_length(len(tokens), sampling.max_new_tokens)
        cache = self._full_cache(len(tokens) + sampling.max_new_tokens, decoding)
        return self.stream_over(cache, tokens, sampling, decoding, on_prefill)

    def stream_over(
        self,
        cache: FullCache,
        tokens: TokenIds,
        sampling: SamplingParams,
        decoding: Decoding,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Stream:
        """As `stream`, over a cache of the caller's. Raises `UsageError`."""
        if sampling.seed is not None and sampling.temperature > 0:
            decoding = decoding.without_clock()
        controls = self._controls.create(sampling, len(tokens))
        parts = Parts(self.target, cache, self.draft, decoding, grammar_of(controls))
        ends = self.end_token_ids
        return Stream(parts, self.tokenizer, ends, tokens, sampling, on_prefill, self.load_seconds, controls)

    def generate_many(
        self,
        prompt: str | Sequence[int],
        n: int,
        sampling: SamplingParams | None = None,
        decoding: Decoding | None = None,
        *,
        chat: bool = False,
    ) -> list[Generation]:
        """`n` continuations of one `prompt`, which is read once. Number i is what `generate` gives with seed + i."""
        return [_drawn(stream) for stream in self.streams(prompt, n, sampling, decoding, chat=chat)]

    def streams(
        self,
        prompt: str | Sequence[int],
        n: int,
        sampling: SamplingParams | None = None,
        decoding: Decoding | None = None,
        *,
        chat: bool = False,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Iterator[Stream]:
        """The same as streams, of which each is drawn to its end before the next is asked for."""
        n = whole("n", n, 1, MOST_TEXTS)
        sampling = chosen("sampling", sampling, SamplingParams)
        decoding = chosen("decoding", decoding, Decoding)
        tokens = self.encode(prompt, chat).tolist()
        self.check_length(len(tokens), sampling.max_new_tokens)
        return (self.stream(tokens, sampling.seeded(i), decoding, on_prefill=on_prefill) for i in range(n))

    def session(self, prompt: str | Sequence[int] | None = None) -> Session:
        """A sequence with a cache of its own, which begins with `prompt`; any number of them can be open."""
        from triforce.session import Session

        session = Session(self)
        if prompt is not None:
            session.append(prompt)
        return session

    def load_session(self, path: str | Path, *, verify: bool = True) -> Session:
        """The session in the file `path`, whose rows are mapped, not read.

        `verify` off leaves their checksums unread, so that loading takes the same time whatever the length. Raises
        `SessionError` for a file that is damaged, or made by another model or with other settings.
        """
        from triforce.session import load_session

        return load_session(self, path, verify)

    @torch.inference_mode()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """The target's logits [vocab] after `tokens`, by plain decoding. Raises `PromptError`."""
        ids = self.encode(tokens)
        self.check_length(len(ids), 0)
        plain = Decoding(method="ar")
        target = Parts(self.target, self._full_cache(len(ids), plain), None, plain).target
        return target.logits(ids, 1)[0]

    def encode(self, prompt: str | Sequence[int] | TokenIds, chat: bool = False, *, at_start: bool = True) -> TokenIds:
        """The ids of `prompt`, with what the tokenizer puts at the start of a text. Raises `PromptError`."""
        if isinstance(prompt, str):
            messages = [{"role": "user", "content": prompt}]
            prompt = encode_chat(self.tokenizer, messages) if chat else self.tokenizer.encode(prompt, at_start)
        elif chat:
            raise PromptError("a chat message must be text: give a str, or leave chat out for token ids")
        ids = self.token_ids(prompt, "neither text nor a flat sequence of integers: give a str, or a list of token ids")
        if len(ids) == 0:
            raise PromptError("the prompt is empty: give some text")
        return ids

    def token_ids(self, given: object, wrong: str = "no flat sequence of integers: give a list of them") -> TokenIds:
        """`given`, a sequence of any kind, perhaps empty, as ids of the target. Raises `PromptError`."""
        ids = _integers(given)
        if ids is None:
            raise PromptError(f"the prompt is {wrong}")
        if len(ids) > 0 and (ids.min() < 0 or ids.max() >= self.target.config.vocab_size):
            most = self.target.config.vocab_size - 1
            raise PromptError(f"the prompt has a token id outside 0..{most}: use ids of this model's tokenizer")
        return ids.astype(np.int32)

    def check_length(self, prompt_tokens: int, new_tokens: int) -> None:
        """Raises `PromptError` when so many tokens are more than the model allows."""
        limit = self.context_length
        excess = prompt_tokens + new_tokens - limit
        if excess <= 0:
            return
        factor = -(-(prompt_tokens + new_tokens) // limit)
        remedy = f"shorten it or load the model with the rope scaling yarn:{factor} (--rope-scaling yarn:{factor})"
        if prompt_tokens < limit:
            remedy = f"ask for {limit - prompt_tokens:,} new tokens at most, {remedy}"
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
                capacity=context_length + SPARE_ROWS,
                num_queries=num_queries,
                dtype=self.cache_dtype,
                device=self.target.device,
            )
        return cache


def _drawn(stream: Stream) -> Generation:
    """The record of a stream, drawn to its end."""
    for _ in stream:
        pass
    return stream.generation()


def _integers(given: Any) -> npt.NDArray[np.integer[Any]] | None:
    """Whole numbers as an array, whatever sequence they came in; None for all else."""
    given = given.tolist() if isinstance(given, Tensor) else given
    if isinstance(given, (bytes, bytearray, memoryview)):  # of text, no doubt
        return None
    if isinstance(given, (list, tuple)) and bool in set(map(type, given)):  # which NumPy takes for numbers among others
        return None
    try:
        ids = np.asarray(given)
    except (ValueError, TypeError, OverflowError):
        return None
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size > 0):
        return None
    return ids.astype(np.int64) if ids.size == 0 else ids


def load(
    model: str | PathLike[str],
    *,
    draft: str | PathLike[str] | None = None,
    dtype: str | torch.dtype = "auto",
    cache_dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    rope_scaling: str | None = None,
) -> Engine:
    """An engine for `model`: a known name ("smollm2"), a Hugging Face directory or hub id, or a GGUF file.

    `draft` is a smaller model of the same vocabulary. `dtype` is that of the weights, `cache_dtype` that of the keys
    and values kept: float32, bfloat16, float16, or PyTorch's own, or auto, which keeps weights as the file has them
    and rows in float16 where native kernels read those. Rows can also be int8, each with a scale. `rope_scaling` as
    "yarn:2" extends the target past its trained context. Raises `ModelError` for what cannot be loaded, `UsageError`
    for settings that cannot be honoured; `triforce.errors` has them all, each a `triforce.TriForceError`.
    """
    from triforce.models import load_model
    from triforce.models.load import parse_cache_dtype, parse_dtype
    from triforce.pull import resolve_model
    from triforce.text.tokenizer import load_tokenizer

    start = time.perf_counter()
    scaling = None if rope_scaling is None else RopeScaling.parse(rope_scaling)
    parse_dtype(dtype)  # a mistake is told before anything is fetched or read
    rows = parse_cache_dtype(cache_dtype)
    path = resolve_model(model)
    target = load_model(path, dtype=dtype, device=device, rope_scaling=scaling)
    tokenizer = load_tokenizer(path)
    drafter = None
    if draft is not None:
        draft_path = resolve_model(draft)
        if load_tokenizer(draft_path).vocabulary() != tokenizer.vocabulary():
            raise ModelError(f"{draft} has another vocabulary than {model}: choose a drafter of the same tokenizer")
        drafter = load_model(draft_path, dtype=dtype, device=device)
    rows = rows or (torch.float16 if target.reads_half_rows else target.dtype)
    return Engine(target, tokenizer, drafter, time.perf_counter() - start, rows)
