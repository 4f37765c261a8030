"""What a generation gives: one `Completion` per token while it runs, one `Generation` of the whole.

Command line, server, benchmark and library callers all read these.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from triforce.statistics import LevelStats


@dataclass(frozen=True)
class Completion:
    """One token: the text that it completed (never taken back, may be empty), the level that proposed it, and why
    generation ended with it ("stop" at an end-of-sequence token, "length" at the limit), if it did."""

    token_id: int
    text: str
    level: str
    finish_reason: str | None = None


@dataclass(frozen=True)
class Timings:
    """Seconds spent loading, reading the prompt and decoding. Reused prompt rows cost no prefill."""

    load_seconds: float
    prefill_seconds: float
    prefill_tokens: int
    decode_seconds: float
    decode_tokens: int

    @property
    def prefill_tokens_per_second(self) -> float:
        return self.prefill_tokens / self.prefill_seconds if self.prefill_seconds else 0.0

    @property
    def decode_tokens_per_second(self) -> float:
        return self.decode_tokens / self.decode_seconds if self.decode_seconds else 0.0


@dataclass(frozen=True)
class Generation:
    """All that was generated so far; `finish_reason` is "stop", "length", or "interrupted" while unfinished."""

    text: str
    token_ids: list[int]
    prompt_tokens: int
    completion_tokens: int
    finish_reason: str
    timings: Timings
    levels: list[LevelStats]

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping, rates included."""
        fields = asdict(self)
        fields["timings"]["prefill_tokens_per_second"] = self.timings.prefill_tokens_per_second
        fields["timings"]["decode_tokens_per_second"] = self.timings.decode_tokens_per_second
        return fields
