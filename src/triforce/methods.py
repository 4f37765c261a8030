"""Decoding methods by name: each is a drafter for the target, built from the same few parts."""

from __future__ import annotations

from collections.abc import Callable

from triforce.caches.full import FullCache
from triforce.caches.sparse import SparseCache
from triforce.caches.streaming import StreamingCache
from triforce.config import Decoding
from triforce.drafters.cascade import Cascade
from triforce.drafters.lookup import Lookup
from triforce.drafters.model import ModelDrafter
from triforce.drafters.none import NoDrafter
from triforce.errors import UsageError
from triforce.models.decoder import Decoder
from triforce.models.rope_scaling import build_rope
from triforce.policies import create_policy
from triforce.runner import ModelRunner
from triforce.speculative import Drafter
from triforce.statistics import LevelStats


class Parts:
    """What a method builds from; `levels` lists the statistics of all that was built, the target's first."""

    def __init__(self, target: Decoder, cache: FullCache, draft: Decoder | None, decoding: Decoding) -> None:
        self.target = ModelRunner("target", target, cache)
        self.draft = draft
        self.decoding = decoding
        self.levels: list[LevelStats] = [self.target.stats]
        self._cache = cache

    def cascade(self, inner: Callable[[Parts], Drafter]) -> Cascade:
        """The target's weights over a sparse cache, sped up by an inner drafter."""
        d = self.decoding
        cache = SparseCache(
            self._cache,
            create_policy(d.policy),
            budget=d.budget,
            chunk=d.chunk,
            sinks=d.sinks,
            recent=d.recent,
            stride=d.stride,
        )
        runner = ModelRunner("sparse", self.target.model, cache)
        self.levels.append(runner.stats)
        return Cascade(runner, inner(self), d.gamma1)

    def lookup(self) -> Lookup:
        """Prompt lookup."""
        drafter = Lookup(self.target.model.config.vocab_size)
        self.levels.append(drafter.stats)
        return drafter

    def small(self) -> ModelDrafter:
        """The draft model, or without one the target's own weights, over a streaming cache."""
        model = self.draft or self.target.model
        cache = StreamingCache(
            model.cache_shape,
            build_rope(model.config, None),
            slots=self.decoding.slots,
            sinks=self.decoding.sinks,
            dtype=model.dtype,
            device=model.device,
        )
        runner = ModelRunner("draft", model, cache)
        self.levels.append(runner.stats)
        return ModelDrafter(runner, self.target.model.config.vocab_size)

    def fastest(self) -> Drafter:
        """The draft model where one is given, else lookup."""
        return self.small() if self.draft else self.lookup()


METHODS: dict[str, Callable[[Parts], Drafter]] = {
    "ar": lambda _: NoDrafter(),
    "lookup": Parts.lookup,
    "draft": Parts.small,
    "retrieval": lambda parts: parts.cascade(lambda _: NoDrafter()),
    "triforce": lambda parts: parts.cascade(Parts.fastest),
}


def create_drafter(parts: Parts) -> Drafter:
    """The drafter of the method that `parts.decoding` names; `UsageError` for an unknown one."""
    name = parts.decoding.method
    if name not in METHODS:
        raise UsageError(f"unknown method {name!r}: use one of {', '.join(METHODS)}")
    return METHODS[name](parts)
