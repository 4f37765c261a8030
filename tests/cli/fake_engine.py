"""An engine that says fixed words at a chosen pace. As a script it is the `triforce` command over such an engine.

The script reads FAKE_PAUSE, the phase ("load", "prefill" or "decode") that never ends, and FAKE_WORDS, their number.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest

import triforce
from triforce.cli import main
from triforce.completion import Completion, Generation, Timings
from triforce.config import Decoding, SamplingParams
from triforce.statistics import LevelStats

WORDS = ("To ", "be, ", "or ", "not ", "to ", "bé")


class FakeStream(Iterator[Completion]):
    """Hands out words; raises `error` in place of word number `error_at`."""

    def __init__(self, engine: FakeEngine, on_prefill: Callable[[int, int], None] | None) -> None:
        self._engine = engine
        self._on_prefill = on_prefill
        self._completions: list[Completion] = []

    def __next__(self) -> Completion:
        engine, position = self._engine, len(self._completions)
        if position == 0:
            engine.reach("prefill")
            if self._on_prefill:
                self._on_prefill(3, 3)
        if position == engine.error_at:
            raise engine.error
        if position >= len(engine.words):
            raise StopIteration
        if position == 2:
            engine.reach("decode")
        finish = engine.finish if position == len(engine.words) - 1 else None
        self._completions.append(Completion(position, engine.words[position], "target", finish))
        return self._completions[-1]

    def generation(self) -> Generation:
        done = self._completions
        return Generation(
            text="".join(completion.text for completion in done),
            token_ids=[completion.token_id for completion in done],
            prompt_tokens=4,
            completion_tokens=len(done),
            finish_reason=(done[-1].finish_reason if done else None) or "interrupted",
            stop_reason=self._engine.stop_reason if len(done) == len(self._engine.words) else None,
            timings=Timings(0.5, 0.25, 3, 2.0, len(done)),
            levels=[LevelStats("target", 3, 0, 0, 1.5), LevelStats("sparse", 6, 8, 6, 0.5)],
        )


class FakeEngine:
    """Records the call it gets in `call`."""

    context_length = 16384

    def __init__(
        self,
        words: tuple[str, ...] = WORDS,
        *,
        error: Exception | None = None,
        error_at: int = -1,
        endless: str = "",
        finish: str = "length",
        stop_reason: str | int | None = None,
    ) -> None:
        self.words = words
        self.finish, self.stop_reason = finish, stop_reason
        self.error = error or ValueError("none")
        self.error_at = error_at
        self.endless = endless
        self.call: dict[str, Any] = {}

    def load(self, model: str, **settings: Any) -> FakeEngine:
        """In place of `triforce.load`."""
        self.call |= {"model": model, **settings}
        self.reach("load")
        return self

    def stream(
        self,
        prompt: str,
        sampling: SamplingParams,
        decoding: Decoding,
        *,
        chat: bool = False,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> FakeStream:
        self.call |= {"prompt": prompt, "sampling": sampling, "decoding": decoding, "chat": chat}
        return FakeStream(self, on_prefill)

    def streams(
        self,
        prompt: str,
        n: int,
        sampling: SamplingParams,
        decoding: Decoding,
        *,
        chat: bool = False,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Iterator[FakeStream]:
        self.call["n"] = n
        return (self.stream(prompt, sampling, decoding, chat=chat, on_prefill=on_prefill) for _ in range(n))

    def reach(self, phase: str) -> None:
        """Say so and stay there, if this is the endless phase."""
        if phase == self.endless:
            print("reached", phase, file=sys.stderr, flush=True)
            time.sleep(600)


Install = Callable[[FakeEngine], FakeEngine]


def give_input(monkeypatch: pytest.MonkeyPatch, data: bytes, *, terminal: bool = False) -> None:
    """Let standard input be `data`."""
    stdin = io.TextIOWrapper(io.BytesIO(data))
    stdin.isatty = lambda: terminal  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", stdin)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # even where a shell started us in the background
    words = WORDS * int(os.environ.get("FAKE_WORDS", "1"))
    kernels = ModuleType("triforce.native")  # so that nothing loads PyTorch, which takes seconds
    kernels.kernels, kernels.why_missing = object, str  # type: ignore[attr-defined]
    sys.modules["triforce.native"] = kernels
    triforce.load = FakeEngine(words, endless=os.environ.get("FAKE_PAUSE", "")).load  # type: ignore[assignment]
    sys.exit(main())
