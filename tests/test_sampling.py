"""Controls against slow plain rules and against transformers; draws against their law."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor

from triforce.config import SamplingParams
from triforce.sampling import Sampler, one_hot

CONTROLS = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 2.5},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 1.0, "top_k": 1000},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 1.0, "top_p": 0.05},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 0.8, "top_k": 10, "top_p": 0.8},
    {"temperature": 0.8, "top_k": 10, "top_p": 0.95, "min_p": 0.05},
]


def laws_of(logits: Tensor, **controls: float) -> Tensor:
    tokens = np.zeros(len(logits), dtype=np.int32)
    return Sampler(SamplingParams(seed=0, **controls)).laws(logits, tokens)  # type: ignore[arg-type]


def slow_law(logits: list[float], temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Tensor:
    """The same by plain loops over ids sorted by probability, for logits without ties."""
    law = torch.softmax(torch.tensor(logits, dtype=torch.float64) / temperature, 0)
    kept = sorted(range(len(logits)), key=lambda i: -law[i])
    if top_k:
        kept = kept[:top_k]
    if top_p < 1.0:
        mass, nucleus, total = 0.0, [], float(law[kept].sum())
        for i in kept:
            nucleus.append(i)
            mass += float(law[i]) / total
            if mass >= top_p:
                break
        kept = nucleus
    kept = [i for i in kept if law[i] >= min_p * law[kept[0]]]
    out = torch.zeros_like(law)
    out[kept] = law[kept] / law[kept].sum()
    return out


def random_logits(seed: int, rows: int = 4, vocab_size: int = 50) -> Tensor:
    return 3 * torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("controls", CONTROLS, ids=str)
def test_laws_equal_a_slow_plain_rule(controls: dict[str, float]) -> None:
    for seed in range(20):
        logits = random_logits(seed)
        expected = torch.stack([slow_law(row, **controls) for row in logits.tolist()])  # type: ignore[arg-type]
        laws = laws_of(logits, **controls)
        assert torch.equal(laws > 0, expected > 0)
        torch.testing.assert_close(laws.double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("controls", CONTROLS, ids=str)
def test_laws_equal_those_of_transformers(controls: dict[str, float]) -> None:
    process = pytest.importorskip("transformers.generation.logits_process")
    steps = [process.TemperatureLogitsWarper(controls["temperature"])]
    if "top_k" in controls:
        steps.append(process.TopKLogitsWarper(int(controls["top_k"])))
    if "top_p" in controls:
        steps.append(process.TopPLogitsWarper(controls["top_p"]))
    if "min_p" in controls:
        steps.append(process.MinPLogitsWarper(controls["min_p"]))
    for seed in range(20):
        logits = scores = random_logits(seed)
        for step in steps:
            scores = step(None, scores)
        torch.testing.assert_close(laws_of(logits, **controls), scores.softmax(-1))


@settings(max_examples=200)
@given(
    st.lists(st.floats(-60, 60, width=32), min_size=1, max_size=12),
    st.floats(0.01, 10),
    st.integers(0, 14),
    st.floats(0.001, 1.0),
    st.floats(0.0, 1.0),
)
def test_laws_sum_to_one_and_keep_the_best_token(
    row: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    law = laws_of(torch.tensor([row]), temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)[0]
    assert law.dtype == torch.float32
    assert bool((law >= 0).all())
    assert abs(float(law.double().sum()) - 1.0) < 1e-5
    assert law[max(range(len(row)), key=row.__getitem__)] == law.max() > 0


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([-1.0, 0.0, 1.0, 2.0]), min_size=2, max_size=12),
    st.integers(0, 5),
    st.floats(0.05, 1.0),
    st.permutations(range(12)),
)
def test_ties_share_one_fate_whatever_the_order_of_ids(
    row: list[float], top_k: int, top_p: float, order: list[int]
) -> None:
    logits = torch.tensor([row])
    law = laws_of(logits, temperature=1.0, top_k=top_k, top_p=top_p)[0]
    for value in set(row):
        assert len({float(p) for p in law[logits[0] == value]}) == 1
    index = torch.tensor([i for i in order if i < len(row)])
    permuted = laws_of(logits[:, index], temperature=1.0, top_k=top_k, top_p=top_p)[0]
    torch.testing.assert_close(permuted, law[index])


def test_greedy_is_the_one_hot_law_of_the_best_token() -> None:
    logits = random_logits(3)
    assert torch.equal(laws_of(logits, temperature=0.0), one_hot(logits.argmax(-1), 50))


def test_a_temperature_near_zero_approaches_greedy_without_overflow() -> None:
    logits = 10.0 * torch.tensor([[3, 1, 4, 0, 5], [9, 2, 6, 8, 7]])
    for temperature in (1e-2, 1e-20, 1e-37):
        torch.testing.assert_close(laws_of(logits, temperature=temperature), laws_of(logits, temperature=0.0))


def test_logits_of_minus_infinity_get_no_law() -> None:
    logits = torch.tensor([[0.0, float("-inf"), 1.0]])
    for controls in ({"temperature": 1.0}, {"temperature": 0.0}, {"temperature": 0.5, "top_p": 0.99, "top_k": 3}):
        law = laws_of(logits, **controls)[0]
        assert law[1] == 0
        assert torch.isfinite(law).all()


@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
def test_a_large_vocabulary_gives_the_nucleus_of_a_full_sort(spread: float, top_p: float) -> None:
    logits = spread * torch.randn(3, 5000, generator=torch.Generator().manual_seed(7))
    law = laws_of(logits, temperature=1.0, top_p=top_p)
    whole = torch.softmax(logits, -1)
    best, order = whole.sort(-1, descending=True)
    before = best.double().cumsum(-1) - best
    kept = torch.zeros_like(whole, dtype=torch.bool).scatter_(-1, order, before < top_p)
    assert torch.equal(law > 0, kept)
    expected = whole * kept
    torch.testing.assert_close(law, expected / expected.sum(-1, keepdim=True))


def test_the_cases_above_reach_both_the_short_sort_and_the_full_one() -> None:
    flat, peaked = torch.zeros(1, 5000), torch.zeros(1, 5000)
    peaked[0, 17] = 50.0
    assert int((laws_of(flat + torch.arange(5000) * 1e-6, temperature=1.0, top_p=0.9) > 0).sum()) > 1024
    assert int((laws_of(peaked, temperature=1.0, top_p=0.9) > 0).sum()) == 1


def test_rows_do_not_influence_each_other() -> None:
    logits = torch.cat((random_logits(5, 3, 3000), torch.zeros(1, 3000)))  # one flat row takes the full sort
    together = laws_of(logits, temperature=1.0, top_p=0.9)
    apart = torch.cat([laws_of(row[None], temperature=1.0, top_p=0.9) for row in logits])
    torch.testing.assert_close(together, apart)


def test_a_seed_reproduces_its_stream_and_no_seed_does_not() -> None:
    law = torch.full((1000,), 0.001)

    def stream(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingParams(temperature=1.0, seed=seed))
        return [sampler.draw(law) for _ in range(10)] + [int(1e9 * u) for u in sampler.uniforms(3)]

    assert stream(1) == stream(1)
    assert stream(1) != stream(2)
    assert stream(None) != stream(None)


def test_draws_follow_their_law() -> None:
    law = torch.tensor([0.0, 0.4, 0.05, 0.0, 0.3, 0.25, 0.0])
    sampler = Sampler(SamplingParams(temperature=1.0, seed=8))
    counts = torch.zeros(len(law), dtype=torch.long)
    for _ in range(5000):
        counts[sampler.draw(law)] += 1
    possible = law > 0
    assert int(counts[~possible].sum()) == 0
    expected = 5000 * law[possible].double() / law.double().sum()
    assert chisquare(counts[possible].numpy(), expected.numpy()).pvalue > 1e-4


@settings(max_examples=200)
@given(st.lists(st.sampled_from([0.0, 1e-30, 1e-3, 1.0]), min_size=1, max_size=9).filter(any), st.integers(0, 2**31))
def test_no_draw_has_law_zero(weights: list[float], seed: int) -> None:
    law = torch.tensor(weights)
    assert law[Sampler(SamplingParams(temperature=1.0, seed=seed)).draw(law)] > 0


def test_a_draw_of_the_random_number_zero_skips_leading_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda *size, **_: torch.zeros(size[0] or (), dtype=torch.float64))
    assert Sampler(SamplingParams(temperature=1.0, seed=0)).draw(torch.tensor([0.0, 0.0, 0.5, 0.5])) == 2
