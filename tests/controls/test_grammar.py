"""Grammars over a byte-level tokeniser: each mask is a function of the text before it, and ends come where they may."""

from __future__ import annotations

import builtins
import json
import re
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_engine import byte_tokenizer

from triforce.config import SamplingParams
from triforce.controls.grammar import Grammar
from triforce.controls.guidance import Grammars, check_structure
from triforce.errors import UsageError
from triforce.tokens import TokenIds

TOKENIZER = byte_tokenizer()
VOCAB, ENDS = 256, (0, 2)  # "!" and "#" end a text here
GRAMMARS = Grammars(TOKENIZER, ENDS)
PROMPT = TOKENIZER.encode("Say: ")
CASES: dict[str, dict[str, Any]] = {
    "regex": {"regex": "(ab|ac+)d?|[0-9]{2,3}é"},
    "choice": {"choice": ["the dog", "the dog sleeps", "über 🙂", "a 'quote'\n"]},
    "json_schema": {"json_schema": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
    "lark": {"grammar": 'start: "begin " WORD ("," WORD)*\nWORD: /[a-z]+/'},
    "gbnf": {"grammar": 'root ::= "x" item+\nitem ::= "(" [a-c]* ")"'},
}


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def new(**setting: Any) -> Grammar:
    params = SamplingParams(**setting)
    return Grammar(params.structure or "", GRAMMARS.matcher(params), len(PROMPT), ENDS)


def masks(grammar: Grammar, text: list[int], rows: int) -> list[set[int]]:
    """What may follow each of the last `rows` histories."""
    tokens: TokenIds = np.array(PROMPT + text, dtype=np.int32)
    logits = torch.zeros(rows, VOCAB)
    grammar.apply(logits, tokens)
    return [set((row == 0).nonzero().flatten().tolist()) for row in logits]


def after(grammar: Grammar, text: str) -> str:
    """The characters that may follow `text`, in order; $ where it may end."""
    (may,) = masks(grammar, ids(text), 1)
    assert (ENDS[0] in may) == (ENDS[1] in may)
    return "".join(sorted(TOKENIZER.decode([i]) for i in may - set(ENDS))) + "$" * (ENDS[0] in may)


@pytest.mark.parametrize(
    ("setting", "text", "expected"),
    [
        ({"regex": "ab+|[xy]{2}"}, "", "axy"),
        ({"regex": "ab+|[xy]{2}"}, "a", "b"),
        ({"regex": "ab+|[xy]{2}"}, "ab", "b$"),
        ({"regex": "ab+|[xy]{2}"}, "xy", "$"),
        ({"regex": "ab+|[xy]{2}"}, "xyx", ""),
        ({"regex": "ab+|[xy]{2}"}, "q", ""),
        ({"choice": ["yes", "yes, sir", "no"]}, "", "ny"),
        ({"choice": ["yes", "yes, sir", "no"]}, "yes", ",$"),
        ({"choice": ["yes", "yes, sir", "no"]}, "no", "$"),
        ({"json_schema": {"enum": [1, 12]}}, "1", "2$"),
        ({"json_schema": {"type": "boolean"}}, "", "ft"),
        ({"json_schema": '{"type": "null"}'}, "null", "$"),
        (CASES["gbnf"], "x(", ")abc"),
        (CASES["gbnf"], "x()", "($"),
    ],
)
def test_what_may_come_next(setting: dict[str, Any], text: str, expected: str) -> None:
    assert after(new(**setting), text) == expected


def test_after_its_end_a_text_only_ends() -> None:
    grammar = new(regex="ab+")
    assert masks(grammar, [*ids("ab"), 0], 1) == [set(ENDS)]
    assert masks(grammar, [*ids("ab"), 0, 2, 0], 3) == [set(ENDS)] * 3
    assert masks(grammar, [*ids("a"), 0], 1) == [set()], "it may not end there"


@pytest.mark.parametrize("case", CASES)
@settings(max_examples=12)
@given(data=st.data())
def test_masks_and_forced_tokens_are_those_of_a_matcher_that_read_nothing_else(case: str, data: st.DataObject) -> None:
    grammar, text = new(**CASES[case]), list[int]()
    for _ in range(data.draw(st.integers(1, 8), label="visits")):
        text = text[: len(text) - data.draw(st.sampled_from([0, 0, 1, 2, 5, 40]))] if text else text
        for _ in range(data.draw(st.integers(0, 6))):
            (may,) = masks(new(**CASES[case]), text, 1)
            any_token = data.draw(st.integers(0, 9)) == 0
            text.append(data.draw(st.integers(0, VOCAB - 1) if any_token or not may else st.sampled_from(sorted(may))))
        rows = data.draw(st.integers(1, len(text) + 1))
        histories = [text[: len(text) - rows + 1 + i] for i in range(rows)]
        assert masks(grammar, text, rows) == [masks(new(**CASES[case]), history, 1)[0] for history in histories]
        tokens: TokenIds = np.array(PROMPT + text, dtype=np.int32)
        assert grammar.forced(tokens) == new(**CASES[case]).forced(tokens)


@pytest.mark.parametrize(
    ("setting", "text", "forced"),
    [
        ({"regex": "ab+c{3}"}, "", "ab"),
        ({"regex": "ab+c{3}"}, "abc", "cc"),
        ({"regex": "ab+c{3}"}, "abb", ""),
        ({"regex": "ab+c{3}"}, "ac", ""),
        ({"choice": ["the dog", "the cat"]}, "", "the "),
        ({"json_schema": {"enum": [{"name": "a"}, {"name": "b"}]}}, "", '{"name": "'),
    ],
)
def test_what_is_forced(setting: dict[str, Any], text: str, forced: str) -> None:
    assert TOKENIZER.decode(new(**setting).forced(np.array(PROMPT + ids(text), dtype=np.int32))) == forced


def test_an_end_is_forced_where_nothing_else_may_come() -> None:
    grammar = new(regex="ab")
    assert grammar.forced(np.array(PROMPT + ids("ab"), dtype=np.int32)) == [ENDS[0]]
    assert grammar.forced(np.array([*PROMPT, *ids("ab"), ENDS[0]], dtype=np.int32)) == []


@pytest.mark.parametrize("pattern", ["[a-c]{1,3}(x|yz)*", "é+|中文?", "(.|\n){0,3}", "[0-9]{2}-[^0-9]", "a|b|"])
@settings(max_examples=12)
@given(data=st.data())
def test_any_allowed_path_that_may_end_matches_the_expression(pattern: str, data: st.DataObject) -> None:
    grammar, text = new(regex=pattern), list[int]()
    for _ in range(12):
        (may,) = masks(grammar, text, 1)
        assert may, "a dead end"
        if may & set(ENDS):
            assert re.fullmatch(pattern, TOKENIZER.decode(text)), TOKENIZER.decode(text)
        if not may - set(ENDS):
            break
        text.append(data.draw(st.sampled_from(sorted(may - set(ENDS)))))


def test_json_is_written_as_json_dumps_writes_it() -> None:
    value = {"a": [1, True, None], "b": {"c": "d e"}}
    grammar, written = new(json_schema={"const": value}), json.dumps(value)
    for end in range(len(written)):
        assert after(grammar, written[:end]) == written[end]
    assert after(grammar, written) == "$"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ({"json_schema": {"type": "objct"}}, r"json_schema cannot be used \(Invalid type: objct\): correct it"),
        ({"json_schema": {"not": {}}}, r'\(Unimplemented keys: \["not"\]\): correct it, or leave out what is not supp'),
        ({"json_schema": {"type": "string", "pattern": "("}}, r"json_schema cannot be used \(unclosed group\)"),
        ({"regex": "("}, r"regex cannot be used \(unclosed group\): correct it \(Rust's syntax: no look-around"),
        ({"regex": "(?=x)"}, r"regex cannot be used \(look-around.*Rust's syntax"),
        ({"regex": r"(a)\1"}, r"regex cannot be used \(backreferences are not supported\)"),
        ({"grammar": "start: word"}, r'grammar cannot be used \(.*unknown name: "word"\): correct it \(Lark with a'),
        ({"grammar": "root ::= ("}, "grammar cannot be used .*: correct it .Lark with a start rule, or GBNF"),
    ],
)
def test_a_form_that_cannot_be_used_is_refused_in_one_line(setting: dict[str, Any], expected: str) -> None:
    params = SamplingParams(**setting)
    for refuse in (check_structure, GRAMMARS.matcher):
        with pytest.raises(UsageError, match=expected) as caught:
            refuse(params)
        assert "\n" not in str(caught.value)


def test_a_model_without_an_end_is_refused() -> None:
    with pytest.raises(UsageError, match="this model has no token that ends a text, so a structured text could not"):
        Grammars(TOKENIZER, ())


def test_without_the_engine_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any) -> Any:
        if name == "llguidance":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.delitem(sys.modules, "llguidance")
    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(UsageError, match=r"regex needs llguidance: install it with pip install 'llguidance>=1.9'"):
        check_structure(SamplingParams(regex="a"))
    check_structure(SamplingParams())
