"""Structured output through the engine: valid by the schema's own validator, whatever drafts it."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import pytest
from tiny_engine import tiny_engine

from triforce.config import Decoding, SamplingParams
from triforce.errors import UsageError
from triforce.methods import METHODS

END = 0
PROMPT = "It was the best of times, it was the worst of times. "
SMALL = {"budget": 48, "chunk": 4, "sinks": 8, "recent": 8, "stride": 8, "slots": 48, "gamma1": 4, "gamma2": 6}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["cat", "cow", "dog"]},
        "legs": {"type": "integer", "minimum": 2, "maximum": 40},
        "tags": {"type": "array", "items": {"type": "string", "pattern": "^[a-f]{1,2}$"}, "maxItems": 2},
    },
    "required": ["kind", "legs", "tags"],
    "additionalProperties": False,
}
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def decoding(method: str, **changes: int) -> Decoding:
    return Decoding(method=method, **{**SMALL, **changes})  # type: ignore[arg-type]


def said(engine: Any, method: str, seed: int, **settings: Any) -> str:
    """The text after a prompt of the seed's own, which must be whole."""
    sampling = SamplingParams(temperature=1.0, seed=seed, **settings)
    done = engine.generate(f"{PROMPT}{seed * seed} ", sampling, decoding(method))
    assert done.finish_reason == "stop", "it has not ended"
    assert done.token_ids[-1] == END
    return done.text


@pytest.mark.parametrize("method", list(METHODS))
def test_200_samples_are_valid_by_the_schemas_own_validator(method: str) -> None:
    engine = tiny_engine((END,), special=(END,))
    texts = {said(engine, method, seed, max_new_tokens=120, json_schema=SCHEMA) for seed in range(200)}
    for text in texts:
        VALIDATOR.validate(json.loads(text))
    assert len(texts) > 60, "hardly two differ: the samples test little"


def test_the_validator_would_see_what_an_unconstrained_model_says() -> None:
    done = tiny_engine().generate(PROMPT, SamplingParams(temperature=1.0, seed=1, max_new_tokens=40))
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(done.text)


@pytest.mark.parametrize("method", list(METHODS))
def test_forced_tokens_are_drafted_by_the_grammar_and_accepted(method: str) -> None:
    engine = tiny_engine((END,), special=(END,))
    sampling = SamplingParams(temperature=1.0, seed=5, max_new_tokens=120, json_schema=SCHEMA)
    stream = engine.stream(PROMPT, sampling, decoding(method))
    levels = [completion.level for completion in stream]
    done = stream.generation()
    (grammar,) = [level for level in done.levels if level.name == "grammar"]
    assert levels.count("grammar") >= 25
    assert levels[0] == levels[1] == "grammar", "the text begins with what is forced"
    assert grammar.accepted >= levels.count("grammar")
    assert grammar.accepted == grammar.drafted, "one token a byte: there is no other way to spell what is forced"
    target = done.levels[0]
    assert target.passes < 0.6 * done.completion_tokens
    if method == "retrieval":
        (sparse,) = [level for level in done.levels if level.name == "sparse"]
        assert sparse.drafted > sparse.passes, "within the sparse level's drafts they are drafted too"


@pytest.mark.parametrize("method", list(METHODS))
def test_without_a_grammar_nothing_is_joined_to_a_method(method: str) -> None:
    done = tiny_engine().generate(PROMPT, SamplingParams(max_new_tokens=8), decoding(method))
    assert "grammar" not in {level.name for level in done.levels}


@pytest.mark.parametrize("method", list(METHODS))
def test_forms_of_every_kind(method: str) -> None:
    engine = tiny_engine((END,), special=(END,))
    for seed in range(10):
        assert re.fullmatch("[0-9]{3}-[a-f]{2,4}", said(engine, method, seed, regex="[0-9]{3}-[a-f]{2,4}"))
        assert said(engine, method, seed, choice=["yes", "no", "yes and no"]) in ("yes", "no", "yes and no")
        lark = 'start: "f(" arg ("," arg)~0..2 ")"\narg: /[a-c]/ | "f(" arg ")"'
        assert re.fullmatch(r"f\([f()a-c]+(,[f()a-c]+){0,2}\)", said(engine, method, seed, grammar=lark))


def test_a_form_that_leaves_nothing_to_say_ends_in_one_line_and_keeps_what_was_said() -> None:
    engine = tiny_engine((END,), special=(END,))
    for method in METHODS:
        stream = engine.stream(
            PROMPT, SamplingParams(max_new_tokens=20, min_new_tokens=9, choice=["abcd"]), decoding(method)
        )
        given = []
        with pytest.raises(UsageError, match="min_new_tokens and choice leave no token possible after 4") as e:
            given += [completion.text for completion in stream]
        assert "\n" not in str(e.value)
        assert stream.generation().text == "abcd"
        assert list(stream) == []
    plain = engine.generate(PROMPT, SamplingParams(max_new_tokens=8), decoding("triforce"))
    assert plain.completion_tokens == 8, "the engine goes on after it"


def test_no_processor_lets_a_forbidden_token_back_in() -> None:
    def insist(token_ids: Any, logits: Any) -> Any:
        del token_ids
        logits[7] = 1000.0
        return logits

    engine = tiny_engine((END,), special=(END,))
    assert said(engine, "triforce", 3, regex="[a-z]{2}", processors=[insist]).isalpha()


def test_a_callers_own_id_ends_a_form_where_the_models_do_not() -> None:
    engine = tiny_engine((END,), special=(END,))
    sampling = SamplingParams(max_new_tokens=20, regex="[a-z]{3}", ignore_eos=True, stop_token_ids=[5])
    done = engine.generate(PROMPT, sampling, decoding("triforce"))
    assert (done.finish_reason, done.token_ids[-1], len(done.text)) == ("stop", 5, 3)
    stopped = SamplingParams(max_new_tokens=20, regex="[a-z]{3}", stop_token_ids=[5])
    done = engine.generate(PROMPT, stopped, decoding("triforce"))
    assert done.token_ids[-1] == END, "beside the model's own it is a token as any other"


def test_bad_words_are_given_as_text() -> None:
    engine = tiny_engine()
    free = engine.generate(PROMPT, SamplingParams(max_new_tokens=40), decoding("triforce")).text
    found = re.search("[!-~]{2}", free)
    assert found, "it says no two letters in a row"
    word = found[0]
    for method in METHODS:
        done = engine.generate(PROMPT, SamplingParams(max_new_tokens=40, bad_words=[word]), decoding(method))
        assert word not in done.text
