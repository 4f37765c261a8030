"""The sparse cache: exact rows of the full one, chosen by the committed tokens alone, within its budget."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import (
    DIM,
    HEADS,
    KV_HEADS,
    VOCAB,
    TinyDecoder,
    Turn,
    assert_same,
    random_tokens,
    runner_over,
    tiny_decoder,
    turns,
)
from torch import Tensor

from triforce.attention.int8 import dequantise, quantise
from triforce.caches.base import CacheShape
from triforce.caches.full import FullCache
from triforce.caches.sparse import NUM_QUERIES, SparseCache
from triforce.config import Decoding
from triforce.policies import POLICIES
from triforce.runner import ModelRunner
from triforce.tokens import TokenIds, extend

DECODER = tiny_decoder()
BUDGET, CHUNK, SINKS, RECENT, STRIDE = 28, 4, 5, 6, 8


@dataclass
class Levels:
    """A target and the sparse level over its cache."""

    target: ModelRunner
    sparse: ModelRunner
    full: FullCache
    cache: SparseCache


def new_levels(
    policy: str = "retrieval",
    decoder: TinyDecoder = DECODER,
    budget: int = BUDGET,
    recent: int = RECENT,
    dtype: torch.dtype = torch.float64,
) -> Levels:
    full = FullCache(decoder.cache_shape, decoder.rope, capacity=8, num_queries=NUM_QUERIES + STRIDE, dtype=dtype)
    sizes = Decoding(policy=policy, budget=budget, chunk=CHUNK, sinks=SINKS, recent=recent, stride=STRIDE)
    cache = SparseCache(full, sizes)
    return Levels(runner_over("target", decoder, full), runner_over("sparse", decoder, cache), full, cache)


def fresh_logits(
    policy: str, tokens: TokenIds, drafted: list[int], num_rows: int, dtype: torch.dtype = torch.float64
) -> Tensor:
    """Logits of new caches, where the full one has read all of `tokens` but the last and the sparse one drafts on."""
    levels = new_levels(policy, dtype=dtype)
    levels.target.prefill(tokens[:-1])
    return levels.sparse.logits(extend(tokens, drafted), num_rows)


def chosen(cache: SparseCache) -> Tensor:
    """Copies of the rows before the tail: [layers, kv_heads, chosen, dim]."""
    return cache._planes[0][:, :, : cache._num_chosen].clone()


def assert_rows_are_the_full_caches(levels: Levels, committed: int) -> None:
    cache, full = levels.cache, levels.full
    first, tail = cache._num_chosen, cache._tail_start
    for ours, theirs in zip(cache._planes, full.planes, strict=True):
        assert torch.equal(ours[:, :, first : first + committed - tail], theirs[:, :, tail:committed])
        for layer in range(len(ours)):
            for head in range(ours.shape[1]):
                for row in ours[layer, head, :first]:
                    assert bool((theirs[layer, head, :tail] == row).all(-1).any())


@pytest.mark.parametrize(
    ("policy", "dtype"), [*((policy, torch.float64) for policy in POLICIES), ("retrieval", torch.int8)]
)
@settings(max_examples=20)
@given(prompt=st.integers(1, 90), history=st.lists(turns(), min_size=1, max_size=6), num_rows=st.integers(1, 3))
def test_any_history_gives_the_logits_of_fresh_caches(
    policy: str, dtype: torch.dtype, prompt: int, history: list[Turn], num_rows: int
) -> None:
    levels = new_levels(policy, dtype=dtype)
    tokens = random_tokens(prompt)
    levels.target.prefill(tokens[:-1])
    for turn in history:
        tokens = extend(tokens[: max(len(tokens) - turn.dropped, 1)], turn.appended)
        levels.target.prefill(tokens[:-1])
        for n in range(len(turn.drafted) + 1):
            rows = min(num_rows, n + 1)
            logits = levels.sparse.logits(extend(tokens, turn.drafted[:n]), rows)
            assert_same(logits, fresh_logits(policy, tokens, turn.drafted[:n], rows, dtype))
            assert_rows_are_the_full_caches(levels, len(tokens) - 1)
        levels.target.logits(extend(tokens, turn.drafted), len(turn.drafted) + 1)
        accepted = extend(tokens, turn.drafted[: turn.accepted])
        tokens = extend(accepted, [(int(accepted[-1]) + 1) % VOCAB])


@settings(max_examples=20)
@given(
    prompt=st.integers(40, 90),
    first=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
    held=st.integers(0, 20),
    then=st.integers(1, 20),
)
def test_drafts_longer_than_what_is_verified_leave_no_trace(
    prompt: int, first: list[int], held: int, then: int
) -> None:
    """The full cache may catch up with only part of a draft that the sparse one holds."""
    tokens = random_tokens(prompt)
    levels = new_levels()
    levels.target.prefill(tokens[:-1])
    levels.sparse.logits(extend(tokens, first), 1)
    committed = extend(tokens, first[:held])
    levels.target.prefill(committed[:-1])
    drafted = first[held : held + then]
    assert_same(levels.sparse.logits(extend(committed, drafted), 1), fresh_logits("retrieval", committed, drafted, 1))
    assert_rows_are_the_full_caches(levels, len(committed) - 1)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 6, 12, 20, BUDGET - CHUNK])
def test_a_prompt_that_fits_gives_the_full_caches_logits(length: int) -> None:
    tokens = random_tokens(length)
    levels = new_levels()
    levels.target.prefill(tokens[:-1])
    draft = [1, 2, 3]
    ours = levels.sparse.logits(extend(tokens, draft), 4)
    assert_same(ours, levels.target.logits(extend(tokens, draft), 4))


def test_a_prompt_past_the_budget_does_not() -> None:
    tokens = random_tokens(80)
    levels = new_levels()
    levels.target.prefill(tokens[:-1])
    assert not torch.allclose(levels.sparse.logits(tokens, 1), levels.target.logits(tokens, 1))


def test_the_selection_never_changes_while_drafting() -> None:
    tokens = random_tokens(75)
    levels = new_levels()
    levels.target.prefill(tokens[:-1])
    levels.sparse.logits(tokens, 1)
    rows, tail = chosen(levels.cache), levels.cache._tail_start
    for n in range(1, 4 * STRIDE):
        levels.sparse.logits(extend(tokens, random_tokens(n, seed=1).tolist()), 1)
        assert torch.equal(chosen(levels.cache), rows)
        assert levels.cache._tail_start == tail


def test_the_selection_depends_on_committed_tokens_alone() -> None:
    tokens = random_tokens(75)
    selections = []
    for seed, n in [(1, 1), (2, 9), (3, 17)]:  # other drafts, other rejected rows in the full cache
        levels = new_levels()
        levels.target.prefill(tokens[:50])
        levels.sparse.logits(extend(tokens[:51], random_tokens(n, seed).tolist()), 1)
        levels.target.logits(extend(tokens[:51], random_tokens(n, seed).tolist()), n)
        levels.target.prefill(tokens[:-1])
        levels.target.logits(extend(tokens, random_tokens(n, seed).tolist()), n)
        levels.sparse.logits(tokens, 1)
        selections.append(chosen(levels.cache))
    assert_same(selections[1], selections[0])
    assert_same(selections[2], selections[0])


def test_the_selection_is_renewed_every_stride_and_takes_generated_rows() -> None:
    tokens = random_tokens(200)
    levels = new_levels("recent")  # of which it is known what it must choose
    levels.target.prefill(tokens[:60])
    tails = []
    for end in range(61, 201):
        levels.target.prefill(tokens[: end - 1])
        levels.sparse.logits(tokens[:end], 1)
        tails.append(levels.cache._tail_start)
        at = (end - 1) // STRIDE * STRIDE
        assert tails[-1] == (at - RECENT) // CHUNK * CHUNK
    assert len(set(tails)) == len({end // STRIDE for end in range(60, 200)})
    last = chosen(levels.cache)[:, :, -CHUNK:]
    assert torch.equal(last, levels.full.keys[:, :, tails[-1] - CHUNK : tails[-1]])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("budget", "recent"), [(BUDGET, RECENT), (23, 3), (24, 4), (25, 4), (26, 4), (27, 4), (40, 1)])
def test_budget_sinks_and_recent_window_hold_at_each_renewal(policy: str, budget: int, recent: int) -> None:
    tokens = random_tokens(120)
    levels = new_levels(policy, budget=budget, recent=recent)
    sinks = -(-SINKS // CHUNK) * CHUNK
    for end in range(STRIDE, 121, STRIDE):
        levels.target.prefill(tokens[:end])
        levels.cache.sync(tokens[:end])
        assert levels.cache.num_rows <= budget
        assert levels.cache.num_rows >= min(end, budget - 2 * CHUNK + 1)
        assert end - levels.cache._tail_start >= min(recent, end)
        first = min(sinks, end)
        assert torch.equal(levels.cache._planes[0][:, :, :first], levels.full.keys[:, :, :first])


def test_rows_at_hand_do_not_grow_with_the_text() -> None:
    tokens = random_tokens(600)
    levels = new_levels()
    for end in range(100, 601, 10):
        levels.target.prefill(tokens[: end - 1])
        levels.sparse.logits(extend(tokens[:end], [1] * 5), 1)
        assert levels.cache.num_rows < BUDGET + STRIDE + 6


def test_retrieval_chooses_what_a_slow_rule_chooses() -> None:
    tokens = random_tokens(83)
    levels = new_levels()
    levels.target.prefill(tokens[:-1])
    levels.sparse.logits(tokens, 1)
    at = 82 // STRIDE * STRIDE
    num_chunks, kept = (at - RECENT) // CHUNK, levels.cache._num_chosen // CHUNK
    queries = levels.full.queries(at, NUM_QUERIES).double()
    for layer in range(2):
        for head in range(KV_HEADS):
            keys = levels.full.keys[layer, head, : num_chunks * CHUNK].view(num_chunks, CHUNK, DIM)
            means = dequantise(*quantise(keys.mean(1)), torch.float64)
            scores = torch.zeros(num_chunks, dtype=torch.float64)
            for query in queries[layer]:
                for q in query[head * (HEADS // KV_HEADS) : (head + 1) * (HEADS // KV_HEADS)]:
                    scores += (means @ q / DIM**0.5).softmax(0)
            scores[: -(-SINKS // CHUNK)] = 1e9
            best = sorted(sorted(range(num_chunks), key=lambda c: -float(scores[c]))[:kept])
            assert torch.equal(chosen(levels.cache)[layer, head], torch.cat([keys[c] for c in best]))


def test_a_second_prompt_is_selected_anew() -> None:
    levels = new_levels()
    for seed, length in [(1, 90), (2, 90), (3, 20), (2, 90), (2, 64), (4, 65)]:
        tokens = random_tokens(length, seed)
        levels.target.prefill(tokens[:-1])
        assert_same(levels.sparse.logits(tokens, 1), fresh_logits("retrieval", tokens, [], 1))


def test_means_of_replaced_rows_are_not_kept() -> None:
    """A rewind below chunks already averaged, then other tokens there: the new rows' means must decide."""
    first, second = random_tokens(90, 1), random_tokens(90, 1)
    second[30:60] = (second[30:60] + 3) % VOCAB
    levels = new_levels()
    levels.target.prefill(first[:-1])
    levels.sparse.logits(first, 1)
    levels.target.prefill(second[:-1])
    assert_same(levels.sparse.logits(second, 1), fresh_logits("retrieval", second, [], 1))


def test_at_32k_tokens_it_holds_less_than_a_twentieth_of_the_full_cache_and_does_not_grow() -> None:
    """Of float16 rows with heads of 64, at the default settings; the rows' contents do not matter."""
    default, length = Decoding(), 32_768
    shape = CacheShape(num_layers=1, num_heads=2, num_kv_heads=1, head_dim=64)
    full = FullCache(
        shape, DECODER.rope, capacity=length, num_queries=NUM_QUERIES + default.stride, dtype=torch.float16
    )
    for plane in full.planes:
        plane.fill_(1)
    cache = SparseCache(full, default)
    tokens = random_tokens(length)
    full.log.append(tokens[: length - 300])
    held = []
    for end in range(length - 300, length + 1, 3):
        full.log.append(tokens[full.length : end])
        cache.sync(tokens[:end])
        cache.attend(0, torch.ones(6, 2, 64), torch.ones(6, 1, 64), torch.ones(6, 1, 64), 6)
        held.append(sum(plane.nbytes for plane in (*cache._planes, *cache._means)))
    assert held[-1] == held[0]
    assert held[-1] < 0.05 * sum(plane.nbytes for plane in full.planes)
