"""Frozen settings that a caller chooses. Knows nothing of models, caches or tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING

from triforce.errors import UsageError

if TYPE_CHECKING:
    from triforce.tokens import TokenIds

_MOST = 2**24  # tokens or rows: above any context
DEEPEST = 64  # tokens drafted at once: as many as the native kernels verify in one pass
_GAMMA1, _GAMMA2 = 4, 4  # depths where the clock must not choose them
_COLDEST = 1e-37  # the least temperature that logits can be divided by
_LONGEST = 1e9  # seconds: a life


@dataclass(frozen=True)
class SamplingParams:
    """What to draw: the controls that turn logits into a law, and how many tokens to draw at most.

    `temperature` 0 means greedy. `top_k` 0 and `top_p` 1 and `min_p` 0 mean off. Raises `UsageError` when out of range.

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

    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop: bool = False
    ignore_eos: bool = False
    max_seconds: float | None = None
    criteria: Sequence[Callable[[TokenIds], bool]] = ()
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0.0, 1e6)
        _require(
            self.temperature == 0.0 or self.temperature >= _COLDEST,
            f"temperature is {self.temperature}: use 0 for greedy, or at least {_COLDEST:g}",
        )
        _number("top_p", self.top_p, 0.0, 1.0)
        _require(self.top_p > 0.0, f"top_p is {self.top_p}: use a number above 0 and at most 1")
        _whole("top_k", self.top_k, 0, _MOST)
        _number("min_p", self.min_p, 0.0, 1.0)
        if self.seed is not None:
            _whole("seed", self.seed, 0, 2**63 - 1)
        _whole("max_new_tokens", self.max_new_tokens, 1, _MOST)
        self._check_stops()

    def _check_stops(self) -> None:
        """Also makes tuples of what came as lists, so that nobody changes them later."""
        for name in ("stop", "stop_token_ids", "criteria"):
            object.__setattr__(self, name, _several(name, getattr(self, name)))
        for text in self.stop:
            _require(isinstance(text, str), f"stop holds {text!r}: use a text, or a list of texts")
            _require(text != "", "stop holds an empty text: give at least one character")
        for token_id in self.stop_token_ids:
            _whole("an id of stop_token_ids", token_id, 0, _MOST)
        for criterion in self.criteria:
            _require(callable(criterion), f"criteria holds {criterion!r}: use functions of the token ids")
        _require(isinstance(self.include_stop, bool), f"include_stop is {self.include_stop!r}: use True or False")
        _require(isinstance(self.ignore_eos, bool), f"ignore_eos is {self.ignore_eos!r}: use True or False")
        if self.max_seconds is not None:
            _number("max_seconds", self.max_seconds, 0.0, _LONGEST)
            _require(self.max_seconds > 0.0, f"max_seconds is {self.max_seconds}: use a number above 0")
        if self.logprobs is not None:
            alternatives = "use a number of alternatives, 0 for the chosen token alone"
            _require(not isinstance(self.logprobs, bool), f"logprobs is {self.logprobs}: {alternatives}")
            _whole("logprobs", self.logprobs, 0, _MOST)


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
    chunk: int = 8
    sinks: int = 16
    recent: int = 64
    stride: int = 32
    slots: int = 256
    policy: str = "retrieval"

    def __post_init__(self) -> None:
        _require(isinstance(self.method, str), f"method is {self.method!r}: use a name")
        _require(isinstance(self.policy, str), f"policy is {self.policy!r}: use a name")
        for name in ("gamma1", "gamma2"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1, DEEPEST)
        _whole("chunk", self.chunk, 1, _MOST)
        _whole("sinks", self.sinks, 0, _MOST)
        _whole("recent", self.recent, 1, _MOST)
        _whole("stride", self.stride, 1, 4096)
        least = self.sinks + self.recent + 2 * self.chunk
        _whole("budget", self.budget, 1, _MOST)
        _require(
            self.budget >= least,
            f"budget is {self.budget} rows, too few for sinks, recent window and chunks: use --budget {least} or more",
        )
        _whole("slots", self.slots, self.sinks + 16, 2**16)

    def without_clock(self) -> Decoding:
        """The same with fixed depths: what is drawn then depends on the seed alone, and not on how fast passes were."""
        return replace(self, gamma1=self.gamma1 or _GAMMA1, gamma2=self.gamma2 or _GAMMA2)


def _several(name: str, value: object) -> tuple[object, ...]:
    """A text as a tuple of one, a list as a tuple."""
    if isinstance(value, str):
        return (value,)
    _require(isinstance(value, Iterable), f"{name} is {value!r}: use a list")
    assert isinstance(value, Iterable)
    return tuple(value)


def _whole(name: str, value: object, least: int, most: int) -> None:
    _require(isinstance(value, Integral), f"{name} is {value!r}: use a whole number")
    assert isinstance(value, Integral)
    _within(name, int(value), least, most)


def _number(name: str, value: object, least: float, most: float) -> None:
    _require(isinstance(value, Real), f"{name} is {value!r}: use a number")
    assert isinstance(value, Real)
    _within(name, float(value), least, most)


def _within(name: str, value: float, least: float, most: float) -> None:
    if least <= value <= most:
        return
    where = f"at least {least:g}" if value < least else f"at most {most:g}"
    raise UsageError(f"{name} is {value:g}: use {where}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
