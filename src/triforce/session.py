"""A session: a sequence of tokens that grows, goes back and branches, with a full cache of its own.

Its tokens are all there is to it; the cache follows them by comparing ids. Knows nothing of chats or of files' insides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from triforce.caches.full import FullCache, row_layout
from triforce.caches.mapped import FileRows, forkable_memory, memory_over
from triforce.caches.memory import RowLayout
from triforce.caches.sparse import NUM_QUERIES
from triforce.checks import chosen, listener, require, whole
from triforce.completion import Generation
from triforce.config import Decoding, SamplingParams
from triforce.engine import SPARE_ROWS, Engine
from triforce.errors import PromptError, SessionError, shown
from triforce.models.rope_scaling import build_rope
from triforce.runner import ModelRunner
from triforce.session_file import Origin, Saved, read_session, session_path, write_session
from triforce.stream import Stream
from triforce.tokens import TokenIds, extend


class Session:
    """Made by `Engine.session` and `Engine.load_session`. What was read once is not read again.

    Tokens belong to the session as soon as a stream hands them out, until the session is changed otherwise; a stream
    drawn from after that no longer adds to it. Under `dynamic` RoPE scaling rows are rotated for the longest context,
    whatever the length. For one thread, like the engine.
    """

    def __init__(self, engine: Engine, tokens: TokenIds | None = None, cache: FullCache | None = None) -> None:
        self._notes: dict[str, Any] = {}
        self._engine = engine
        self._ids: TokenIds = np.empty(0, np.int32) if tokens is None else tokens
        self._cache = _new_cache(engine) if cache is None else cache
        self._stream: Stream | None = None  # what it handed out follows `_ids`

    @property
    def engine(self) -> Engine:
        """The model and its tokenizer."""
        return self._engine

    @property
    def notes(self) -> dict[str, Any]:
        """Anything that JSON can hold; it is saved, loaded and forked along. As in all JSON, keys that are numbers come
        back as texts. Raises `UsageError` for no dict."""
        return self._notes

    @notes.setter
    def notes(self, notes: dict[str, Any]) -> None:
        require(isinstance(notes, dict), f"the session's notes are {shown(notes)}: give a dict")
        self._notes = notes

    @property
    def tokens(self) -> list[int]:
        """The ids of the whole sequence."""
        ids: list[int] = self._all().tolist()
        return ids

    @property
    def text(self) -> str:
        """The sequence as text, special tokens left out."""
        return self._engine.tokenizer.decode(self.tokens)

    def __len__(self) -> int:
        return len(self._all())

    def append(self, prompt: str | Sequence[int]) -> None:
        """Add text, encoded by itself, or token ids; they are read with the next use. Raises `PromptError`."""
        ids = self._all()
        self.replace(extend(ids, self._engine.encode(prompt, at_start=len(ids) == 0).tolist()))

    def rewind(self, length: int) -> None:
        """Keep the first `length` tokens. Raises `UsageError`."""
        ids = self._all()
        self.replace(ids[: whole("the length to rewind to", length, 0, len(ids))])

    def replace(self, tokens: Sequence[int] | TokenIds) -> None:
        """Be the sequence `tokens`; what it shares with the present one at the beginning is not read again.

        Raises `PromptError`, and is then as it was.
        """
        self._ids = self._engine.token_ids(tokens)
        self._stream = None

    def generate(self, sampling: SamplingParams | None = None, decoding: Decoding | None = None) -> Generation:
        """Continue the sequence. Raises as `stream` does."""
        stream = self.stream(sampling, decoding)
        for _ in stream:
            pass
        self._all()
        return stream.generation()

    def stream(
        self,
        sampling: SamplingParams | None = None,
        decoding: Decoding | None = None,
        *,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Stream:
        """Continue the sequence, token by token.

        Raises `PromptError` when there is nothing to continue or no room, `UsageError` as `Engine.stream` does.
        """
        sampling, decoding = chosen("sampling", sampling, SamplingParams), chosen("decoding", decoding, Decoding)
        ids = self._all()
        self._require_tokens()
        self._engine.check_length(len(ids), sampling.max_new_tokens)
        self._cache.remember(NUM_QUERIES + decoding.stride)
        stream = self._engine.stream_over(self._cache, ids, sampling, decoding, on_prefill)
        self._ids, self._stream = ids, stream
        return stream

    @torch.inference_mode()
    def logits(self) -> Tensor:
        """The target's logits [vocab] for the next token, by plain decoding. Raises `PromptError`."""
        self._require_tokens()
        self._engine.check_length(len(self), 0)
        return self._runner().logits(self._all(), 1)[0]

    @torch.inference_mode()
    def prefill(self, on_prefill: Callable[[int, int], None] | None = None) -> None:
        """Read what was not read yet, all but the last token; done by itself where it is needed.

        `on_prefill` hears (rows held, rows wanted). Raises `PromptError` when the model does not allow so many tokens.
        """
        listener("on_prefill", on_prefill)
        ids = self._all()
        self._engine.check_length(len(ids), 0)
        if self._cache.log.common_prefix(ids) < len(ids) - 1:
            wanted = len(ids) - 1
            self._runner().prefill(ids[:-1], (lambda rows: on_prefill(rows, wanted)) if on_prefill else None)

    @torch.inference_mode()
    def fork(self) -> Session:
        """Another session of the same tokens; from here on each goes its own way.

        The rows read so far are shared on Linux on a CPU, and copied elsewhere. Raises as `prefill` does.
        """
        self.prefill()
        fork = Session(self._engine, self._all(), self._cache.fork())
        fork.notes = deepcopy(self.notes)
        return fork

    @torch.inference_mode()
    def save(self, path: str | Path, *, prefill: bool = True) -> None:
        """Write the session to the file `path`, whole or not at all; without `prefill` only what was read so far.

        Raises `SessionError`, and as `prefill` does.
        """
        file = session_path(path)
        if prefill:
            self.prefill()
        ids, cache = self._all(), self._cache
        num_rows = cache.log.common_prefix(ids)
        saved = Saved(_origin(self._engine), ids, cache.remembered(num_rows), self.notes)
        write_session(file, saved, cache.memory.layout, cache.memory.planes, num_rows)

    def _all(self) -> TokenIds:
        """The whole sequence; a stream that has ended is let go, with its caches."""
        if self._stream is None:
            return self._ids
        done = self._stream.generation()
        ids = extend(self._ids, done.token_ids)
        if done.finish_reason != "interrupted":
            self._ids, self._stream = ids, None
        return ids

    def _require_tokens(self) -> None:
        if len(self) == 0:
            raise PromptError("the session is empty: append some text first")

    def _runner(self) -> ModelRunner:
        return ModelRunner("target", self._engine.target, self._cache)


