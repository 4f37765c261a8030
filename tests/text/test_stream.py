"""Streaming shows the text of `decode`, early and for good."""

from __future__ import annotations

import time

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_tokenizers import byte_level, sentencepiece_vocabulary
from tokenizers import decoders, models, pre_tokenizers

from triforce.errors import ModelError
from triforce.text import TextStream, Tokenizer


def sentencepiece() -> Tokenizer:
    tokens, _, _, _ = sentencepiece_vocabulary()
    vocab = {token: i for i, token in enumerate(tokens)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<s>", "</s>"])
    return Tokenizer(backend, {"bos_token": "<s>", "eos_token": "</s>"})


TOKENIZERS = {"byte-level": Tokenizer(byte_level(), {}), "sentencepiece": sentencepiece()}
kinds = pytest.mark.parametrize("kind", TOKENIZERS)
characters = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="▁") | st.sampled_from(" 🙂é中\u200d\ufffd\n")
)


def kept(kind: str, text: str) -> str:
    """What remains of a text: SentencePiece cannot tell a first space from its own prefix."""
    return text.removeprefix(" ") if kind == "sentencepiece" else text


def streamed(tokenizer: Tokenizer, ids: list[int], skip_special: bool = True) -> list[str]:
    stream = TextStream(tokenizer, skip_special)
    return [*map(stream.push, ids), stream.flush()]


@kinds
@settings(deadline=None)
@given(text=characters)
def test_pushes_of_any_text_equal_its_decoding(kind: str, text: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text)
    assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids) == kept(kind, text)


@kinds
@settings(deadline=None)
@given(ids=st.lists(st.integers(-1, 700)), skip_special=st.booleans())
def test_pushes_of_any_ids_equal_their_decoding(kind: str, ids: list[int], skip_special: bool) -> None:
    tokenizer = TOKENIZERS[kind]
    assert "".join(streamed(tokenizer, ids, skip_special)) == tokenizer.decode(ids, skip_special)


@kinds
@settings(deadline=None)
@given(text=characters, more=characters)
def test_what_was_shown_is_never_taken_back(kind: str, text: str, more: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode(text + more)
    stream, shown = TextStream(tokenizer), ""
    for token_id in ids:
        shown += stream.push(token_id)
        assert kept(kind, text + more).startswith(shown)


@settings(deadline=None)
@given(ids=st.lists(st.integers(0, 599)))
def test_byte_level_decoding_equals_the_librarys(ids: list[int]) -> None:
    tokenizer = TOKENIZERS["byte-level"]
    assert tokenizer.decode(ids, skip_special=False) == byte_level_backend.decode(ids, skip_special_tokens=False)
    assert tokenizer.decode(ids) == byte_level_backend.decode(ids, skip_special_tokens=True)


byte_level_backend = byte_level()


@kinds
def test_an_incomplete_character_waits_and_then_comes_whole(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode("𓀀")  # four bytes that no merge joins
    shown = [text for text in streamed(tokenizer, ids) if text]
    assert len(ids) >= 4
    assert shown == ["𓀀"]


@kinds
def test_a_character_cut_off_by_the_end_becomes_a_replacement_character(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]
    pushes = streamed(tokenizer, tokenizer.encode("𓀀")[:-1])
    assert pushes == [*[""] * (len(pushes) - 1), "\ufffd"]


def test_special_tokens_are_skipped_or_shown() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("a<|im_end|>b")
    assert "".join(streamed(tokenizer, ids)) == "ab"
    assert "".join(streamed(tokenizer, ids, skip_special=False)) == "a<|im_end|>b"


def test_a_continuation_keeps_its_first_space() -> None:
    tokenizer = TOKENIZERS["sentencepiece"]
    ids = tokenizer.encode("dog")  # "▁dog"
    assert TextStream(tokenizer, at_start=True).push(ids[0]) == ""
    assert TextStream(tokenizer, at_start=False).push(ids[0]) == " "


def test_words_without_a_decoder_are_joined_by_spaces() -> None:
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    assert "".join(streamed(Tokenizer(backend, {}), [0, 1, 1])) == backend.decode([0, 1, 1]) == "a b b"


def test_unknown_decoders_are_refused() -> None:
    backend = tokenizers.Tokenizer(models.WordPiece({"a": 0}, unk_token="a"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="decoder WordPiece is not supported"):
        TextStream(Tokenizer(backend, {}))


def test_cost_per_token_does_not_grow_with_the_text() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("𓀀 the dog ") * 2000  # also a stream of invalid UTF-8 must not pile up

    def seconds(ids: list[int]) -> float:
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            streamed(tokenizer, ids)
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(ids) < 40 * seconds(ids[: len(ids) // 10])  # 10 when linear, 100 when quadratic
