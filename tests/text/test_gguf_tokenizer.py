"""Tokenisers from GGUF metadata give the ids of transformers' conversion, or of the original tokenizer.json."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_tokenizers import (
    CHATML,
    TEXTS,
    Vocabulary,
    byte_level,
    byte_level_vocabulary,
    sentencepiece_vocabulary,
    smollm_cut,
)
from transformers import AutoTokenizer

from triforce.errors import ModelError
from triforce.text import load_tokenizer

WriteGguf = Callable[..., Path]
PLAIN = {"add_add_bos_token": False}


def assert_same(path: Path, texts: list[str]) -> None:
    ours = load_tokenizer(path)
    theirs = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in texts:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.vocab_size == len(theirs)
    assert (ours.bos_token, ours.eos_token, ours.chat_template) == (
        theirs.bos_token,
        theirs.eos_token,
        theirs.chat_template,
    )


@pytest.mark.parametrize("pre", ["gpt-2", "default", None, "llama-bpe", "qwen2"])
@pytest.mark.parametrize("add_bos", [False, True])
def test_byte_level_ids_equal_those_of_transformers(write_gguf: WriteGguf, pre: str | None, add_bos: bool) -> None:
    vocabulary = byte_level_vocabulary(byte_level())
    path = write_gguf("gpt2", pre, vocabulary, add_add_bos_token=add_bos, add_chat_template=CHATML)
    assert_same(path, TEXTS)


def test_smollm_ids_equal_those_of_its_tokenizer_json(write_gguf: WriteGguf) -> None:
    """transformers' conversion knows no `smollm` and keeps runs of digits together, unlike the model's own file."""
    backend = byte_level(smollm_cut())
    ours = load_tokenizer(write_gguf("gpt2", "smollm", byte_level_vocabulary(backend), **PLAIN))
    for text in TEXTS:
        assert ours.encode(text) == backend.encode(text).ids
    assert ours.eos_token_ids == (2,)


def test_qwen2_composes_accents_as_its_tokenizer_json_does(write_gguf: WriteGguf) -> None:
    ours = load_tokenizer(write_gguf("gpt2", "qwen2", byte_level_vocabulary(byte_level()), **PLAIN))
    assert ours.encode("cafe\u0301") == ours.encode("caf\u00e9")


def test_llama3_adds_bos_even_when_the_file_does_not_say(write_gguf: WriteGguf) -> None:
    ours = load_tokenizer(write_gguf("gpt2", "llama-bpe", byte_level_vocabulary(byte_level())))
    assert ours.encode("dog")[0] == 1


@pytest.mark.parametrize("flags", [{}, {"add_add_bos_token": False}, {"add_add_eos_token": True}])
def test_sentencepiece_ids_equal_those_of_transformers(write_gguf: WriteGguf, flags: dict[str, bool]) -> None:
    assert_same(write_gguf("llama", "default", sentencepiece_vocabulary(), add_unk_token_id=0, **flags), TEXTS)


def test_sentencepiece_without_prefix_space_adds_none(write_gguf: WriteGguf) -> None:
    path = write_gguf("llama", None, sentencepiece_vocabulary(), add_add_space_prefix=False, **PLAIN)
    ours = load_tokenizer(path)
    assert ours.decode(ours.encode(" dog")) == " dog"
    assert ours.encode("dog") != ours.encode(" dog")


def test_user_defined_tokens_stay_whole_and_are_shown(write_gguf: WriteGguf) -> None:
    tokens, types, merges, scores = byte_level_vocabulary(byte_level())
    vocabulary = ([*tokens, "<think>", "two words"], [*types, 4, 4], merges, scores)
    ours = load_tokenizer(write_gguf("gpt2", "gpt-2", vocabulary, **PLAIN))
    assert ours.encode("<think>two words") == [len(tokens), len(tokens) + 1]
    assert ours.decode([len(tokens), len(tokens) + 1]) == "<think>two words"


def test_end_of_turn_is_an_end_too(write_gguf: WriteGguf) -> None:
    path = write_gguf("gpt2", "gpt-2", byte_level_vocabulary(byte_level()), add_eot_token_id=0)
    assert load_tokenizer(path).eos_token_ids == (2, 0)


@pytest.mark.parametrize(
    ("kind", "pre", "message"),
    [("gpt2", "kimi-k9", "pre-tokenizer 'kimi-k9' is not supported"), ("bert", None, "tokenizer model 'bert'")],
)
def test_unknown_kinds_are_refused_by_name(write_gguf: WriteGguf, kind: str, pre: str | None, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_tokenizer(write_gguf(kind, pre, byte_level_vocabulary(byte_level())))


@pytest.mark.parametrize(("kind", "message"), [("gpt2", "without merges"), ("llama", "without scores")])
def test_incomplete_vocabularies_are_refused(write_gguf: WriteGguf, kind: str, message: str) -> None:
    tokens, types, _, _ = byte_level_vocabulary(byte_level())
    incomplete: Vocabulary = (tokens, types, None, None)
    with pytest.raises(ModelError, match=message):
        load_tokenizer(write_gguf(kind, None, incomplete))
