"""The streaming cache against a slow one that names every visible row and its slot; and what must not rot in it.

The published drafter lost its last accepted token after every rejection, its sinks from the second prompt on, and kept
stale slots of longer prompts. None of these shows in the output: hence tests of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from slow_attention import weigh
from tiny import VOCAB, TinyDecoder, Turn, assert_same, play, random_tokens, runner_over, tiny_decoder, turns
from torch import Tensor

from triforce.attention.rope import rotate
from triforce.caches import streaming
from triforce.caches.base import Segment
from triforce.caches.streaming import StreamingCache
from triforce.runner import ModelRunner
from triforce.tokens import TokenIds, extend

DECODER = tiny_decoder()
ONE_LAYER = tiny_decoder(num_layers=1)
SINKS, SLOTS = 3, 10
WINDOW = SLOTS - SINKS


@pytest.fixture(autouse=True)
def _small_buffers() -> Iterator[None]:
    """Evictions every few tokens and passes of a few rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "_SPARE", 12)
        patch.setattr(streaming, "_PASS", 5)
        yield


def new_runner(decoder: TinyDecoder = DECODER, sinks: int = SINKS, slots: int = SLOTS) -> ModelRunner:
    cache = StreamingCache(decoder.cache_shape, decoder.rope, slots=slots, sinks=sinks, dtype=torch.float64)
    return runner_over("draft", decoder, cache)


