"""The full cache: any history leaves what a fresh cache would hold; windows, growth and remembered queries."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_attention import slow_attend
from tiny import VOCAB, TinyDecoder, Turn, assert_same, play, random_tokens, runner_over, tiny_decoder, turns
from torch import Tensor

from triforce.attention.rope import Rope, rotate
from triforce.caches import full
from triforce.caches.base import Segment
from triforce.caches.full import FullCache
from triforce.tokens import TokenIds

DECODER = tiny_decoder()
WINDOWED = tiny_decoder(sliding_window=7)


def new_cache(
    decoder: TinyDecoder = DECODER, capacity: int = 4, num_queries: int = 6, dtype: torch.dtype = torch.float64
) -> FullCache:
    return FullCache(decoder.cache_shape, decoder.rope, capacity=capacity, num_queries=num_queries, dtype=dtype)


def fresh(decoder: TinyDecoder, tokens: TokenIds, num_rows: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return runner_over("fresh", decoder, new_cache(decoder, capacity=512, dtype=dtype)).logits(tokens, num_rows)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8])
@pytest.mark.parametrize("decoder", [DECODER, WINDOWED], ids=["all rows", "sliding window"])
@settings(max_examples=25)
@given(prompt=st.integers(1, 60), history=st.lists(turns(), min_size=1, max_size=5), num_rows=st.integers(1, 3))
def test_any_history_gives_the_logits_of_a_fresh_cache(
    decoder: TinyDecoder, dtype: torch.dtype, prompt: int, history: list[Turn], num_rows: int
) -> None:
    runner = runner_over("target", decoder, new_cache(decoder, dtype=dtype))
    tokens = random_tokens(prompt)

    def visit(sequence: TokenIds) -> None:
        rows = min(num_rows, len(sequence))
        assert_same(runner.logits(sequence, rows), fresh(decoder, sequence, rows, dtype))
        assert runner.cache.length == len(sequence)

    for turn in history:
        tokens = play(tokens, turn, visit)


class SlowCache:
    """Keeps rotated rows in lists and attends by definition."""

    def __init__(self, decoder: TinyDecoder) -> None:
        self._shape, self._rope = decoder.cache_shape, decoder.rope
        self._rows: dict[int, tuple[Tensor, Tensor]] = {}

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, wanted: int) -> Tensor:
        keys, values = self._rows.get(layer, (k[:0], v[:0]))
        table = self._rope.table(torch.arange(len(keys), len(keys) + len(q)), q.dtype, q.device)
        keys, values = torch.cat((keys, rotate(k, table))), torch.cat((values, v))
        self._rows[layer] = keys, values
        assert wanted == len(q)
        return slow_attend(rotate(q, table), keys.transpose(0, 1), values.transpose(0, 1), self._shape.sliding_window)


@pytest.mark.parametrize("decoder", [DECODER, WINDOWED], ids=["all rows", "sliding window"])
def test_it_attends_as_defined_at_absolute_positions(decoder: TinyDecoder) -> None:
    tokens = random_tokens(20)
    segment = Segment(SlowCache(decoder), len(tokens), len(tokens))  # type: ignore[arg-type]
    expected = decoder.logits(decoder(torch.from_numpy(tokens).long(), [segment]))
    assert_same(runner_over("target", decoder, new_cache(decoder)).logits(tokens, 20), expected)
    runner = runner_over("target", decoder, new_cache(decoder))
    one_by_one = torch.cat([runner.logits(tokens[: i + 1], 1) for i in range(20)])
    assert_same(one_by_one, expected)


def test_wanted_rows_may_span_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = random_tokens(30)
    for num_rows in range(1, 12):
        expected = fresh(DECODER, tokens, num_rows)
        with monkeypatch.context() as patch:
            patch.setattr("triforce.runner.PREFILL_ROWS", 4)
            assert_same(fresh(DECODER, tokens, num_rows), expected)


def test_a_sliding_window_forgets_what_lies_behind_it() -> None:
    one_layer = tiny_decoder(num_layers=1, sliding_window=7)
    a, b = random_tokens(30), random_tokens(30)
    b[:23] = (b[:23] + 1) % VOCAB
    assert_same(fresh(one_layer, a, 1), fresh(one_layer, b, 1))
    b[23] = (b[23] + 1) % VOCAB
    assert not torch.allclose(fresh(one_layer, a, 1), fresh(one_layer, b, 1))


def test_it_grows_and_keeps_its_rows() -> None:
    runner = runner_over("target", DECODER, new_cache(capacity=2))
    tokens = random_tokens(100)
    for end in (1, 2, 3, 50, 100):
        assert_same(runner.logits(tokens[:end], 1), fresh(DECODER, tokens[:end], 1))


def test_long_prompts_are_read_in_passes_that_are_reported() -> None:
    runner, seen = runner_over("target", DECODER, new_cache()), []
    tokens = random_tokens(1200)
    runner.prefill(tokens[:-1], seen.append)
    assert seen == [1024, 1199]
    assert_same(runner.logits(tokens, 1), fresh(DECODER, tokens, 1))
    assert runner.stats.passes == 1


@settings(max_examples=40)
@given(
    prompt=st.integers(1, 40),
    history=st.lists(turns(), min_size=1, max_size=6),
    marked=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_the_last_queries_are_those_of_a_fresh_cache_after_any_history(
    prompt: int, history: list[Turn], marked: list[bool]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(full, "_SPARE_QUERIES", 3)
        cache = new_cache()
    runner = runner_over("target", DECODER, cache)
    tokens = random_tokens(prompt)
    for turn, mark in zip(history, marked, strict=False):
        tokens = play(tokens, turn, lambda sequence: runner.logits(sequence, 1))
        runner.logits(tokens, 1)
        if mark:
            cache.mark()
        other = new_cache(num_queries=512)
        runner_over("fresh", DECODER, other).prefill(tokens)
        for end in (len(tokens), max(len(tokens) - 2, 0)):
            torch.testing.assert_close(cache.queries(end, 4), other.queries(end, 4))


def test_dropping_a_rejected_draft_gives_up_no_rows() -> None:
    cache = new_cache()
    runner_over("target", DECODER, cache).prefill(random_tokens(500))
    assert cache.sync(random_tokens(500)[:372]) == 372


def test_a_rewind_to_the_mark_gives_up_no_rows_and_one_that_differs_before_it_forgets_it() -> None:
    cache, tokens = new_cache(), random_tokens(500)
    runner = runner_over("target", DECODER, cache)
    runner.prefill(tokens[:50])
    cache.mark()
    for _ in range(2):
        runner.prefill(tokens)
        assert cache.sync(tokens[:50]) == 50
        other = new_cache()
        runner_over("fresh", DECODER, other).prefill(tokens[:50])
        torch.testing.assert_close(cache.queries(50, 6), other.queries(50, 6))
    runner.prefill(tokens)
    assert cache.sync(tokens[:60]) == 60 - 6
    runner.prefill(tokens)
    assert cache.sync(tokens[:49]) == 49 - 6
    runner.prefill(tokens)
    assert cache.sync(tokens[:50]) == 50 - 6


def test_it_serves_only_the_same_rotation_and_enough_queries() -> None:
    cache = new_cache(num_queries=6)
    assert cache.serves(DECODER.rope, 6)
    assert not cache.serves(DECODER.rope, 7)
    assert not cache.serves(Rope(DECODER.rope.inv_freq / 2), 6)
    assert not cache.serves(Rope(DECODER.rope.inv_freq, 1.1), 6)
