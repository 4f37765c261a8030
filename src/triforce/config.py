"""Frozen settings that a caller chooses. Knows nothing of models, caches or tensors."""

from __future__ import annotations

from dataclasses import dataclass, replace
from numbers import Integral, Real

from triforce.errors import UsageError

_MOST = 2**24  # tokens or rows: above any context
DEEPEST = 64  # tokens drafted at once: as many as the native kernels verify in one pass
_GAMMA1, _GAMMA2 = 4, 4  # depths where the clock must not choose them
_COLDEST = 1e-37  # the least temperature that logits can be divided by


@dataclass(frozen=True)
class SamplingParams:
    """What to draw: the controls that turn logits into a law, and how many tokens to draw at most.

    `temperature` 0 means greedy. `top_k` 0 and `top_p` 1 and `min_p` 0 mean off. Raises `UsageError` when out of range.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_new_tokens: int = 256

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
