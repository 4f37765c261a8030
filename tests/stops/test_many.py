"""Several continuations of one prompt, and seeds: the same call gives the same output, whatever ran before."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tiny_engine import tiny_engine

from triforce.config import Decoding, SamplingParams
from triforce.engine import Engine
from triforce.errors import PromptError, UsageError
from triforce.methods import METHODS

PROMPT = "It was the best of times, it was the worst of times. " * 4  # 212 tokens
SMALL = Decoding(budget=64, chunk=4, sinks=8, recent=16, stride=8, slots=48, gamma1=4, gamma2=6)
LONG = 190  # so many new tokens that the queries before them are overwritten

matrix = pytest.mark.parametrize("temperature", [0.0, 0.8])
methods = pytest.mark.parametrize("method", list(METHODS))


def params(temperature: float, num: int = 24) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=7, max_new_tokens=num, logprobs=1)


@matrix
@methods
def test_each_continuation_is_that_of_a_call_with_its_own_seed(method: str, temperature: float) -> None:
    decoding, sampling = replace(SMALL, method=method), params(temperature)
    many = tiny_engine().generate_many(PROMPT, 3, sampling, decoding)
    for i, done in enumerate(many):
        alone = tiny_engine().generate(PROMPT, replace(sampling, seed=7 + i), decoding)
        assert (done.token_ids, done.text) == (alone.token_ids, alone.text)
        assert done.logprobs == alone.logprobs  # to the last bit: no row of the prompt was made anew
    assert len({tuple(done.token_ids) for done in many}) == (1 if temperature == 0.0 else 3)


@pytest.mark.parametrize("method", ["ar", "triforce"])
def test_the_prompt_is_read_once(method: str) -> None:
    many = tiny_engine().generate_many(PROMPT, 4, params(0.8, LONG), replace(SMALL, method=method))
    assert [done.timings.prefill_tokens for done in many] == [211, 0, 0, 0]
    assert [done.completion_tokens for done in many] == [LONG] * 4


def test_streams_come_one_after_the_other() -> None:
    engine, sampling = tiny_engine(), params(0.8)
    texts = ["".join(completion.text for completion in stream) for stream in engine.streams(PROMPT, 3, sampling, SMALL)]
    assert texts == [done.text for done in tiny_engine().generate_many(PROMPT, 3, sampling, SMALL)]


def test_without_a_seed_continuations_differ() -> None:
    many = tiny_engine().generate_many(PROMPT, 3, replace(params(0.8), seed=None), SMALL)
    assert len({tuple(done.token_ids) for done in many}) == 3


def test_the_largest_seed_is_followed_by_zero() -> None:
    largest = replace(params(0.8), seed=2**63 - 1)
    many = tiny_engine().generate_many(PROMPT, 2, largest, SMALL)
    assert many[1].token_ids == tiny_engine().generate(PROMPT, replace(largest, seed=0), SMALL).token_ids


@pytest.mark.parametrize("n", [0, -1, 1.5, "two"])
def test_a_number_of_continuations_that_cannot_be_is_refused(n: int) -> None:
    with pytest.raises(UsageError, match=r"n is .*: use "):
        tiny_engine().streams(PROMPT, n)


def test_a_prompt_that_cannot_be_served_is_refused_before_the_first_stream() -> None:
    with pytest.raises(PromptError, match="the prompt is empty"):
        tiny_engine().streams("", 2)
    with pytest.raises(PromptError, match="more than the 512"):
        tiny_engine().streams(PROMPT, 2, params(0.8, 500))


def long_run(engine: Engine) -> None:
    engine.generate(PROMPT, SamplingParams(temperature=1.0, max_new_tokens=LONG))


def another_prompt(engine: Engine) -> None:
    engine.generate("Call me Ishmael. " * 9, SamplingParams(max_new_tokens=9))


def a_longer_one(engine: Engine) -> None:
    engine.generate(PROMPT + "And then?", SamplingParams(max_new_tokens=9))


def half_of_it(engine: Engine) -> None:
    engine.generate(PROMPT[:99], SamplingParams(temperature=1.0, max_new_tokens=9), Decoding(stride=64))


def an_abandoned_stream(engine: Engine) -> None:
    stream = engine.stream(PROMPT, SamplingParams(temperature=1.0, max_new_tokens=50))
    for _ in range(5):
        next(stream)


@matrix
@methods
def test_a_seed_repeats_a_call_whatever_ran_before(method: str, temperature: float) -> None:
    decoding, sampling = replace(SMALL, method=method), params(temperature)
    first = tiny_engine().generate(PROMPT, sampling, decoding)
    engine = tiny_engine()
    for before in (another_prompt, a_longer_one, half_of_it, long_run, an_abandoned_stream, long_run):
        before(engine)
        again = engine.generate(PROMPT, sampling, decoding)
        assert (again.token_ids, again.text) == (first.token_ids, first.text)
