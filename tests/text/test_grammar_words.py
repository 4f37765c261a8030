"""Grammars over tokenisers of every kind of file: what they allow decodes to what was asked for."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tiny_tokenizers import byte_level, byte_level_vocabulary, sentencepiece_vocabulary, smollm_cut

from triforce.config import SamplingParams
from triforce.controls.bad_words import spell
from triforce.controls.guidance import Grammars
from triforce.text import Tokenizer, load_tokenizer

CHOICE = ["The quick brown fox", "The lazy dog sleeps", "naïve café 中文", " spaced   out", "12345"]


@pytest.fixture(params=["HF byte-level", "GGUF byte-level", "GGUF SentencePiece"])
def tokenizer(
    request: pytest.FixtureRequest, save_directory: Callable[..., Path], write_gguf: Callable[..., Path]
) -> Tokenizer:
    if request.param == "HF byte-level":
        return load_tokenizer(save_directory(byte_level(), eos_token="<|im_end|>"))
    if request.param == "GGUF byte-level":
        backend = byte_level(smollm_cut())
        return load_tokenizer(write_gguf("gpt2", "smollm", byte_level_vocabulary(backend), add_add_bos_token=False))
    return load_tokenizer(write_gguf("llama", None, sentencepiece_vocabulary()))


def test_spellings_join_to_the_text(tokenizer: Tokenizer) -> None:
    spellings = tokenizer.spellings()
    for text in CHOICE:
        ids = tokenizer.encode_within(text)
        assert b"".join(spellings[i] for i in ids).decode() == text
    assert spellings[tokenizer.eos_token_ids[0]] == b""


@pytest.mark.parametrize("seed", range(8))
def test_a_random_path_through_a_grammar_says_one_of_the_choices(tokenizer: Tokenizer, seed: int) -> None:
    matcher = Grammars(tokenizer, tokenizer.eos_token_ids).matcher(SamplingParams(choice=CHOICE))
    spellings, drawn, text = tokenizer.spellings(), random.Random(seed), b""
    while not matcher.accepts_end():
        allowed = np.flatnonzero(matcher.allowed())
        assert all(spellings[i] for i in allowed), "a token that adds nothing is allowed"
        token = drawn.choice(allowed.tolist())
        assert matcher.consume(token)
        text += spellings[token]
    assert text.decode() in CHOICE
    assert not matcher.allowed().any()


def test_the_tokenisers_own_spelling_is_allowed_and_forced(tokenizer: Tokenizer) -> None:
    for text in CHOICE:
        matcher = Grammars(tokenizer, tokenizer.eos_token_ids).matcher(SamplingParams(choice=[text]))
        ids = tokenizer.encode_within(text)
        assert matcher.forced() == ids
        for token in ids:
            assert matcher.allowed()[token]
            assert matcher.consume(token)
        assert matcher.accepts_end()


def test_bad_words_are_spelt_with_and_without_a_space_before_them(tokenizer: Tokenizer) -> None:
    words = spell(SamplingParams(bad_words=["dog", (7, 8)]), tokenizer).bad_words
    texts = [tokenizer.spellings()[word[0]] if len(word) == 1 else word for word in words]
    joined = [b"".join(tokenizer.spellings()[int(i)] for i in word).decode("utf-8", "replace") for word in words]
    assert texts
    assert joined[:2] == ["dog", " dog"]
    assert words[2:] == ((7, 8),)
