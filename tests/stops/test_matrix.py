"""Every stop and output field, for every method, greedy and drawn: the engine gives the naive cut of its free text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from scripted import check_stream, naive_cut
from tiny_engine import tiny_engine
from torch import Tensor

from triforce.completion import Generation
from triforce.config import Decoding, SamplingParams
from triforce.engine import Engine
from triforce.methods import METHODS
from triforce.tokens import TokenIds

PROMPT = "It was the best of times, it was the worst of times. " * 6  # 318 tokens
FEW_ROWS = Decoding(
    budget=64, chunk=4, sinks=8, recent=16, stride=8, slots=48, gamma1=4, gamma2=6
)  # drafts are often rejected
ALL_ROWS = Decoding(slots=512, gamma1=4, gamma2=6)  # drafts are mostly accepted: blocks of seven
NUM = 40

matrix = pytest.mark.parametrize("temperature", [0.0, 0.8])
methods = pytest.mark.parametrize("method", list(METHODS))
rows = pytest.mark.parametrize("decoding", [FEW_ROWS, ALL_ROWS], ids=["few rows", "all rows"])

Changes = dict[str, Any]
FIELDS: dict[str, Callable[[Generation], Changes]] = {
    "nothing": lambda _: {},
    "a limit": lambda _: {"max_new_tokens": 17},
    "a stop string": lambda free: {"stop": free.text[20:23]},
    "a stop string that stays": lambda free: {"stop": free.text[20:23], "include_stop": True},
    "several stop strings": lambda free: {"stop": [free.text[30:32], free.text[12:17], "nowhere"]},
    "a stop id": lambda free: {"stop_token_ids": [free.token_ids[25]]},
    "several stop ids": lambda free: {"stop_token_ids": free.token_ids[20:36:5]},
    "a stop id that stays": lambda free: {"stop_token_ids": [free.token_ids[19]], "include_stop": True},
    "a least length": lambda free: {"min_new_tokens": 24, "stop": [free.text[10:12], free.text[30:32]]},
    "an id and a string": lambda free: {"stop_token_ids": [free.token_ids[33]], "stop": free.text[28:30]},
}


def params(temperature: float, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": temperature, "seed": 5, "max_new_tokens": NUM, "logprobs": 2, **changes})


@cache
def engine() -> Engine:
    """One for all tests: whatever they leave in its cache must not show."""
    return tiny_engine()


@cache
def free_run(method: str, temperature: float, decoding: Decoding, num: int = NUM) -> Generation:
    sampling = params(temperature, max_new_tokens=num)
    return tiny_engine().generate(PROMPT, sampling, replace(decoding, method=method))


@rows
@matrix
@methods
@pytest.mark.parametrize("field", FIELDS)
def test_a_stop_cuts_text_ids_logprobs_and_counts_at_the_same_point(
    method: str, temperature: float, field: str, decoding: Decoding
) -> None:
    free = free_run(method, temperature, decoding)
    sampling = params(temperature, **FIELDS[field](free))
    if sampling.max_new_tokens < NUM:  # the last draft is shorter, so other numbers are drawn
        free = free_run(method, temperature, decoding, sampling.max_new_tokens)
    expected = naive_cut(engine().tokenizer, free.token_ids, sampling)
    stream = engine().stream(PROMPT, sampling, replace(decoding, method=method))
    completions, done = check_stream(stream, expected, free.token_ids)
    assert done.logprobs == [completion.logprobs for completion in completions]
    assert done.logprobs is not None
    assert [entry.token_id for entry in done.logprobs] == done.token_ids
    if temperature == 0.0:
        assert done.token_ids == free_run("ar", 0.0, decoding).token_ids[: expected.num_tokens]
    if field != "nothing":
        assert expected.num_tokens < NUM


@matrix
@methods
def test_every_place_of_a_stop_leaves_caches_that_a_following_call_can_use(method: str, temperature: float) -> None:
    free = free_run(method, temperature, ALL_ROWS)
    used, decoding = tiny_engine(), replace(ALL_ROWS, method=method)
    prompt = used.tokenizer.encode(PROMPT)
    for place in range(1, NUM + 1):

        def at_place(tokens: TokenIds, length: int = len(prompt) + place) -> bool:
            return len(tokens) == length

        done = used.generate(PROMPT, params(temperature, criteria=[at_place]), decoding)
        assert done.token_ids == free.token_ids[:place]
        assert (done.finish_reason, done.stop_reason) == ("stop", "at_place")
        if temperature == 0.0 and place < NUM:
            rest = used.generate(prompt + done.token_ids, params(0.0, max_new_tokens=NUM - place), decoding)
            assert rest.token_ids == free.token_ids[place:]
            assert rest.timings.prefill_tokens == 0


def test_blocks_are_long_where_all_rows_are_read() -> None:
    target = free_run("triforce", 0.8, ALL_ROWS).levels[0]
    assert target.passes <= NUM / 5


@matrix
@methods
def test_criteria_see_every_token_in_order(method: str, temperature: float) -> None:
    seen: list[list[int]] = []

    def watch(tokens: TokenIds) -> bool:
        seen.append(tokens.tolist())
        return len(seen) == 23

    sampling = params(temperature, criteria=[watch])
    done = tiny_engine().generate(PROMPT, sampling, replace(ALL_ROWS, method=method))
    prompt = engine().tokenizer.encode(PROMPT)
    assert seen == [prompt + done.token_ids[:n] for n in range(1, 24)]


@methods
def test_end_tokens_of_the_model_end_the_text_and_are_not_in_it(method: str) -> None:
    free = free_run("ar", 0.0, ALL_ROWS)
    for place in range(3, NUM, 6):
        ends = (free.token_ids[place], free.token_ids[place - 2])
        ending, decoding = tiny_engine(eos_token_ids=ends), replace(ALL_ROWS, method=method)
        done = ending.generate(PROMPT, params(0.0), decoding)
        expected = naive_cut(engine().tokenizer, free.token_ids, params(0.0, stop_token_ids=ends))
        assert (done.token_ids, done.text) == (free.token_ids[: expected.num_tokens], expected.text)
        assert done.stop_reason == expected.stop_reason
        assert ending.generate(PROMPT, params(0.0, ignore_eos=True), decoding).token_ids == free.token_ids


@matrix
@methods
def test_logprobs_are_those_of_the_target_alone(method: str, temperature: float) -> None:
    for decoding in (FEW_ROWS, ALL_ROWS):
        done = free_run(method, temperature, decoding)
        prompt = engine().tokenizer.encode(PROMPT)
        assert done.logprobs is not None
        for i, entry in enumerate(done.logprobs):
            alone = engine().logits(prompt + done.token_ids[:i]).log_softmax(-1)
            assert entry.token_id == done.token_ids[i]
            assert entry.logprob == pytest.approx(float(alone[entry.token_id]), abs=1e-4)
            best = alone.topk(2)
            assert [other.logprob for other in entry.top] == pytest.approx(best.values.tolist(), abs=1e-4)
            assert [other.token_id for other in entry.top] == best.indices.tolist()


@matrix
@methods
def test_logprobs_are_those_before_all_controls(method: str, temperature: float) -> None:
    def spoil(_: object, logits: Tensor) -> Tensor:
        return logits.mul_(0.5)

    controls = {"processors": [spoil], "repetition_penalty": 1.4, "logit_bias": {3: 2.0}, "top_k": 20}
    sampling = params(temperature, max_new_tokens=15, **controls)
    done = engine().generate(PROMPT, sampling, replace(ALL_ROWS, method=method))
    prompt = engine().tokenizer.encode(PROMPT)
    assert done.logprobs is not None
    for i, entry in enumerate(done.logprobs):
        alone = engine().logits(prompt + done.token_ids[:i]).log_softmax(-1)
        assert entry.logprob == pytest.approx(float(alone[entry.token_id]), abs=1e-4)
        assert entry.top[0].logprob == pytest.approx(float(alone.max()), abs=1e-4)
    assert done.token_ids != free_run(method, temperature, ALL_ROWS).token_ids[:15]


@methods
def test_logprobs_are_only_there_when_asked_for(method: str) -> None:
    decoding = replace(ALL_ROWS, method=method)
    assert engine().generate(PROMPT, params(0.0, logprobs=None), decoding).logprobs is None
    chosen = engine().generate(PROMPT, params(0.0, logprobs=0), decoding).logprobs
    assert chosen is not None
    assert [entry.top for entry in chosen] == [()] * NUM
    every = engine().generate(PROMPT, params(0.0, logprobs=1000, max_new_tokens=2), decoding).logprobs
    assert every is not None
    assert sum(2.718281828459045**other.logprob for other in every[1].top) == pytest.approx(1.0, abs=1e-4)
    assert len(every[1].top) == 256