class SlowStreamingCache:
    """Rows by position, unrotated; every query names what it sees and the slot of each row. Skips to `resume`."""

    def __init__(self, decoder: TinyDecoder, sinks: int, slots: int, resume: int) -> None:
        self._rope, self._sinks, self._slots, self._resume = decoder.rope, sinks, slots, resume
        self._group = decoder.cache_shape.num_heads // decoder.cache_shape.num_kv_heads
        self._rows: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.position = 0

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, wanted: int) -> Tensor:
        assert wanted == 1
        position = self.position
        self._rows[layer, position] = k[0], v[0]
        own_slot = min(position, self._slots - 1)
        slots = {row: row for row in range(min(self._sinks, position + 1))}
        for row in range(max(self._sinks, self._resume, position - (self._slots - self._sinks) + 1), position + 1):
            slots[row] = own_slot - (position - row)
        assert len(set(slots.values())) == len(slots)
        assert set(slots.values()) <= set(range(self._slots))
        query = self._turned(q, own_slot)[0]
        keys = torch.stack([self._turned(self._rows[layer, row][0][None], slot)[0] for row, slot in slots.items()])
        values = torch.stack([self._rows[layer, row][1] for row in slots])
        out = [weigh(query[h], keys[:, h // self._group], values[:, h // self._group]) for h in range(len(query))]
        return torch.stack(out)[None]

    def _turned(self, x: Tensor, slot: int) -> Tensor:
        return rotate(x, self._rope.table(torch.tensor([slot]), x.dtype, x.device))


def slow_logits(
    decoder: TinyDecoder, tokens: TokenIds, sinks: int = SINKS, slots: int = SLOTS, resume: int = 0
) -> Tensor:
    """Logits [vocab] after the last of `tokens`; positions between the sinks and `resume` are not read."""
    cache = SlowStreamingCache(decoder, sinks, slots, resume)
    for position in [p for p in range(len(tokens)) if p < sinks or p >= resume]:
        cache.position = position
        token = torch.tensor([int(tokens[position])])
        hidden = decoder(token, [Segment(cache, 1, 1)])  # type: ignore[arg-type]
    return decoder.logits(hidden)[0]


def skip_point(length: int, sinks: int = SINKS, slots: int = SLOTS) -> int:
    """Where a cache that holds nothing begins to read the window of a prompt of `length` tokens."""
    resume = length - 2 * (slots - sinks)
    return resume if resume > 4 * slots else 0


def fresh(tokens: TokenIds, num_rows: int, prompt: int, decoder: TinyDecoder = DECODER) -> Tensor:
    """Logits of a new cache that read `prompt` tokens at once and then the others, too few at a time to skip any."""
    runner = new_runner(decoder)
    filler = [0] * max(prompt - len(tokens), 0)  # taken back at once: only fixes where the cache begins to read
    runner.prefill(extend(tokens, filler)[:prompt])
    for end in range(prompt + 1, len(tokens) - num_rows + 1, 13):
        runner.prefill(tokens[:end])
    return runner.logits(tokens, num_rows)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 9, 10, 11, 25, 54, 55, 56, 90])
def test_a_query_sees_its_sinks_and_window_by_slot(length: int) -> None:
    tokens = random_tokens(length)
    assert_same(new_runner().logits(tokens, 1)[0], slow_logits(DECODER, tokens, resume=skip_point(length)))


@pytest.mark.parametrize(("sinks", "slots"), [(0, 4), (1, 2), (8, 9), (4, 20)])
def test_it_does_so_for_any_number_of_sinks_and_slots(sinks: int, slots: int) -> None:
    for length in (1, 5, 9, 40):
        tokens = random_tokens(length)
        resume = skip_point(length, sinks, slots)
        assert_same(
            new_runner(DECODER, sinks, slots).logits(tokens, 1)[0], slow_logits(DECODER, tokens, sinks, slots, resume)
        )


def test_generation_after_a_skip_still_equals_the_slow_cache() -> None:
    prompt, tokens = 70, random_tokens(120)
    runner = new_runner()
    runner.prefill(tokens[:prompt])
    for end in range(prompt + 1, len(tokens) + 1):
        logits = runner.logits(tokens[:end], 1)[0]
        if end % 10 == 0:
            assert_same(logits, slow_logits(DECODER, tokens[:end], resume=skip_point(prompt)))


@hypothesis_settings(max_examples=30)
@given(prompt=st.integers(1, 90), history=st.lists(turns(), min_size=1, max_size=8), num_rows=st.integers(1, 3))
def test_any_history_gives_the_logits_of_a_fresh_cache(prompt: int, history: list[Turn], num_rows: int) -> None:
    runner = new_runner()
    tokens = random_tokens(prompt)
    runner.prefill(tokens)
    read_at_once = prompt

    def visit(sequence: TokenIds) -> None:
        nonlocal read_at_once
        rows = min(num_rows, len(sequence))
        if runner.cache.sync(sequence[: len(sequence) - rows]) == 0:
            read_at_once = len(sequence)  # it begins anew
        assert_same(runner.logits(sequence, rows), fresh(sequence, rows, read_at_once))
        assert runner.cache.length == len(sequence)

    for turn in history:
        tokens = play(tokens, turn, visit)


@pytest.mark.parametrize("length", [41, 47, 50])  # right after rows were evicted, and later
def test_a_rewind_of_any_depth_leaves_what_a_fresh_cache_holds(length: int) -> None:
    tokens = random_tokens(length)
    for kept in range(length):
        runner = new_runner(ONE_LAYER)
        for end in range(1, length + 1, 4):
            runner.prefill(tokens[:end])
        other = extend(tokens[:kept], [(int(tokens[kept]) + 1) % VOCAB])
        assert_same(runner.logits(other, 1), new_runner(ONE_LAYER).logits(other, 1))


def test_after_a_rejection_the_window_still_holds_the_last_accepted_token() -> None:
    tokens = random_tokens(40)
    runner = new_runner()
    runner.prefill(tokens)
    for accepted in range(4):
        drafted = random_tokens(4, seed=accepted + 1)
        runner.logits(extend(tokens, drafted.tolist()), 4)
        tokens = extend(tokens, [*drafted[:accepted].tolist(), (int(drafted[min(accepted, 3)]) + 1) % VOCAB])
        logits = runner.logits(tokens, 1)
        assert_same(logits[0], slow_logits(DECODER, tokens, resume=skip_point(40)))
        other = tokens.copy()
        other[-2] = (other[-2] + 1) % VOCAB  # the last accepted token, or the last one before the draft
        assert not torch.allclose(logits[0], slow_logits(DECODER, other, resume=skip_point(40)))


def test_sinks_are_intact_over_a_second_prompt() -> None:
    runner = new_runner()
    for seed, length in [(1, 80), (2, 30), (3, 80), (3, 85), (4, 2), (5, 60)]:
        tokens = random_tokens(length, seed)
        assert_same(runner.logits(tokens, 1), new_runner().logits(tokens, 1))


def test_a_second_prompt_with_the_same_sinks_equals_a_fresh_cache() -> None:
    first, second = random_tokens(80, 1), random_tokens(80, 2)
    second[: SINKS + 1] = first[: SINKS + 1]
    runner = new_runner()
    runner.prefill(first)
    assert_same(runner.logits(second, 1), new_runner().logits(second, 1))


@pytest.mark.parametrize("length", range(1, 24))
def test_no_stale_slot_of_a_longer_prompt_is_seen(length: int) -> None:
    runner = new_runner()
    runner.prefill(random_tokens(37, seed=1))
    tokens = random_tokens(length, seed=2)
    assert_same(runner.logits(tokens, 1)[0], slow_logits(DECODER, tokens))


def test_slots_do_not_move_however_long_the_text_between_is() -> None:
    """With one layer, what a query sees is its sinks and its window: nothing else may reach the logits."""
    end = random_tokens(WINDOW, seed=9).tolist()
    logits = [
        new_runner(ONE_LAYER).logits(extend(random_tokens(length), end), 1) for length in (SINKS, 20, 41, 300, 2000)
    ]
    for other in logits[1:]:
        assert_same(other, logits[0])


def test_a_pass_costs_the_same_at_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def spy(q_sinks: Tensor, q: Tensor, keys: Tensor, values: Tensor, now: streaming._Pass) -> Tensor:
        seen.append(now.mask.shape[1])
        return attend(q_sinks, q, keys, values, now)

    attend = streaming._attend
    monkeypatch.setattr(streaming, "_attend", spy)
    runner = new_runner(ONE_LAYER)
    tokens = random_tokens(3000)
    for end in range(1, 1000):
        runner.logits(tokens[:end], 1)
    assert set(seen[SLOTS:]) == {SLOTS}
    seen.clear()
    new_runner(ONE_LAYER).logits(tokens, 1)
    assert len(seen) < 10
    assert max(seen) <= SLOTS + 4


def test_a_long_gap_is_skipped_and_a_short_one_is_read() -> None:
    tokens = random_tokens(200)
    runner = new_runner()
    runner.prefill(tokens[:30])
    assert [list(span) for span in runner.cache.missing(tokens[:40])] == [[*range(30, 35)], [*range(35, 40)]]
    spans = list(runner.cache.missing(tokens))
    assert spans[0].start == 200 - 2 * WINDOW
    assert runner.cache.length == 200 - 2 * WINDOW
    new = new_runner()
    assert next(iter(new.cache.missing(tokens))) == range(SINKS)
