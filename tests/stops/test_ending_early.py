"""A stream that is cancelled, closed or out of time: what was handed out stays, and the engine stays exact."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from scripted import TOKENIZER, scripted_stream
from tiny_engine import tiny_engine

import triforce.stream
from triforce import runner
from triforce.config import Decoding, SamplingParams
from triforce.methods import METHODS
from triforce.report import format_generation

PROMPT = "It was the best of times, it was the worst of times. " * 6  # 318 tokens
BLOCKS = Decoding(slots=512, gamma1=4, gamma2=6)
SAMPLING = SamplingParams(max_new_tokens=40, seed=5)
PLAIN = tiny_engine().generate(PROMPT, SAMPLING, Decoding(method="ar")).token_ids
methods = pytest.mark.parametrize("method", list(METHODS))


class Clock:
    """Stands still but for `after_step` seconds with every step, and calls `at_step` during each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, after_step: float = 0.0) -> None:
        self.now = 100.0
        self.num_steps = 0
        self.at_step: Callable[[], object] = lambda: None
        step = triforce.stream.step

        def timed(*args: Any) -> Any:
            verdict = step(*args)
            self.now += after_step
            self.num_steps += 1
            self.at_step()
            return verdict

        monkeypatch.setattr(triforce.stream, "step", timed)
        monkeypatch.setattr(triforce.stream, "time", SimpleNamespace(perf_counter=lambda: self.now))


@pytest.fixture
def small_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt is read in passes of 64 tokens."""
    monkeypatch.setattr(runner, "PREFILL_ROWS", 64)


@methods
def test_a_cancelled_stream_gives_nothing_more(method: str) -> None:
    engine = tiny_engine()
    for num in range(12):
        stream = engine.stream(PROMPT, SAMPLING, replace(BLOCKS, method=method))
        given = [next(stream).token_id for _ in range(num)]
        stream.cancel()
        assert list(stream) == []
        done = stream.generation()
        assert (done.token_ids, done.finish_reason, done.completion_tokens) == (given, "cancelled", num)
        assert given == PLAIN[:num]
    assert engine.generate(PROMPT, SAMPLING, replace(BLOCKS, method=method)).token_ids == PLAIN


@methods
def test_a_stream_cancelled_during_a_pass_drops_what_the_pass_gave(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, clock = tiny_engine(), Clock(monkeypatch)
    stream = engine.stream(PROMPT, SAMPLING, replace(BLOCKS, method=method))
    clock.at_step = lambda: stream.cancel() if clock.num_steps == 3 else None
    given = [completion.token_id for completion in stream]
    assert 0 < len(given) < 40
    assert (stream.generation().token_ids, stream.generation().finish_reason) == (given, "cancelled")
    clock.at_step = lambda: None
    assert engine.generate(PROMPT, SAMPLING, replace(BLOCKS, method=method)).token_ids == PLAIN


def test_another_thread_can_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, fifth, cancelled = Clock(monkeypatch), threading.Event(), threading.Event()
    stream = tiny_engine().stream(PROMPT, SAMPLING, Decoding(method="ar"))

    def wait() -> None:
        if clock.num_steps == 6:
            fifth.set()
            assert cancelled.wait(20)

    clock.at_step = wait
    reader = threading.Thread(target=lambda: list(stream))
    reader.start()
    assert fifth.wait(20)
    stream.cancel()
    cancelled.set()
    reader.join(20)
    assert not reader.is_alive()
    assert (stream.generation().token_ids, stream.generation().finish_reason) == (PLAIN[:5], "cancelled")


@pytest.mark.usefixtures("small_passes")
def test_a_stream_cancelled_while_the_prompt_is_read_stops_reading() -> None:
    engine = tiny_engine()
    seen: list[int] = []

    def progress(rows: int, wanted: int) -> None:
        assert wanted == 317
        seen.append(rows)
        if rows == 128:
            stream.cancel()

    stream = engine.stream(PROMPT, SAMPLING, on_prefill=progress)
    assert list(stream) == []
    done = stream.generation()
    assert seen == [64, 128]
    assert (done.text, done.token_ids, done.finish_reason) == ("", [], "cancelled")
    assert (done.timings.prefill_tokens, done.timings.reused_tokens) == (128, 0)
    assert "128 read in" in format_generation(done) and "189 not read" in format_generation(done)
    again = engine.generate(PROMPT, SAMPLING)
    assert again.token_ids == PLAIN
    assert (again.timings.prefill_tokens, again.timings.reused_tokens) == (317 - 128, 128)
    assert "128 kept from before" in format_generation(again) and "not read" not in format_generation(again)


def test_closing_a_stream_cancels_it() -> None:
    with closing(tiny_engine().stream(PROMPT, SAMPLING)) as stream:
        next(stream)
    assert stream.generation().finish_reason == "cancelled"
    assert list(stream) == []


def test_a_finished_stream_stays_finished_when_it_is_closed() -> None:
    stream = tiny_engine().stream(PROMPT, SAMPLING)
    completions = list(stream)
    stream.close()
    assert stream.generation().finish_reason == completions[-1].finish_reason == "length"


def test_text_that_was_held_back_is_in_the_record_of_a_cancelled_stream() -> None:
    ids = TOKENIZER.encode("so on and 🙂")
    for num in range(len(ids) + 1):
        stream = scripted_stream(TOKENIZER, ids, SamplingParams(stop="on and on"), [5])
        shown = "".join(next(stream).text for _ in range(num))
        assert stream.generation().finish_reason == "interrupted"
        stream.cancel()
        done = stream.generation()
        assert done.text == TOKENIZER.decode(ids[:num])
        assert done.text.startswith(shown)
        assert "on" not in shown or "🙂" in TOKENIZER.decode(ids[:num])


@methods
def test_time_that_runs_out_ends_the_text_with_the_pass_under_way(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tiny_engine()
    clock = Clock(monkeypatch, after_step=1.0)
    stream = engine.stream(PROMPT, replace(SAMPLING, max_seconds=2.5), replace(BLOCKS, method=method))
    completions = list(stream)
    done = stream.generation()
    assert clock.num_steps == 3
    assert done.token_ids == PLAIN[: len(completions)]
    assert (done.finish_reason, completions[-1].finish_reason, done.stop_reason) == ("time", "time", None)
    assert [completion.finish_reason for completion in completions[:-1]] == [None] * (len(completions) - 1)
    assert done.text == "".join(completion.text for completion in completions)
    assert len(completions) >= 3
    assert method in ("ar", "lookup") or len(completions) > 3


def test_a_text_that_ends_by_itself_in_the_last_pass_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch, after_step=1.0)
    for place in range(7):
        sampling = replace(SAMPLING, max_seconds=0.5, max_new_tokens=place + 1)
        done = tiny_engine().generate(PROMPT, sampling, BLOCKS)
        assert done.token_ids == PLAIN[: place + 1]
        assert done.finish_reason == "length"


@pytest.mark.usefixtures("small_passes")
def test_time_that_runs_out_while_the_prompt_is_read_leaves_an_empty_text(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, clock = tiny_engine(), Clock(monkeypatch)

    def progress(rows: int, wanted: int) -> None:
        del rows, wanted
        clock.now += 1.0

    stream = engine.stream(PROMPT, replace(SAMPLING, max_seconds=2.0), on_prefill=progress)
    assert list(stream) == []
    assert (stream.generation().text, stream.generation().finish_reason) == ("", "time")
    assert stream.generation().timings.prefill_tokens == 128
    assert engine.generate(PROMPT, SAMPLING).token_ids == PLAIN