@torch.inference_mode()
def load_session(engine: Engine, file: str | Path, verify: bool = True) -> Session:
    """What `Session.save` wrote, by the same model with the same settings. Raises `SessionError`."""
    path = session_path(file)
    saved, rows = read_session(path, verify)
    _check_origin(path, saved.origin, _origin(engine))
    shape = engine.target.cache_shape
    _check_layout(path, rows.layout, row_layout(shape, engine.cache_dtype))
    layers, _, *head = saved.queries.shape
    known = ((saved.tokens >= 0) & (saved.tokens < engine.target.config.vocab_size)).all()
    if not known or (layers, *head) != (shape.num_layers, shape.num_heads, shape.head_dim):
        raise SessionError(f"{path} is damaged (it does not fit its own model): read the prompt anew")
    cache = _new_cache(engine, rows)
    cache.restore(saved.tokens[: rows.num_rows], saved.queries)
    session = Session(engine, saved.tokens, cache)
    session.notes = dict(saved.notes)
    return session


def _new_cache(engine: Engine, rows: FileRows | None = None) -> FullCache:
    target, capacity = engine.target, engine.context_length + SPARE_ROWS
    if rows is not None:
        memory = memory_over(rows, capacity, target.device)
    else:
        memory = forkable_memory(row_layout(target.cache_shape, engine.cache_dtype), capacity, target.device)
    return FullCache(
        target.cache_shape,
        build_rope(target.config),
        num_queries=NUM_QUERIES + Decoding().stride,
        device=target.device,
        memory=memory,
    )


def _origin(engine: Engine) -> Origin:
    config, rope = engine.target.config, build_rope(engine.target.config)
    model = f"{config.family}, {config.num_layers} layers, hidden size {config.hidden_size}"
    return Origin(model, engine.target.fingerprint, tuple(rope.inv_freq.tolist()), rope.scale)


def _check_origin(path: Path, found: Origin, ours: Origin) -> None:
    if found.fingerprint != ours.fingerprint:
        other = "other weights or another dtype" if found.model == ours.model else f"this one is {ours.model}"
        theirs = " ".join(found.model.split())  # a foreign file may hold anything
        raise SessionError(f"{path} was made by another model ({theirs}; {other}): load that, or another file")
    rope, own = (found.rope_scale, *found.inv_freq), (ours.rope_scale, *ours.inv_freq)
    if len(rope) != len(own) or not np.allclose(rope, own, rtol=1e-9, atol=0):
        raise SessionError(f"{path} was made with another rope scaling: use that one, or another file")


def _check_layout(path: Path, found: RowLayout, ours: RowLayout) -> None:
    if found == ours:
        return
    theirs, own = (str(layout.planes[0].dtype).removeprefix("torch.") for layout in (found, ours))
    remedy = f"load the model with cache dtype {theirs}, or use another file"
    raise SessionError(f"{path} keeps rows in {theirs} and this engine in {own}: {remedy}")
