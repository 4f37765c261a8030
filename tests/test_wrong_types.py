"""What a caller may give by mistake: one short line names it and the remedy, and nothing is lost."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_engine import tiny_engine

import triforce
from triforce.config import Decoding, SamplingParams
from triforce.conversation import Conversation
from triforce.engine import Engine
from triforce.errors import ModelError, PromptError, SessionError, TriForceError, UsageError, shown
from triforce.generation_config import model_defaults
from triforce.model import TriForceModel
from triforce.models.load import load_model
from triforce.text.chat import render_chat

AR, SHORT = Decoding("ar"), SamplingParams(max_new_tokens=3)
TEMPLATE = "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '|\n' }}{% endfor %}"


class Unspeakable:
    def __repr__(self) -> str:
        raise ZeroDivisionError


@pytest.fixture(scope="module")
def engine() -> Engine:
    engine = tiny_engine()
    engine.tokenizer.chat_template = TEMPLATE
    return engine


def refused(kind: type[TriForceError], expected: str, call: Any, *args: Any, **options: Any) -> None:
    with pytest.raises(kind, match=expected) as caught:
        call(*args, **options)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 300


NO_IDS: dict[str, Any] = {
    "None": None,
    "a number": 3,
    "a mapping": {"input_ids": [1, 2]},
    "an empty mapping": {},
    "a set": {1, 2},
    "bytes": b"abc",
    "changeable bytes": bytearray(b"abc"),
    "a view of bytes": memoryview(b"abc"),
    "truths": [True, False],
    "a truth among numbers": [1, True],
    "texts": ["a"],
    "floats": [1.0],
    "None among numbers": [1, None],
    "nested": [[1, 2]],
    "ragged": [[1], [2, 3]],
    "a generator": (i for i in [1]),
    "huge": [2**70],
    "an array of floats": np.array([1.0]),
    "a matrix": np.array([[1, 2]]),
    "a number of NumPy's": np.array(3),
    "a tensor of truths": torch.tensor([True]),
    "a tensor of bfloat16": torch.ones(2, dtype=torch.bfloat16),
    "a tensor with gradients": torch.ones(2, requires_grad=True),
    "a batch": torch.ones(1, 2, dtype=torch.long),
    "an object": object(),
    "an unspeakable object": Unspeakable(),
}
OUTSIDE: dict[str, Any] = {
    "negative": [-1],
    "too large": [1, 256],
    "far too large": [2**40],
    "of 64 bits": np.array([2**63], dtype=np.uint64),
}


@pytest.mark.parametrize("case", [*NO_IDS, *OUTSIDE])
def test_a_prompt_of_another_kind_is_refused_wherever_it_is_given(engine: Engine, case: str) -> None:
    wrong = {**NO_IDS, **OUTSIDE}[case]
    expected = "a token id outside" if case in OUTSIDE else "neither text nor a flat sequence of integers: give a str,"
    session = engine.session("abc")
    for call in (engine.generate, engine.stream, engine.logits, engine.encode, session.append):
        refused(PromptError, expected, call, wrong)
    for call in (engine.generate_many, engine.streams):
        refused(PromptError, expected, call, wrong, 2)
    expected = "a token id outside" if case in OUTSIDE else "no flat sequence of integers: give a list of them"
    refused(PromptError, expected, session.replace, wrong)
    assert session.text == "abc"


@pytest.mark.parametrize("wrong", ["", "abc"])
def test_a_text_does_not_replace_the_ids_of_a_session(engine: Engine, wrong: Any) -> None:
    session = engine.session("abc")
    refused(PromptError, "no flat sequence of integers: give a list of them", session.replace, wrong)
    assert session.text == "abc"


@pytest.mark.parametrize("ids", [(1, 2), range(1, 3), np.array([1, 2], np.uint8), torch.tensor([1, 2])], ids=repr)
def test_ids_in_any_flat_sequence_of_integers_are_a_prompt(engine: Engine, ids: Any) -> None:
    assert engine.generate(ids, SHORT, AR).token_ids == engine.generate([1, 2], SHORT, AR).token_ids
    session = engine.session("abc")
    session.replace(ids)
    session.append(ids)
    assert session.tokens == [1, 2, 1, 2]


@pytest.mark.parametrize("wrong", [{}, {"temperature": 1.0}, 3, 0, False, "greedy", [], Unspeakable(), Decoding, AR])
def test_settings_of_another_kind_are_refused_wherever_they_are_given(engine: Engine, wrong: Any) -> None:
    session, conversation = engine.session("abc"), Conversation(engine.session())
    for call, args in (
        (engine.generate, ["abc"]),
        (engine.stream, ["abc"]),
        (engine.generate_many, ["abc", 2]),
        (engine.streams, ["abc", 2]),
        (session.generate, []),
        (session.stream, []),
        (conversation.ask, ["Who?"]),
    ):
        refused(UsageError, r"^sampling is .*: give triforce.SamplingParams\(", call, *args, wrong)
        decoding = SHORT if wrong is AR else wrong
        refused(UsageError, r"^decoding is .*: give triforce.Decoding\(", call, *args, SHORT, decoding)
    refused(UsageError, r"^decoding is .*: give", triforce.TriForceModel, engine, SHORT if wrong is AR else wrong)
    assert (session.text, conversation.messages, conversation.session.tokens) == ("abc", [], [])


def test_a_prompt_longer_than_the_context_has_no_logits(engine: Engine) -> None:
    assert engine.logits([1] * 512).shape == (256,)
    refused(PromptError, "1 more than the 512 that the model allows", engine.logits, [1] * 513)
    session = engine.session([1] * 513)
    refused(PromptError, "1 more than the 512 that the model allows", session.logits)
    session.rewind(512)
    assert session.logits().shape == (256,)


@pytest.mark.parametrize("wrong", [None, True, "2", 2.0, np.float64(2), [2], -1, 4, 10**30, Unspeakable()], ids=shown)
def test_a_length_to_rewind_to_is_a_whole_number_within_the_session(engine: Engine, wrong: Any) -> None:
    session = engine.session("abc")
    refused(UsageError, "^the length to rewind to is .*: use (a whole|at least 0|at most 3)", session.rewind, wrong)
    assert session.text == "abc"


@pytest.mark.parametrize("wrong", [None, True, 3, [1], b"file", "", "a\0b", "\ud800", Unspeakable()])
def test_a_path_that_no_file_can_have_is_refused(engine: Engine, wrong: Any) -> None:
    session = engine.session("abc")
    refused(SessionError, "^the session's path is .*: give the name of a file", session.save, wrong)
    refused(SessionError, "^the session's path is .*: give the name of a file", engine.load_session, wrong)


def test_a_directory_is_no_file(engine: Engine, tmp_path: Path) -> None:
    refused(SessionError, "it is a directory", engine.session("abc").save, tmp_path)
    refused(SessionError, "is a directory: give a session file", engine.load_session, tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("wrong", [None, 3, "abc", [1], [("a", 1)]])
def test_notes_are_a_dict(engine: Engine, wrong: Any) -> None:
    session = engine.session("abc")
    session.notes = {"kept": 1}
    refused(UsageError, "^the session's notes are .*: give a dict", setattr, session, "notes", wrong)
    assert session.notes == {"kept": 1}


def endless() -> dict[str, Any]:
    notes: dict[str, Any] = {}
    notes["again"] = notes
    return notes


@pytest.mark.parametrize(
    "wrong", [{"a": object()}, {"a": {1}}, {"a": b"b"}, {(1, 2): 3}, {"a": float("nan")}, {"a": np.int64(1)}, endless()]
)
def test_notes_that_are_no_json_are_not_saved_and_the_older_file_stays(
    engine: Engine, tmp_path: Path, wrong: dict[str, Any]
) -> None:
    path = tmp_path / "saved"
    engine.session("old").save(path)
    session = engine.session("new")
    session.notes = wrong
    refused(SessionError, r"^cannot save .* \(its notes are no JSON: .*\): keep plain values in", session.save, path)
    assert engine.load_session(path).text == "old"
    assert session.notes is wrong
    assert os.listdir(tmp_path) == ["saved"]


@pytest.mark.parametrize("wrong", [None, 3, b"Who?", ["Who?"], {"role": "user", "content": "Who?"}])
def test_a_question_is_a_text(engine: Engine, wrong: Any) -> None:
    conversation = Conversation(engine.session())
    refused(PromptError, "^the question is .*: give a text", conversation.ask, wrong)
    assert (conversation.messages, conversation.session.tokens) == ([], [])


@pytest.mark.parametrize("wrong", [None, 3, "session"])
def test_a_conversation_is_over_a_session(wrong: Any) -> None:
    refused(UsageError, r"^session is .*: give one that engine.session\(\) makes", Conversation, wrong)


@pytest.mark.parametrize("wrong", [3, b"Be brief.", ["Be brief."]])
def test_a_system_message_is_a_text(engine: Engine, wrong: Any) -> None:
    refused(UsageError, "^system is .*: give a text, or None", Conversation, engine.session(), wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        3,
        [1],
        {"system": 3, "turns": []},
        {"system": None, "turns": 3},
        {"system": None, "turns": [3]},
        {"system": None, "turns": [{"question": 3, "start": 0, "asked": 1}]},
        {"system": None, "turns": [{"question": "Who?", "start": "0", "asked": 1}]},
        {"system": None, "turns": [{"question": "Who?", "start": 0, "asked": 1, "answer": 3}]},
    ],
)
def test_notes_of_a_conversation_are_as_it_wrote_them(engine: Engine, wrong: Any) -> None:
    session = engine.session()
    session.notes["conversation"] = wrong
    refused(SessionError, "hold no conversation: use another session file", Conversation, session)


def test_a_message_has_a_role_and_a_content(engine: Engine) -> None:
    refused(PromptError, "has the message 3: give mappings with role", render_chat, engine.tokenizer, [3])
    refused(PromptError, "refuses these messages", render_chat, engine.tokenizer, [{"role": "user"}])
    refused(PromptError, "refuses these messages", render_chat, engine.tokenizer, [{"role": 3, "content": "a"}])


WRONG_CALLS: dict[str, tuple[dict[str, Any], str]] = {
    "a number as a criterion": ({"stopping_criteria": [3]}, "stopping_criteria has 3: give functions"),
    "a class as a criterion": ({"stopping_criteria": Unspeakable}, "stopping_criteria has .*: give functions"),
    "a number as processors": ({"logits_processor": 3}, "logits_processor has 3: give functions"),
    "a class as a processor": ({"logits_processor": [Unspeakable]}, "logits_processor has .*: give functions"),
    "a number as a streamer": ({"streamer": 3}, "streamer is 3: give an object with put and end"),
    "a text as padding": ({"pad_token_id": "x"}, "pad_token_id is 'x': use a whole number"),
    "an array as a temperature": ({"temperature": np.array([1, 2])}, "temperature is .*: add do_sample=True"),
    "an array as a truth": ({"do_sample": np.array([1, 2])}, "do_sample is .*: use True or False"),
    "an array for a field unknown": ({"num_beams": np.array([1, 2])}, "num_beams is .*: use 1"),
    "a list as kinds of tokens": ({"token_type_ids": [0]}, "token_type_ids are not all 0"),
    "a number as settings": ({"generation_config": 3}, "generation_config is a int: give"),
}


@pytest.mark.parametrize("case", WRONG_CALLS)
def test_what_transformers_call_cannot_take_is_refused_before_anything_is_read(engine: Engine, case: str) -> None:
    options, expected = WRONG_CALLS[case]
    refused(UsageError, expected, TriForceModel(engine).generate, torch.tensor([[1, 2, 3]]), **options)


def test_a_batch_has_a_prompt(engine: Engine) -> None:
    refused(UsageError, "input_ids hold no prompt", TriForceModel(engine).generate, torch.zeros(0, 4, dtype=torch.long))


def test_a_models_defaults_are_settings_or_refused(engine: Engine, tmp_path: Path) -> None:
    refused(UsageError, "generation_config is a int: give", TriForceModel, engine, None, 3)
    (tmp_path / "generation_config.json").write_text("[1]")
    refused(ModelError, "generation_config.json: damaged; download it again", model_defaults, tmp_path)


@pytest.mark.parametrize("wrong", [True, float("nan"), np.float32("nan"), "1"])
@pytest.mark.parametrize("name", ["temperature", "top_p", "max_seconds", "repetition_penalty"])
def test_a_truth_or_no_number_is_no_number(name: str, wrong: Any) -> None:
    refused(UsageError, f"{name} is .*: use a number", SamplingParams, **{name: wrong})


def test_settings_are_checked_before_a_model_is_looked_for() -> None:
    for name in ("dtype", "cache_dtype", "rope_scaling"):
        refused(UsageError, "'wrong'", triforce.load, "no-such-model", **{name: "wrong"})


@pytest.mark.parametrize("wrong", [True, 0, "print", [print]])
def test_who_hears_of_the_reading_is_a_function(engine: Engine, wrong: Any) -> None:
    for stream in (partial(engine.stream, "Once"), engine.session("Once").stream, engine.session("Once").prefill):
        refused(UsageError, "^on_prefill is .*: give a function", stream, on_prefill=wrong)


@pytest.mark.parametrize("wrong", [True, 0, 1.5, "two", None, 10**30])
def test_how_many_texts_is_a_whole_number(engine: Engine, wrong: Any) -> None:
    refused(UsageError, "^n is ", engine.generate_many, "a", wrong)


NO_MODEL = "; give a model directory, a .gguf file, a hub id such as org/name, or one of these names"


@pytest.mark.parametrize("wrong", [None, 3, True, "", b"smollm2", [1], "a\0b", "smolm2", "x" * 5000, Path("/absent")])
def test_what_is_no_model_is_refused(wrong: Any) -> None:
    refused(ModelError, NO_MODEL, triforce.load, wrong)


@pytest.mark.parametrize("wrong", [None, 3, "", "flaot32", b"float32", ["float32"], {}, torch.int64])
def test_a_dtype_is_one_of_those_known(tmp_path: Path, wrong: Any) -> None:
    refused(UsageError, "^unknown dtype .*: use one of auto, float32, bfloat16", triforce.load, tmp_path, dtype=wrong)


@pytest.mark.parametrize("wrong", [None, "", "gpu", ["cpu"], {}, torch.float32])
def test_a_device_is_one_that_torch_knows(tmp_path: Path, wrong: Any) -> None:
    refused(UsageError, "^device .* is unknown: use auto, cpu, cuda", load_model, tmp_path, device=wrong)


@pytest.mark.parametrize("wrong", [3, "", "yarn", b"yarn:2", ["yarn:2"], {}])
def test_a_rotation_is_a_kind_and_a_factor(tmp_path: Path, wrong: Any) -> None:
    refused(UsageError, "^rope scaling .*: use linear:FACTOR", triforce.load, tmp_path, rope_scaling=wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": np.array([[1], [2]])},
        {"temperature": 10**5000},
        {"temperature": Unspeakable()},
        {"seed": -(10**5000)},
        {"top_k": np.zeros((50, 50))},
        {"stop": "x" * 10_000 + "\ud800"},
        {"processors": Unspeakable()},
        {"logit_bias": {1: np.array([1, 2])}},
        {"logit_bias": {1: torch.tensor([1, 2])}},
        {"bad_words": ["\ud800"]},
        {"criteria": [Unspeakable()]},
    ],
    ids=lambda wrong: "-".join(wrong),
)
def test_a_setting_whose_value_has_no_short_line_is_refused_in_one(wrong: dict[str, Any]) -> None:
    refused(UsageError, f"{next(iter(wrong))}.* (is|has|holds) .*: (use|give)", SamplingParams, **wrong)


def test_what_is_shown_is_one_short_line() -> None:
    assert shown("a\nb") == r"'a\nb'"
    assert shown(np.array([[1], [2]])) == "array([[1], [2]])"
    assert shown("x" * 100) == "'" + "x" * 76 + "..."
    assert shown(Unspeakable()) == "a Unspeakable"
