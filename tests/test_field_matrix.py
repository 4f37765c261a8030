"""Every field of the settings with every method, greedy and drawn, through the engine: one table of cases.

Whatever a case asks for, laws are those of slow plain rules over the target alone, and the text is the naive cut.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from naive import naive_law
from scripted import NaiveCut, check_stream, naive_cut
from tiny_engine import byte_tokenizer, tiny_engine
from torch import Tensor

import triforce.stream
from triforce.completion import Generation, TokenLogprobs
from triforce.config import Decoding, SamplingParams
from triforce.controls.base import Call
from triforce.controls.guidance import Grammars
from triforce.engine import Engine
from triforce.methods import METHODS
from triforce.speculative import Verdict

PROMPT = "It was the best of times, it was the worst of times. " * 3  # 159 tokens
END = 0
NEW = 14
SMALL = Decoding(budget=64, chunk=4, sinks=8, recent=16, stride=8, slots=48, gamma1=4, gamma2=6)
SCHEMA = {
    "type": "object",
    "properties": {"who": {"enum": ["Bob", "Eve"]}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["who", "age"],
    "additionalProperties": False,
}


def shun(token_ids: Any, logits: Any) -> Any:
    """A processor of the caller's: the last two tokens become less likely. Takes lists and tensors."""
    for token in {int(token_ids[-1]), int(token_ids[-2])}:
        logits[token] = logits[token] - 3.0
    return logits


def eight_more(token_ids: Any) -> bool:
    """A criterion of the caller's."""
    return len(token_ids) >= len(PROMPT) + 8


CASES: dict[str, Callable[[Generation], dict[str, Any]]] = {  # from what is said without them, to turn that
    "logit_bias": lambda free: {"logit_bias": {free.token_ids[0]: -4.0, 7: 3.0}},
    "repetition_penalty": lambda _: {"repetition_penalty": 1.8},
    "presence_penalty": lambda _: {"presence_penalty": 3.0},
    "frequency_penalty": lambda _: {"frequency_penalty": 2.0},
    "no_repeat_ngram_size": lambda _: {"no_repeat_ngram_size": 2},
    "bad_words": lambda free: {"bad_words": [free.token_ids[0:2], free.token_ids[4:7], [free.token_ids[9]]]},
    "min_new_tokens": lambda _: {"min_new_tokens": 12, "logit_bias": {END: 30.0}},
    "processors": lambda _: {"processors": [shun]},
    "top_p": lambda _: {"top_p": 0.7},
    "top_k": lambda _: {"top_k": 3},
    "min_p": lambda _: {"min_p": 0.2},
    "typical_p": lambda _: {"typical_p": 0.6},
    "seed": lambda _: {"seed": 8},
    "regex": lambda _: {"regex": "[a-m ,]{4,60}"},
    "json_schema": lambda _: {"json_schema": SCHEMA},
    "choice": lambda _: {"choice": ["the best", "the worst of times", "It is"]},
    "grammar": lambda _: {"grammar": 'start: word (" " word)*\nword: /[A-F]+/ | /[w-z]+/'},
    "max_new_tokens": lambda _: {"max_new_tokens": 9},
    "stop": lambda free: {"stop": free.text[5:7]},
    "several stops": lambda free: {"stop": [free.text[8:10], free.text[4:7], "nowhere"]},
    "stop_token_ids": lambda free: {"stop_token_ids": [free.token_ids[6], free.token_ids[10]]},
    "include_stop": lambda free: {"stop": free.text[5:7], "include_stop": True},
    "ignore_eos": lambda _: {"ignore_eos": True, "logit_bias": {END: 6.0}},
    "max_seconds": lambda _: {"max_seconds": 1.5},  # with a clock that goes on by a second at each step
    "criteria": lambda _: {"criteria": [eight_more]},
    "logprobs": lambda _: {"logprobs": 2},
    "all": lambda free: {
        "repetition_penalty": 1.2,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.2,
        "no_repeat_ngram_size": 4,
        "bad_words": [[120]],
        "min_new_tokens": 5,
        "processors": [shun],
        "typical_p": 0.9,
        "top_p": 0.95,
        "min_p": 0.01,
        "regex": "[a-z ]{4,60}",
        "stop": [" ", free.text[9:11]],
        "include_stop": True,
        "logprobs": 1,
    },
}
AXES = {"temperature"}  # which every case is run with
ONLY_DRAWN = {"top_p", "top_k", "min_p", "typical_p", "seed"}  # which greedy decoding does not ask

temperatures = pytest.mark.parametrize("temperature", [0.0, 0.8])
methods = pytest.mark.parametrize("method", list(METHODS))


@cache
def engine() -> Engine:
    return tiny_engine(eos_token_ids=(END,))


@cache
def grammars() -> Grammars:
    return Grammars(byte_tokenizer(), (END,))


