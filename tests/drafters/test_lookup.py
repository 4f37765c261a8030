"""Lookup against a brute-force search for the longest suffix, over sequences that grow and are taken back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from triforce.config import SamplingParams
from triforce.drafters import lookup as module
from triforce.drafters.lookup import LongMatches, Lookup
from triforce.sampling import Sampler
from triforce.tokens import TokenIds

VOCAB = 4
SAMPLER = Sampler(SamplingParams(seed=0))


def ids(tokens: list[int]) -> TokenIds:
    return np.array(tokens, dtype=np.int32)


def drafted(lookup: Lookup, tokens: list[int], depth: int) -> list[int]:
    draft = lookup.propose(ids(tokens), depth, SAMPLER)
    return draft.tokens if draft else []


def slow_draft(tokens: list[int], depth: int, min_match: int, candidates: int, longest: int) -> list[int]:
    """Compares the suffix with what stands before each position, most recent first."""
    ends = []
    for end in range(len(tokens) - 1, 0, -1):
        length = 0
        while length < min(end, longest) and tokens[end - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= min_match:
            ends.append((length, end))
    ends = ends[:candidates]
    if not ends:
        return []
    _, best = max(ends)  # the longest, and the most recent of those
    continued = list(tokens)
    for i in range(depth):
        continued.append(continued[best + i])
    return continued[len(tokens) :]


@settings(max_examples=150)
@given(
    turns=st.lists(
        st.tuples(st.integers(0, 12), st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=12)),
        min_size=1,
        max_size=12,
    ),
    min_match=st.integers(1, 4),
    depth=st.integers(1, 6),
)
def test_it_proposes_what_a_brute_force_search_finds_after_any_rollbacks(
    turns: list[tuple[int, list[int]]], min_match: int, depth: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CANDIDATES", 5)
        patch.setattr(module, "_LONGEST", 6)
        lookup = Lookup(VOCAB, min_match)
        tokens: list[int] = []
        for dropped, appended in turns:
            tokens = tokens[: max(len(tokens) - dropped, 0)] + appended
            assert drafted(lookup, tokens, depth) == slow_draft(tokens, depth, min_match, 5, 6)
            lookup.read(ids(tokens[: len(tokens) // 2] + appended))
            assert drafted(lookup, tokens, depth) == slow_draft(tokens, depth, min_match, 5, 6)


@pytest.mark.parametrize(
    ("tokens", "length"), [([1, 2, 3, 0, 1, 2, 3], 3), ([1, 2, 3, 0, 0, 2, 3], 2), ([0, 1, 2, 3], 0)]
)
def test_long_matches_are_those_of_at_least_so_many_tokens(tokens: list[int], length: int) -> None:
    lookup = Lookup(VOCAB, 2)
    for least in range(2, 6):
        draft = LongMatches(lookup, least).propose(ids(tokens), 2, SAMPLER)
        assert (draft is not None) == (length >= least)
        assert draft is None or draft.tokens == drafted(lookup, tokens, 2)


def test_drafters_of_one_lookup_seek_once_for_each_sequence() -> None:
    lookup = Lookup(VOCAB, 2)
    for tokens in ([1, 2, 0, 1, 2], [1, 2, 0, 1, 2, 0], [1, 2, 0, 1, 2]):
        for least in (5, 3, 2):
            LongMatches(lookup, least).propose(ids(tokens), 2, SAMPLER)
    assert lookup.stats.passes == 3
    assert LongMatches(lookup, 5).stats is lookup.stats


def test_the_longest_match_wins_over_a_later_shorter_one() -> None:
    tokens = [1, 2, 3, 0, 0, 3, 1, 2, 2, 3, 0, 3, 3, 1, 2, 3]
    assert drafted(Lookup(VOCAB, 2), tokens, 2) == [0, 0]


def test_the_most_recent_of_equal_matches_wins() -> None:
    assert drafted(Lookup(VOCAB, 1), [1, 2, 1, 3, 1], 1) == [3]


def test_a_periodic_text_is_continued_past_its_end() -> None:
    assert drafted(Lookup(VOCAB, 3), [1, 2, 3] * 3, 8) == [1, 2, 3, 1, 2, 3, 1, 2]
    assert drafted(Lookup(VOCAB, 3), [2] * 5, 4) == [2, 2, 2, 2]


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3, 0]])
def test_it_proposes_nothing_without_a_match(tokens: list[int]) -> None:
    assert Lookup(VOCAB, 2).propose(ids(tokens), 3, SAMPLER) is None


def test_a_depth_of_zero_gives_no_draft() -> None:
    assert Lookup(VOCAB, 1).propose(ids([1, 1, 1]), 0, SAMPLER) is None


def test_its_draft_law_is_one_hot_over_the_targets_vocabulary() -> None:
    draft = Lookup(7, 1).propose(ids([1, 2, 3, 1]), 2, SAMPLER)
    assert draft is not None
    assert draft.laws.shape == (2, 7)
    assert torch.equal(draft.laws.argmax(-1), torch.tensor(draft.tokens))
    assert bool((draft.laws.sort(-1).values == torch.tensor([0.0] * 6 + [1.0])).all())
    assert draft.levels == ["lookup", "lookup"]


def test_rejected_drafts_do_not_make_its_index_grow() -> None:
    lookup, committed = Lookup(1000, 3), list(range(100))
    lookup.propose(ids(committed), 4, SAMPLER)
    size = sum(map(len, lookup._ends.values()))
    generator = np.random.default_rng(0)
    for _ in range(200):
        lookup.propose(ids(committed + generator.integers(0, 1000, 8).tolist()), 4, SAMPLER)
    lookup.propose(ids(committed), 4, SAMPLER)
    assert sum(map(len, lookup._ends.values())) == size == 97
    assert len(lookup._ends) == 97
