"""Every control with every method, greedy and drawn, through the engine: slow plain rules over the target alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from naive import naive_law
from tiny_engine import byte_tokenizer, tiny_engine
from torch import Tensor

import triforce.stream
from triforce.config import STRUCTURES, Decoding, SamplingParams
from triforce.controls import CONTROLS
from triforce.controls.base import Call
from triforce.controls.guidance import Grammars, structure_of
from triforce.engine import Engine
from triforce.methods import METHODS
from triforce.speculative import Verdict

PROMPT = "It was the best of times, it was the worst of times. " * 3  # 159 tokens
END = 0
NEW = 14
SMALL = {"budget": 64, "chunk": 4, "sinks": 8, "recent": 16, "stride": 8, "slots": 48, "gamma1": 4, "gamma2": 6}
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


@cache
def plain_tokens() -> list[int]:
    """What the model says without any control."""
    return engine().generate(PROMPT, SamplingParams(max_new_tokens=NEW), Decoding(method="ar")).token_ids


@cache
def engine() -> Engine:
    return tiny_engine(eos_token_ids=(END,))


SETTINGS: dict[str, Callable[[list[int]], dict[str, Any]]] = {  # from what the model says without them, to turn that
    "logit_bias": lambda said: {"logit_bias": {said[0]: -4.0, 7: 3.0}},
    "repetition_penalty": lambda _: {"repetition_penalty": 1.8},
    "presence_penalty": lambda _: {"presence_penalty": 3.0},
    "frequency_penalty": lambda _: {"frequency_penalty": 2.0},
    "no_repeat_ngram_size": lambda _: {"no_repeat_ngram_size": 2},
    "bad_words": lambda said: {"bad_words": [said[0:2], said[4:7], [said[9]]]},
    "min_new_tokens": lambda _: {"min_new_tokens": 12, "logit_bias": {END: 30.0}},
    "processors": lambda _: {"processors": [shun]},
    "typical_p": lambda _: {"typical_p": 0.6},
    "regex": lambda _: {"regex": "[a-m ,]{4,60}"},
    "json_schema": lambda _: {"json_schema": SCHEMA},
    "choice": lambda _: {"choice": ["the best", "the worst of times", "It is"]},
    "grammar": lambda _: {"grammar": 'start: word (" " word)*\nword: /[A-F]+/ | /[w-z]+/'},
    "all": lambda _: {
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
    },
}


def params_of(setting: str, temperature: float) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=3, max_new_tokens=NEW, **SETTINGS[setting](plain_tokens()))


def test_every_control_has_a_case() -> None:
    assert {*CONTROLS, *STRUCTURES, "typical_p"} <= set(SETTINGS)


def expected_law(params: SamplingParams, row: Tensor, history: list[int], prompt_tokens: int) -> Tensor:
    """The law after `history` by the slow plain rules, and by a matcher that has read nothing else."""

    def allowed(text: list[int]) -> set[int]:
        if END in text:
            return {END}
        matcher = grammars().matcher(params)
        assert all(matcher.consume(token) for token in text)
        return set(matcher.allowed().nonzero()[0].tolist()) | ({END} if matcher.accepts_end() else set())

    call = Call(prompt_tokens, len(row), (END,))
    return torch.from_numpy(naive_law(params, row.tolist(), history, call, allowed if structure_of(params) else None))


@cache
def grammars() -> Grammars:
    return Grammars(byte_tokenizer(), (END,))


@cache
def expected_greedy(setting: str) -> list[int]:
    """Plain decoding with the slow plain rules, one token at a time."""
    params = params_of(setting, 0.0)
    prompt = engine().tokenizer.encode(PROMPT)
    tokens = list(prompt)
    while len(tokens) < len(prompt) + NEW and END not in tokens[len(prompt) :]:
        law = expected_law(params, engine().logits(tokens), tokens, len(prompt))
        tokens.append(int(law.argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", list(METHODS))
def test_greedy_tokens_are_those_of_plain_decoding_with_the_same_control(method: str, setting: str) -> None:
    params = params_of(setting, 0.0)
    done = engine().generate(PROMPT, params, Decoding(method=method, **SMALL))  # type: ignore[arg-type]
    assert done.token_ids == expected_greedy(setting)
    if setting != "typical_p":  # which greedy decoding does not ask
        assert done.token_ids != plain_tokens()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("method", list(METHODS))
def test_drawn_tokens_follow_the_controlled_law_of_the_target_alone(
    method: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = params_of(setting, 0.8)  # first: it may generate a text of its own
    verdicts: list[Verdict] = []
    step = triforce.stream.step

    def recorded(*args: Any) -> Verdict:
        verdicts.append(step(*args))
        return verdicts[-1]

    monkeypatch.setattr(triforce.stream, "step", recorded)
    done = engine().generate(PROMPT, params, Decoding(method=method, **SMALL))  # type: ignore[arg-type]
    prompt = engine().tokenizer.encode(PROMPT)
    tokens = [*prompt, *done.token_ids]
    laws = torch.cat([verdict.laws for verdict in verdicts])[: len(done.token_ids)]
    for i, law in enumerate(laws):
        history = tokens[: len(prompt) + i]
        expected = expected_law(params, engine().logits(history), history, len(prompt))
        torch.testing.assert_close(law.double(), expected, atol=1e-4, rtol=1e-3)
        assert law[tokens[len(history)]] > 0
