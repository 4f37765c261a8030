"""Frozen settings that a caller chooses. Knows nothing of models, caches or tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import TYPE_CHECKING, Any

from triforce.checks import listed, number, require, text, whole
from triforce.errors import UsageError, shown

if TYPE_CHECKING:
    from triforce.tokens import TokenIds

MOST_TOKENS = 2**24  # tokens or rows: above any context
MOST_TEXTS = 2**16  # after one prompt
SEEDS = 2**63
DEEPEST = 64  # tokens drafted at once: as many as the native kernels verify in one pass
_GAMMA1, _GAMMA2 = 4, 4  # depths where the clock must not choose them
_COLDEST = 1e-37  # the least temperature that logits can be divided by
_LONGEST = 1e9  # seconds: a life
_HEAVIEST = 1e6  # the largest bias, penalty or temperature

_STRUCTURES = ("json_schema", "regex", "choice", "grammar")


@dataclass(frozen=True)
class SamplingParams:
    """What to draw: the controls that turn logits into a law, and how many tokens to draw at most.

    `temperature` 0 means greedy; `top_k` 0 and `top_p` 1 and `min_p` 0 and `typical_p` 1 mean off. `repetition_penalty`
    divides what prompt and text have said (1 is off); `presence_penalty` and `frequency_penalty` are subtracted from
    what the generated text has said, once and per occurrence. `logit_bias` maps token ids to what is added to them;
    `bad_words` are strings or sequences of ids. No text ends before `min_new_tokens`. `processors` are functions
    `f(token_ids, logits) -> logits` of one position, or transformers' `LogitsProcessor` objects. At most one of
    `json_schema`, `regex`, `choice` and `grammar` (Lark or GBNF) says what the text must match. docs/sampling.md and
    docs/structured.md define each. Raises `UsageError` when out of range.

    A text ends at the model's end tokens (unless `ignore_eos`), at `stop_token_ids`, at `stop` strings wherever their
    characters lie, after a token for which one of `criteria` says so (given the whole sequence of ids, after every
    token in order), after `max_new_tokens`, or with the pass in which `max_seconds` of wall-clock time run out.
    What ended it is part of the ids, and part of the text only with `include_stop`. `logprobs` asks for the
    log-probability of each token, and of so many alternatives.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_new_tokens: int = 256
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    logit_bias: Mapping[int, float] | Sequence[tuple[int, float]] = ()
    bad_words: Sequence[str | Sequence[int]] = ()
    min_new_tokens: int = 0
    processors: Sequence[Callable[..., Any]] = ()
    json_schema: str | Mapping[str, Any] | bool | None = None
    regex: str | None = None
    choice: Sequence[str] = ()
    grammar: str | None = None

    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    max_seconds: float | None = None
    criteria: Sequence[Callable[[TokenIds], bool]] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        number("temperature", self.temperature, 0.0, 1e6)
        require(
            self.temperature == 0.0 or self.temperature >= _COLDEST,
            f"temperature is {self.temperature}: use 0 for greedy, or at least {_COLDEST:g}",
        )
        number("top_p", self.top_p, 0.0, 1.0)
        require(self.top_p > 0.0, f"top_p is {self.top_p}: use a number above 0 and at most 1")
        _settle(self, "top_k", 0, MOST_TOKENS)
        number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _settle(self, "seed", 0, SEEDS - 1)
        _settle(self, "max_new_tokens", 1, MOST_TOKENS)
        self._check_stops()
        self._check_controls()
        self._check_structure()

    @property
    def structure(self) -> str | None:
        """The name of the one setting that prescribes a form, where one does."""
        return next(iter(self._structures()), None)

    def seeded(self, index: int) -> SamplingParams:
        """The settings of text number `index` of several: another seed, where there is one."""
        return self if self.seed is None else replace(self, seed=(self.seed + index) % SEEDS)

    def _structures(self) -> list[str]:
        return [name for name in _STRUCTURES if getattr(self, name) not in (None, ())]

    def _check_stops(self) -> None:
        """Also makes tuples of what came as lists, so that nobody changes them later."""
        for name in ("stop", "stop_token_ids", "criteria"):
            object.__setattr__(self, name, listed(name, getattr(self, name)))
        for stop in self.stop:
            text("a text of stop", stop, "give texts of at least one character")
        for token_id in self.stop_token_ids:
            whole("an id of stop_token_ids", token_id, 0, MOST_TOKENS)
        for criterion in self.criteria:
            require(callable(criterion), f"criteria holds {shown(criterion)}: use functions of the token ids")
        require(isinstance(self.include_stop, bool), f"include_stop is {shown(self.include_stop)}: use True or False")
        require(isinstance(self.ignore_eos, bool), f"ignore_eos is {shown(self.ignore_eos)}: use True or False")
        if self.max_seconds is not None:
            number("max_seconds", self.max_seconds, 0.0, _LONGEST)
            require(self.max_seconds > 0.0, f"max_seconds is {self.max_seconds}: use a number above 0")
        if self.logprobs is not None:
            alternatives = "use a number of alternatives, 0 for the chosen token alone"
            require(not isinstance(self.logprobs, bool), f"logprobs is {self.logprobs}: {alternatives}")
            _settle(self, "logprobs", 0, MOST_TOKENS)

    def _check_controls(self) -> None:
        """Ranges of the controls; what came as a list or mapping is kept as tuples, so that nobody changes it later."""
        number("typical_p", self.typical_p, 0.0, 1.0)
        require(self.typical_p > 0.0, f"typical_p is {self.typical_p}: use a number above 0 and at most 1")
        number("repetition_penalty", self.repetition_penalty, 1e-6, _HEAVIEST)
        number("presence_penalty", self.presence_penalty, -_HEAVIEST, _HEAVIEST)
        number("frequency_penalty", self.frequency_penalty, -_HEAVIEST, _HEAVIEST)
        _settle(self, "no_repeat_ngram_size", 0, MOST_TOKENS)
        _settle(self, "min_new_tokens", 0, MOST_TOKENS)
        require(
            self.min_new_tokens <= self.max_new_tokens,
            f"min_new_tokens is {self.min_new_tokens}, more than max_new_tokens {self.max_new_tokens}: lower it",
        )
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        object.__setattr__(self, "bad_words", _words(self.bad_words))
        object.__setattr__(self, "processors", _processors(self.processors))

    def _check_structure(self) -> None:
        """At most one form, in the type that it is written in; a JSON schema is kept as text."""
        object.__setattr__(self, "json_schema", _schema(self.json_schema))
        for name in ("regex", "grammar"):
            if getattr(self, name) is not None:
                text(name, getattr(self, name), "give some text")
        require(not isinstance(self.choice, str), f"choice is {shown(self.choice)}: give a list of texts")
        choices = listed("choice", self.choice)
        require(len(choices) > 0 or isinstance(self.choice, tuple), "choice is empty: give at least one text")
        object.__setattr__(self, "choice", choices)
        for choice in self.choice:
            text("a text of choice", choice, "give a list of texts, not empty")
        given = self._structures()
        require(len(given) <= 1, f"{' and '.join(given)} are given: one call takes one of them")


