"""Forms at the edge of what can be said: they work, or one short line names the setting and a remedy."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tiny_engine import tiny_engine

from triforce.config import Decoding, SamplingParams
from triforce.engine import Engine
from triforce.errors import UsageError

PROMPT = "It was the best of times. "
END = 0


@pytest.fixture(scope="module")
def engine() -> Engine:
    return tiny_engine((END,), special=(END,))


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


LARGE = {"type": "object", "properties": {f"key {i}": {"type": "string", "maxLength": 9} for i in range(70_000)}}
LARK, GBNF = "Lark with a start rule", "GBNF with a root rule"


@pytest.mark.parametrize("choice", ["\x7f", "a\x7fb", "\0", "\x01", "\x1b[0m", "\x85\u2028", '"\\', "\r\n\t"])
def test_a_choice_may_hold_any_character(engine: Engine, choice: str) -> None:
    done = engine.generate(PROMPT, SamplingParams(choice=[choice], max_new_tokens=20), Decoding("ar"))
    assert (done.text, done.finish_reason) == (choice, "stop")


def test_a_hundred_thousand_choices_are_served(engine: Engine) -> None:
    choices = [f"{i}." for i in range(100_000)]
    done = engine.generate(PROMPT, SamplingParams(choice=choices, max_new_tokens=20), Decoding("ar"))
    assert done.text in choices


@pytest.mark.parametrize("schema", [True, "true", {}])
def test_a_schema_of_true_is_any_json(engine: Engine, schema: Any) -> None:
    ends = {END: 20.0, **{engine.tokenizer.encode(character)[0]: 15.0 for character in '"]}'}}
    params = SamplingParams(json_schema=schema, temperature=1.0, seed=2, max_new_tokens=60, logit_bias=ends)
    done = engine.generate(PROMPT, params, Decoding("triforce"))
    assert done.finish_reason == "stop"
    json.loads(done.text)


@pytest.mark.parametrize(
    "setting",
    [{"regex": "(a{1,100000}b){1,100000}"}, {"regex": "((a{1,1000}b){1,1000}c){1,1000}"}, {"regex": "a\0\x7fb"}],
    ids=str,
)
def test_large_and_odd_expressions_that_the_engine_can_follow_are_served(
    engine: Engine, setting: dict[str, Any]
) -> None:
    done = engine.generate(PROMPT, SamplingParams(max_new_tokens=4, **setting), Decoding("triforce"))
    assert done.text.startswith("a")


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "no schema": ({"json_schema": False}, "json_schema is False: no text matches it, give another schema"),
    "a number": ({"json_schema": 3}, "json_schema is 3: give an object, or true for any JSON"),
    "a list": ({"json_schema": "[1]"}, r"json_schema is \[1\]: give an object"),
    "no JSON": ({"json_schema": {"minimum": float("nan")}}, "json_schema cannot be written as JSON .*: give a dict"),
    "5 MB of schema": ({"json_schema": LARGE}, r"json_schema cannot be used \(schema too large\): correct it"),
    "a deep schema": ({"json_schema": nested(5000)}, "json_schema cannot be written as JSON .*: give a dict"),
    "many values": ({"json_schema": {"enum": [str(i) for i in range(100_000)]}}, "json_schema cannot be used .*big"),
    "5 MB of regex": ({"regex": "a" * 5_000_000}, "regex is too complex .*: simplify it"),
    "a long choice": ({"choice": ["x" * 3_000_000]}, "choice is too complex .*: simplify it, or ask for less of it"),
    "look-ahead": ({"regex": "a(?=b)" + "c" * 1000}, "regex cannot be used .look-around.*no look-around"),
    "look-behind": ({"regex": "(?<=b)a"}, "regex cannot be used .look-around.*no look-around"),
    "nothing matches": ({"regex": r"[^\s\S]"}, r"regex cannot be used \(no text matches it\): correct it"),
    "endless": ({"grammar": "start: start"}, rf"grammar cannot be used \(no text matches it\): correct it \({LARK}"),
    "syntax": ({"grammar": "start: ((("}, rf"grammar cannot be used \(line 1, column 11: .*\): correct it \({LARK}"),
    "later syntax": ({"grammar": "start: a\na: ((("}, r"grammar cannot be used \(line 2, column "),
    "GBNF syntax": ({"grammar": "root ::= ("}, f"grammar cannot be used .*{GBNF}"),
    "no grammar": ({"grammar": "Once upon a time\nthere was"}, f"grammar cannot be used .*{GBNF}"),
    "blank": ({"grammar": " \n "}, f"grammar cannot be used .*{GBNF}"),
    "NUL": ({"grammar": 'start: "a\0b"'}, r"grammar cannot be used \(line 1, column 10: lexer error\): correct it"),
    "a long name": ({"grammar": "start: " + "x" * 100_000}, 'grammar cannot be used .*unknown name: "xxx'),
    "half a character": ({"choice": ["\ud800"]}, r"a text of choice is '\\ud800': use valid Unicode"),
    "half of another": ({"regex": "\ud800"}, r"regex is '\\ud800': use valid Unicode"),
    "a third": ({"grammar": 'start: "\ud800"'}, "grammar is .*: use valid Unicode"),
    "many wrong choices": ({"choice": [3] * 100_000}, "a text of choice is 3: give a list of texts, not empty"),
    "bytes": ({"regex": b"a" * 1000}, "regex is b'aaa.*: give some text"),
}


@pytest.mark.parametrize("case", CASES)
def test_an_impossible_form_is_refused_in_one_short_line(engine: Engine, case: str) -> None:
    setting, expected = CASES[case]
    with pytest.raises(UsageError, match=f"^{expected}") as caught:
        engine.generate(PROMPT, SamplingParams(max_new_tokens=4, **setting), Decoding("ar"))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 300
    plain = engine.generate(PROMPT, SamplingParams(max_new_tokens=4))
    assert plain.completion_tokens == 4, "the engine goes on after it"