def params_of(temperature: float, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": temperature, "seed": 3, "max_new_tokens": NEW, **changes})


@cache
def free_run(method: str, temperature: float) -> Generation:
    """What is said when nothing is asked for."""
    return engine().generate(PROMPT, params_of(temperature), replace(SMALL, method=method))


def fields_asked() -> set[str]:
    free = free_run("ar", 0.0)
    return AXES.union(*(case(free) for case in CASES.values()))


def test_every_field_of_the_settings_is_in_a_case() -> None:
    assert fields_asked() == {field.name for field in fields(SamplingParams)}


@pytest.fixture
def verdicts(monkeypatch: pytest.MonkeyPatch) -> list[Verdict]:
    """The verdicts of the stream that the test draws from; a second goes by at each."""
    seen: list[Verdict] = []
    step = triforce.stream.step

    def recorded(*args: Any) -> Verdict:
        seen.append(step(*args))
        return seen[-1]

    monkeypatch.setattr(triforce.stream, "step", recorded)
    monkeypatch.setattr(triforce.stream, "time", SimpleNamespace(perf_counter=lambda: 100.0 + len(seen)))
    return seen


def expected_law(params: SamplingParams, row: Tensor, history: list[int], prompt_tokens: int) -> Tensor:
    """The law after `history` by the slow plain rules, and by a matcher that has read nothing else."""

    def allowed(text: list[int]) -> set[int]:
        if END in text:
            return {END}
        matcher = grammars().matcher(params)
        assert all(matcher.consume(token) for token in text)
        return set(matcher.allowed().nonzero()[0].tolist()) | ({END} if matcher.accepts_end() else set())

    ends = () if params.ignore_eos else (END,)
    call = Call(prompt_tokens, len(row), (*ends, *params.stop_token_ids))
    return torch.from_numpy(naive_law(params, row.tolist(), history, call, allowed if params.structure else None))


def expected_cut(params: SamplingParams, verified: list[int], prompt: list[int]) -> NaiveCut:
    """What the settings must leave of all tokens that were `verified`."""
    ends = () if params.ignore_eos else (END,)
    known = replace(params, stop_token_ids=(*params.stop_token_ids, *ends))
    cut = naive_cut(engine().tokenizer, verified, known)
    for num in range(1, cut.num_tokens + 1):
        for criterion in params.criteria:
            if criterion(prompt + verified[:num]):  # type: ignore[arg-type]
                upto = naive_cut(engine().tokenizer, verified[:num], known)
                return replace(upto, finish_reason="stop", stop_reason=criterion.__name__)
    out_of_time = params.max_seconds is not None and cut.finish_reason == "length" and cut.num_tokens < NEW
    return replace(cut, finish_reason="time") if out_of_time else cut


def check_token(
    params: SamplingParams, history: list[int], prompt_tokens: int, law: Tensor, logprobs: TokenLogprobs | None
) -> None:
    """What the engine knew of a token after `history` is what the target alone says."""
    row = engine().logits(history)
    torch.testing.assert_close(law.double(), expected_law(params, row, history, prompt_tokens), atol=1e-4, rtol=1e-3)
    assert (logprobs is None) == (params.logprobs is None)
    if logprobs is not None:
        assert logprobs.logprob == pytest.approx(float(row.log_softmax(-1)[logprobs.token_id]), abs=1e-4)
        assert len(logprobs.top) == params.logprobs


@pytest.mark.parametrize("case", CASES)
@temperatures
@methods
def test_a_field_does_what_it_says_with_every_method(
    method: str, temperature: float, case: str, verdicts: list[Verdict]
) -> None:
    free, decoding = free_run(method, temperature), replace(SMALL, method=method)
    params, prompt = params_of(temperature, **CASES[case](free)), engine().tokenizer.encode(PROMPT)
    verdicts.clear()
    engine().generate(PROMPT, params, decoding)
    in_time = verdicts if params.max_seconds is None else verdicts[: math.ceil(params.max_seconds)]
    verified = [token for verdict in in_time for token in verdict.tokens]
    laws = torch.cat([verdict.laws for verdict in verdicts])
    # Once more, now that it is known what must come: the same seed says the same
    expected = expected_cut(params, verified, prompt)
    completions, done = check_stream(engine().stream(PROMPT, params, decoding), expected, verified)
    for i, completion in enumerate(completions):
        assert laws[i][completion.token_id] > 0
        check_token(params, prompt + done.token_ids[:i], len(prompt), laws[i], completion.logprobs)
    assert done.logprobs == (None if params.logprobs is None else [completion.logprobs for completion in completions])
    if temperature > 0.0 or case not in ONLY_DRAWN:
        assert replace(done, timings=free.timings, levels=free.levels) != free or changes_a_law(
            laws, done, prompt, temperature
        )


def changes_a_law(laws: Tensor, done: Generation, prompt: list[int], temperature: float) -> bool:
    """Whether one of the `laws` of a text is not that which nothing asked for would give."""
    histories = [prompt + done.token_ids[:i] for i in range(done.completion_tokens)]
    logits = torch.stack([engine().logits(history) for history in histories])
    one_hot = torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1]).float()
    plain = (logits / temperature).softmax(-1) if temperature > 0.0 else one_hot
    return not torch.allclose(laws[: len(plain)], plain, atol=1e-3)