@dataclass(frozen=True)
class Decoding:
    """How to decode: the method and the sizes of its levels. No setting here changes the law of the output.

    `gamma1` tokens are drafted for the sparse level, `gamma2` for the target; None lets measured costs and acceptance
    choose at every step, none at all below break-even. `budget` rows are kept per KV head by
    the sparse level: `sinks` first rows, the `recent` last ones, and the best chunks of `chunk` rows in between,
    selected by `policy` anew every `stride` committed tokens. `slots` rows are seen by a small model's streaming cache.
    """

    method: str = "triforce"
    gamma1: int | None = None
    gamma2: int | None = None
    budget: int = 1024
    chunk: int = 16
    sinks: int = 16
    recent: int = 64
    stride: int = 32
    slots: int = 256
    policy: str = "retrieval"

    def __post_init__(self) -> None:
        require(isinstance(self.method, str), f"method is {shown(self.method)}: use a name")
        require(isinstance(self.policy, str), f"policy is {shown(self.policy)}: use a name")
        for name in ("gamma1", "gamma2"):
            if getattr(self, name) is not None:
                _settle(self, name, 1, DEEPEST)
        _settle(self, "chunk", 1, MOST_TOKENS)
        _settle(self, "sinks", 0, MOST_TOKENS)
        _settle(self, "recent", 1, MOST_TOKENS)
        _settle(self, "stride", 1, 4096)
        least = self.sinks + self.recent + 2 * self.chunk
        _settle(self, "budget", 1, MOST_TOKENS)
        require(
            self.budget >= least,
            f"budget is {self.budget} rows, too few for sinks, recent window and chunks: use at least {least}",
        )
        _settle(self, "slots", self.sinks + 16, 2**16)

    def without_clock(self) -> Decoding:
        """The same with fixed depths: what is drawn then depends on the seed alone, and not on how fast passes were."""
        return replace(self, gamma1=self.gamma1 or _GAMMA1, gamma2=self.gamma2 or _GAMMA2)


