"""Stops and streaming over a fixed text, at every place of it and at every place of a block."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import IDS, TEXT, TOKENIZER, check_stream, naive_cut, scripted_stream

from triforce.config import SamplingParams
from triforce.text.tokenizer import Tokenizer

BLOCK = 7


def check(ids: list[int], sampling: SamplingParams, sizes: list[int], tokenizer: Tokenizer = TOKENIZER) -> None:
    expected = naive_cut(tokenizer, ids * 2, sampling)
    check_stream(scripted_stream(tokenizer, ids, sampling, sizes), expected, ids * 2)


def test_the_text_has_tokens_of_every_kind() -> None:
    pieces = [TOKENIZER.pieces.piece(i, skip_special=True) for i in IDS]
    assert b"".join(pieces).decode() == TEXT
    assert max(map(len, pieces)) >= 3
    assert any("\ufffd" in piece.decode("utf-8", "replace") for piece in pieces)
    assert 25 < len(pieces) < len(TEXT.encode())


@pytest.mark.parametrize("first", range(1, BLOCK + 1))
def test_every_part_of_the_text_stops_it_wherever_it_lies_in_a_block(first: int) -> None:
    for start in range(len(TEXT)):
        for length in (1, 2, 3, 5, 8):
            stop = TEXT[start : start + length]
            check(IDS, SamplingParams(stop=stop, max_new_tokens=len(IDS)), [first, BLOCK])


@pytest.mark.parametrize("include_stop", [False, True])
@pytest.mark.parametrize("first", range(1, BLOCK + 1))
def test_every_token_stops_it_wherever_it_lies_in_a_block(first: int, include_stop: bool) -> None:
    for token_id in set(IDS):
        sampling = SamplingParams(stop_token_ids=[token_id], include_stop=include_stop, max_new_tokens=len(IDS))
        check(IDS, sampling, [first, BLOCK])


@pytest.mark.parametrize("first", range(1, BLOCK + 1))
def test_every_limit_cuts_it_also_inside_a_character(first: int) -> None:
    for limit in range(1, len(IDS) + 1):
        check(IDS, SamplingParams(max_new_tokens=limit, stop=["nothing of this", "🙂🎉"]), [first, BLOCK])


@pytest.mark.parametrize("place", range(2 * BLOCK))
def test_an_end_token_stops_it_unless_it_is_ignored(place: int) -> None:
    end = TOKENIZER.eos_token_ids[0]
    ids = [*IDS[:place], end, *IDS[place:]]
    for ignore_eos in (False, True):
        check(ids, SamplingParams(ignore_eos=ignore_eos, max_new_tokens=len(ids)), [3, BLOCK])


@pytest.mark.parametrize("first", range(1, BLOCK + 1))
def test_no_stop_counts_before_the_least_length(first: int) -> None:
    for least in range(len(IDS)):
        stops = SamplingParams(stop=["n", "🙂", "\n"], stop_token_ids=[IDS[4], IDS[-1]], max_new_tokens=len(IDS))
        check(IDS, replace(stops, min_new_tokens=least), [first, BLOCK])


def test_an_end_token_given_as_a_stop_string_stops_it() -> None:
    end = TOKENIZER.eos_token_ids[0]
    ids = [*IDS[:9], end, *IDS[9:]]
    stream = scripted_stream(TOKENIZER, ids, SamplingParams(stop="<end>", ignore_eos=True), [BLOCK])
    shown = "".join(completion.text for completion in stream)
    done = stream.generation()
    assert (done.token_ids, done.stop_reason) == (ids[:10], "<end>")
    assert shown == done.text == TOKENIZER.decode(IDS[:9])


def test_one_token_may_finish_a_stop_string_and_go_on() -> None:
    on = next(i for i in IDS if TOKENIZER.pieces.piece(i, True) in (b" on", b"on", b" and"))
    piece = TOKENIZER.pieces.piece(on, True).decode()
    ids = [*IDS[:3], on, *IDS[3:]]
    check(ids, SamplingParams(stop=piece[:-1]), [BLOCK])
    check(ids, SamplingParams(stop=piece[:-1], include_stop=True), [BLOCK])


def test_of_several_stop_strings_the_one_that_ends_first_counts_and_the_longest_of_these() -> None:
    stream = scripted_stream(TOKENIZER, IDS, SamplingParams(stop=["so on and", "on", "so on", "n a"]), [BLOCK])
    text = "".join(completion.text for completion in stream)
    assert (text, stream.generation().stop_reason) == (TEXT[: TEXT.index("so on")], "so on")


parts = st.tuples(st.integers(0, len(TEXT) - 1), st.integers(1, 9)).map(lambda at: TEXT[at[0] : sum(at)])
others = st.text(st.sampled_from([*sorted(set(TEXT)), "\ufffd"]), min_size=1, max_size=4)


@settings(max_examples=300)
@given(
    ids=st.lists(st.sampled_from([*IDS, *TOKENIZER.eos_token_ids, *range(2, 258, 17)]), min_size=1, max_size=40)
    | st.permutations(IDS),
    stop=st.lists(parts | others, max_size=3),
    include_stop=st.booleans(),
    limit=st.integers(1, 40),
    least=st.integers(0, 12),
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
)
def test_any_text_any_stops_any_blocks(
    ids: list[int], stop: list[str], include_stop: bool, limit: int, least: int, sizes: list[int]
) -> None:
    most = min(limit, len(ids))
    lengths = {"max_new_tokens": most, "min_new_tokens": min(least, most)}
    sampling = SamplingParams(stop=stop, stop_token_ids=ids[5:7], include_stop=include_stop, **lengths)
    check(ids, sampling, sizes)
