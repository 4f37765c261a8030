"""The rejection rule alone: cases by name, and properties over random laws."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from triforce.config import SamplingParams
from triforce.sampling import Sampler, one_hot
from triforce.speculative import Draft, Verdict, verify

VOCAB = 6


class FixedSampler(Sampler):
    """One whose uniforms are all `value`."""

    def __init__(self, value: float) -> None:
        super().__init__(SamplingParams(temperature=1.0, seed=0))
        self._value = value

    def uniforms(self, n: int) -> Tensor:
        return torch.full((n,), self._value, dtype=torch.float64)


def seeded(seed: int = 0) -> Sampler:
    return Sampler(SamplingParams(temperature=1.0, seed=seed))


def draft_of(tokens: list[int], laws: Tensor) -> Draft:
    return Draft(tokens, laws, ["draft"] * len(tokens))


@st.composite
def laws(draw: st.DrawFn, rows: int) -> Tensor:
    """Rows over the vocabulary, many of their entries 0."""
    entries = st.sampled_from([0.0, 0.0, 1e-7, 0.01, 1.0, 2.0, 7.0])
    table = [draw(st.lists(entries, min_size=VOCAB, max_size=VOCAB).filter(any)) for _ in range(rows)]
    weights = torch.tensor(table)
    return weights / weights.sum(-1, keepdim=True)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Draft, Tensor, int]:
    n = draw(st.integers(0, 4))
    draft_laws = draw(laws(n)) if n else torch.empty(0, VOCAB)
    seed = draw(st.integers(0, 2**31))
    sampler = seeded(seed)
    return draft_of([sampler.draw(law) for law in draft_laws], draft_laws), draw(laws(n + 1)), seed


def assert_well_formed(draft: Draft, verifier: Tensor, verdict: Verdict) -> None:
    k = verdict.num_accepted
    assert 0 <= k <= len(draft.tokens)
    assert verdict.tokens[:k] == draft.tokens[:k]
    assert len(verdict.tokens) == k + 1
    assert torch.equal(verdict.laws, verifier[: k + 1])
    assert verdict.levels == ["draft"] * k + ["target"]
    assert all(law[token] > 0 for token, law in zip(verdict.tokens, verdict.laws, strict=True))


@settings(max_examples=300)
@given(cases())
def test_it_accepts_a_prefix_and_adds_one_token_of_nonzero_law(case: tuple[Draft, Tensor, int]) -> None:
    draft, verifier, seed = case
    assert_well_formed(draft, verifier, verify(draft, verifier, "target", seeded(seed + 1)))


@settings(max_examples=200)
@given(cases(), st.sampled_from([0.0, 1.0 - 2.0**-53]))
def test_it_does_so_with_the_least_and_the_greatest_random_number(case: tuple[Draft, Tensor, int], u: float) -> None:
    draft, verifier, _ = case
    assert_well_formed(draft, verifier, verify(draft, verifier, "target", FixedSampler(u)))


@settings(max_examples=200)
@given(cases())
def test_the_token_after_a_rejection_has_more_law_than_the_draft_gave_it(case: tuple[Draft, Tensor, int]) -> None:
    draft, verifier, seed = case
    verdict = verify(draft, verifier, "target", seeded(seed + 1))
    k = verdict.num_accepted
    if k < len(draft.tokens) and bool((verifier[k] > draft.laws[k]).any()):
        assert verifier[k, verdict.tokens[k]] > draft.laws[k, verdict.tokens[k]]


@settings(max_examples=100)
@given(laws(4), st.integers(0, 2**31))
def test_identical_laws_accept_everything(table: Tensor, seed: int) -> None:
    sampler = seeded(seed)
    draft = draft_of([sampler.draw(law) for law in table[:3]], table[:3])
    assert verify(draft, table, "target", sampler).num_accepted == 3


def test_disjoint_supports_reject_everything() -> None:
    drafted = torch.tensor([[0.5, 0.5, 0.0, 0.0]]).expand(3, -1)
    verifier = torch.tensor([[0.0, 0.0, 0.3, 0.7]]).expand(4, -1)
    for seed in range(50):
        verdict = verify(draft_of([0, 1, 0], drafted), verifier, "target", seeded(seed))
        assert verdict.num_accepted == 0
        assert verdict.tokens[0] in (2, 3)


def test_a_token_of_law_zero_is_rejected_even_by_the_random_number_zero() -> None:
    drafted, verifier = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    verdict = verify(draft_of([0], drafted), verifier, "target", FixedSampler(0.0))
    assert (verdict.tokens, verdict.num_accepted) == ([1], 0)


@pytest.mark.parametrize("draft", [None, draft_of([], torch.empty(0, 3))], ids=["no draft", "empty draft"])
def test_nothing_drafted_gives_one_token_of_the_verifier(draft: Draft | None) -> None:
    verifier = torch.tensor([[0.0, 1.0, 0.0]])
    verdict = verify(draft, verifier, "target", seeded())
    assert (verdict.tokens, verdict.levels, verdict.num_accepted) == ([1], ["target"], 0)
    assert torch.equal(verdict.laws, verifier)


def test_a_perfect_match_ends_with_a_bonus_token_from_the_last_law() -> None:
    greedy = one_hot(torch.tensor([2, 0, 1, 3]), 4)
    verdict = verify(draft_of([2, 0, 1], greedy[:3]), greedy, "target", seeded())
    assert (verdict.tokens, verdict.num_accepted) == ([2, 0, 1, 3], 3)


def test_an_early_mismatch_drops_what_was_drafted_after_it() -> None:
    greedy = one_hot(torch.tensor([2, 0, 1, 3]), 4)
    verdict = verify(draft_of([2, 3, 1], one_hot(torch.tensor([2, 3, 1]), 4)), greedy, "target", seeded())
    assert (verdict.tokens, verdict.num_accepted) == ([2, 0], 1)


def test_an_empty_residual_falls_back_to_the_verifiers_law() -> None:
    """Only rounding brings it about: here a draft law that sums to more than 1 stands for it."""
    draft, verifier = draft_of([0], torch.tensor([[0.9, 0.6]])), torch.tensor([[0.5, 0.5]] * 2)
    verdict = verify(draft, verifier, "target", FixedSampler(0.9))
    assert verdict.num_accepted == 0
    assert verdict.tokens[0] in (0, 1)


def test_laws_one_too_few_are_a_programming_error() -> None:
    with pytest.raises(AssertionError):
        verify(draft_of([0], torch.ones(1, 1)), torch.ones(1, 1), "target", seeded())
