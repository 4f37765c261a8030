"""What a generation gives: one `Completion` per token while it runs, one `Generation` of the whole.

Command line, benchmarks and library callers all read these.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from triforce.statistics import LevelStats


@dataclass(frozen=True)
class TokenLogprob:
    """A token, its text (with U+FFFD for bytes that are no whole character) and the log-probability it had."""

    token_id: int
    text: str
    logprob: float


@dataclass(frozen=True)
class TokenLogprobs(TokenLogprob):
    """An emitted token, and in `top` the likeliest ones at its place, best first. All under the target's own law:
    before temperature, penalties and cuts, so that greedy output has probabilities too."""

    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True)
class Completion:
    """One token: the text that it settled (never taken back, may be empty), the level that proposed it, and why
    generation ended with it, if it did: `finish_reason` "stop" (`stop_reason` names the string, the id or the
    criterion that stopped it), "length" at `max_new_tokens`, or "time" after `max_seconds`."""

    token_id: int
    text: str
    level: str
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: TokenLogprobs | None = None


@dataclass(frozen=True)
class Timings:
    """Seconds spent loading, reading the prompt and decoding, and tokens: read now, kept from before, decoded.

    The prompt's last token is read by the first step; others are missing where reading was ended early."""

    load_seconds: float
    prefill_seconds: float
    prefill_tokens: int
    decode_seconds: float
    decode_tokens: int
    reused_tokens: int = 0

    @property
    def prefill_tokens_per_second(self) -> float:
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0


@dataclass(frozen=True)
class Generation:
    """All that was generated so far; `finish_reason` is "stop", "length" or "time" as in `Completion`, "cancelled", or
    "interrupted" while unfinished. `text` is that of `token_ids`, cut where a stop string begins; while unfinished it
    shows also what the stream still holds back. `logprobs` has one entry per id, if they were asked for."""

    text: str
    token_ids: list[int]
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    timings: Timings
    levels: list[LevelStats]
    stop_reason: str | int | None = None
    logprobs: list[TokenLogprobs] | None = None

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping, rates included."""
        fields = asdict(self)
        fields["timings"]["prefill_tokens_per_second"] = self.timings.prefill_tokens_per_second
        fields["timings"]["decode_tokens_per_second"] = self.timings.decode_tokens_per_second
        return fields
