"""Frozen settings that a caller chooses. Knows nothing of models, caches or tensors."""

from __future__ import annotations

from dataclasses import dataclass

from triforce.errors import UsageError


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
        _require(0.0 <= self.temperature < float("inf"), f"temperature is {self.temperature}: use 0 (greedy) or more")
        _require(0.0 < self.top_p <= 1.0, f"top_p is {self.top_p}: use a number above 0 and at most 1")
        _require(self.top_k >= 0, f"top_k is {self.top_k}: use 0 (off) or more")
        _require(0.0 <= self.min_p <= 1.0, f"min_p is {self.min_p}: use a number from 0 to 1")
        _require(self.max_new_tokens >= 1, f"max_new_tokens is {self.max_new_tokens}: ask for at least 1 token")


@dataclass(frozen=True)
class Decoding:
    """How to decode: the method and the sizes of its levels. No setting here changes the law of the output.

    `gamma1` tokens are drafted for the sparse level, `gamma2` for the target. `budget` rows are kept per KV head by
    the sparse level: `sinks` first rows, the `recent` last ones, and the best chunks of `chunk` rows in between,
    selected by `policy` anew every `stride` committed tokens. `slots` rows are seen by a small model's streaming cache.
    """

    method: str = "triforce"
    gamma1: int = 4
    gamma2: int = 6
    budget: int = 1024
    chunk: int = 8
    sinks: int = 16
    recent: int = 64
    stride: int = 32
    slots: int = 256
    policy: str = "retrieval"

    def __post_init__(self) -> None:
        _require(self.gamma1 >= 1, f"gamma1 is {self.gamma1}: use at least 1")
        _require(self.gamma2 >= 1, f"gamma2 is {self.gamma2}: use at least 1")
        _require(self.chunk >= 1, f"chunk is {self.chunk}: use at least 1 row")
        _require(self.stride >= 1, f"stride is {self.stride}: use at least 1 token")
        _require(self.sinks >= 0 and self.recent >= 1, "sinks must be 0 or more and recent at least 1 row")
        least = self.sinks + self.recent + 2 * self.chunk
        _require(
            self.budget >= least,
            f"budget is {self.budget} rows, too few for sinks, recent window and chunks: use --budget {least} or more",
        )
        _require(self.slots >= self.sinks + 16, f"slots is {self.slots}: use at least sinks + 16 = {self.sinks + 16}")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise UsageError(message)
