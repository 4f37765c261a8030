"""What a decoding method is built from: one model over several caches, and drafters for it. `methods` names them."""

from __future__ import annotations

from collections.abc import Callable

from triforce.caches.full import FullCache
from triforce.caches.sparse import SparseCache
from triforce.caches.streaming import StreamingCache
from triforce.config import Decoding
from triforce.drafters.adaptive import Adaptive, Option
from triforce.drafters.cascade import Cascade
from triforce.drafters.forced import Forced, Forcing
from triforce.drafters.lookup import LongMatches, Lookup
from triforce.drafters.model import ModelDrafter
from triforce.drafters.none import NoDrafter
from triforce.models.decoder import Decoder
from triforce.models.rope_scaling import build_rope
from triforce.runner import ModelRunner
from triforce.speculative import Drafter
from triforce.statistics import LevelStats
from triforce.tokens import TokenIds

# The most tokens that are drafted at a time where depth is left open: a verifying pass is all arithmetic beyond.
_MOST_COPIED, _MOST_DRAFTED, _MOST_INNER = 15, 12, 7

_LONG_MATCHES = ((16, 0.95), (6, 0.85))  # their least length, and a first guess at the acceptance of what follows
_ANY_MATCH = 0.7  # the guess for any other


class Parts:
    """What a method builds from; `levels` lists the statistics of all that was built, the target's first."""

    def __init__(
        self,
        target: Decoder,
        cache: FullCache,
        draft: Decoder | None,
        decoding: Decoding,
        grammar: Forcing | None = None,
    ) -> None:
        self.target = ModelRunner("target", target, cache)
        self.draft = draft
        self.decoding = decoding
        self.levels: list[LevelStats] = [self.target.stats]
        self._cache = cache
        self._lookup: Lookup | None = None
        self._grammar = grammar
        self._forced = LevelStats("grammar")  # of all levels that draft what is forced

    def joined(self, drafter: Drafter) -> Drafter:
        """`drafter`, with what a grammar forces drafted first where there is one."""
        if self._grammar is None:
            return drafter
        if self._forced not in self.levels:
            self.levels.append(self._forced)
        return Forced(self._grammar, drafter, self.target.model.config.vocab_size, self._forced)

    def prefill(self, tokens: TokenIds, on_progress: Callable[[int], None] | None = None) -> None:
        """Hold rows for all `tokens` in the full cache, and mark their end; `on_progress` hears how many are held.

        Lookup reads them too: its first draft then costs as much as any other.
        """
        self.target.prefill(tokens, on_progress)
        self._cache.mark()
        if self._lookup:
            self._lookup.read(tokens)

    def catch_up(self, tokens: TokenIds) -> None:
        """Have the full cache hold `tokens` and no more, whoever used it meanwhile: what is drafted depends on it."""
        if self._cache.sync(tokens) < len(tokens):
            self.target.prefill(tokens)

    def cascade(self, inner: Callable[[Parts], list[Option]] | None = None) -> Cascade:
        """The target's weights over a sparse cache, sped up by an inner drafter, if any."""
        d = self.decoding
        runner = ModelRunner("sparse", self.target.model, SparseCache(self._cache, d))
        self.levels.append(runner.stats)
        if inner is None:
            return Cascade(runner, self.joined(NoDrafter()), _MOST_INNER)
        drafter = self._chosen(runner.stats, d.gamma1, *inner(self))
        return Cascade(runner, drafter, d.gamma1 or _MOST_INNER)

    def _chosen(self, verifier: LevelStats, depth: int | None, *options: Option) -> Drafter:
        """The last of `options` at a fixed depth; where that is left open, whichever of them pays.

        What a grammar forces comes first.
        """
        if depth is not None:
            return self.joined(options[-1].drafter)
        forced = [Option(self.joined(NoDrafter()), _MOST_COPIED)] if self._grammar else []
        return Adaptive(verifier, [*forced, *options])

    def _paced(self, *options: Option) -> Drafter:
        """A drafter for the target, `gamma2` tokens at a time or, where that is left open, as many as pay."""
        return self._chosen(self.target.stats, self.decoding.gamma2, *options)

    def _over_part(self, drafter: Drafter, rows: int) -> Option:
        """A drafter of the target's own weights over `rows` of its rows.

        Such passes save rows and nothing else: where they keep half of all or more, they cannot pay.
        """
        return Option(drafter, _MOST_DRAFTED, least_length=2 * rows + 1)

    def plain(self) -> Drafter:
        """Nothing drafted but what a grammar forces."""
        return self.joined(NoDrafter())

    def copied(self) -> Drafter:
        """Prompt lookup, paced."""
        return self._paced(*self._copying(_MOST_COPIED))

    def drafted(self) -> Drafter:
        """The small model, paced."""
        small = self.small()
        return self._paced(Option(small, _MOST_DRAFTED) if self.draft else self._over_part(small, self.decoding.slots))

    def retrieved(self) -> Drafter:
        """The target over its sparse cache, paced."""
        return self._paced(self._over_part(self.cascade(), self.decoding.budget))

    def triforce(self) -> Drafter:
        """All levels; where depth is left open also lookup alone, which wins while the text repeats itself."""
        cascade = self.cascade(Parts.fastest)
        if self.decoding.gamma2:
            return self.joined(cascade)
        drafted = Option(cascade, _MOST_DRAFTED) if self.draft else self._over_part(cascade, self.decoding.budget)
        return self._chosen(self.target.stats, None, *self._copying(_MOST_COPIED), drafted)

    def lookup(self) -> Lookup:
        """Prompt lookup, one for all levels."""
        if self._lookup is None:
            self._lookup = Lookup(self.target.model.config.vocab_size)
            self.levels.append(self._lookup.stats)
        return self._lookup

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

    def fastest(self) -> list[Option]:
        """The draft model where one is given, else lookup."""
        return [Option(self.small(), _MOST_INNER)] if self.draft else self._copying(_MOST_INNER)

    def _copying(self, most: int) -> list[Option]:
        """Lookup, by the length of the match; the last, which serves where depth is fixed, takes any.

        A long match is first asked of the option that pays most, mostly its own: disjoint ones were no better.
        """
        lookup = self.lookup()
        longer = [Option(LongMatches(lookup, least), most, expected=share) for least, share in _LONG_MATCHES]
        return [*longer, Option(lookup, most, expected=_ANY_MATCH)]