def _biases(given: object) -> tuple[tuple[int, float], ...]:
    pairs = list(given.items()) if isinstance(given, Mapping) else listed("logit_bias", given)
    for pair in pairs:
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise UsageError(f"logit_bias has {shown(pair)}: give a mapping of ids to numbers")
        whole("a token id of logit_bias", pair[0], 0, MOST_TOKENS)
        if not isinstance(pair[1], Real) or pair[1] != -math.inf:  # which bans the token
            number(f"the logit_bias of token {pair[0]}", pair[1], -_HEAVIEST, _HEAVIEST)
    return tuple((int(token), float(bias)) for token, bias in pairs)


def _words(given: object) -> tuple[str | tuple[int, ...], ...]:
    require(not isinstance(given, str), f"bad_words is {shown(given)}: give a list of words")
    words: list[str | tuple[int, ...]] = []
    for word in listed("bad_words", given):
        if not isinstance(word, str):
            ids = listed("a word of bad_words", word, "give a text, or a list of token ids")
            word = tuple(whole("a token id of bad_words", token, 0, MOST_TOKENS) for token in ids)
        require(len(word) > 0, "bad_words has an empty word: leave it out")
        if isinstance(word, str):
            text("a word of bad_words", word, "give some text")
        words.append(word)
    return tuple(words)


def _processors(given: object) -> tuple[Callable[..., Any], ...]:
    """One function, or some in a list, which may itself be callable as transformers' `LogitsProcessorList` is."""
    if isinstance(given, Sequence) and not isinstance(given, str):
        return tuple(function for item in given for function in _processors(item))
    if not callable(given) or isinstance(given, type):
        raise UsageError(
            f"processors has {shown(given)}: give functions f(token_ids, logits), or transformers' objects"
        )
    return (given,)


def _schema(given: object) -> str | None:
    """The schema as JSON; True, which any JSON matches, as the object that says the same."""
    if given is None:
        return None
    written = given if isinstance(given, str) else _dumped(given)
    try:
        schema = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"json_schema is not JSON ({error}): give the schema itself, or its file to the CLI") from None
    if schema is True:
        return "{}"
    remedy = "no text matches it, give another schema" if schema is False else "give an object, or true for any JSON"
    require(isinstance(schema, dict), f"json_schema is {shown(schema)}: {remedy}")
    return written


def _dumped(schema: object) -> str:
    try:
        return json.dumps(schema, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"json_schema cannot be written as JSON ({error}): give a dict of plain values") from None


def _settle(settings: object, name: str, least: int, most: int) -> None:
    """Keep a whole number of any kind, as NumPy's, as a plain one. Raises `UsageError`."""
    object.__setattr__(settings, name, whole(name, getattr(settings, name), least, most))
