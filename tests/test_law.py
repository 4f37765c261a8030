"""Whatever drafts, the output follows the target's law: χ² over whole sequences of table models, fixed seeds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from compositions import COMPOSITIONS, PREFIX, sampler, target
from tables import count_sequences, enumerate_law, p_value

from triforce.speculative import step
from triforce.tokens import extend

THRESHOLD = 1e-4  # a case fails below it; the broken rules of test_broken_rules.py fall below 1e-6
LENGTH = 3

COUNT = 1000  # sequences of a case; fewer where a step is long
CASES = [  # composition, gamma1, gamma2
    ("ar", 1, 1),
    ("lookup", 1, 1),
    ("lookup", 1, 4),
    ("draft", 1, 1),
    ("draft", 1, 3),
    ("draft", 1, 8),
    ("smaller vocabulary", 1, 2),
    ("retrieval", 1, 2),
    ("retrieval", 1, 6),
    ("model, middle", 1, 1),
    ("model, middle", 2, 2),
    ("model, middle", 1, 4),
    ("model, middle", 4, 8),
    ("lookup, middle", 1, 3),
    ("lookup, middle", 3, 2),
    ("lookup, middle", 4, 6),
    ("model, lower, middle", 2, 2),
    ("model, lower, middle", 3, 5),
]


TRUNCATED = [  # the same with a nucleus, where every law has zeros
    ("ar", 1, 1),
    ("lookup", 1, 3),
    ("draft", 1, 2),
    ("smaller vocabulary", 1, 1),
    ("retrieval", 1, 2),
    ("model, middle", 2, 2),
    ("lookup, middle", 2, 4),
    ("model, lower, middle", 1, 1),
]


def sequences_p_value(composition: str, gamma1: int, gamma2: int, sampling: str, num_sequences: int) -> float:
    drafter, runner, draw = COMPOSITIONS[composition](gamma1), target(), sampler(sampling)
    counts = count_sequences(PREFIX, LENGTH, num_sequences, runner, drafter, gamma2, draw)
    return p_value(counts, enumerate_law(runner, PREFIX, LENGTH, draw))


@pytest.mark.parametrize(("composition", "gamma1", "gamma2"), CASES)
def test_sequences_follow_the_targets_law(composition: str, gamma1: int, gamma2: int) -> None:
    num_sequences = COUNT if gamma2 < 5 else COUNT // 2
    assert sequences_p_value(composition, gamma1, gamma2, "T=1", num_sequences) > THRESHOLD


@pytest.mark.parametrize(("composition", "gamma1", "gamma2"), TRUNCATED)
def test_sequences_follow_a_truncated_law(composition: str, gamma1: int, gamma2: int) -> None:
    assert sequences_p_value(composition, gamma1, gamma2, "T=0.6 p=0.9", COUNT // 2) > THRESHOLD


@pytest.mark.parametrize(("composition", "gamma1", "gamma2"), CASES)
def test_greedy_sequences_are_the_targets_own(composition: str, gamma1: int, gamma2: int) -> None:
    drafter, runner, draw = COMPOSITIONS[composition](gamma1), target(), sampler("T=0")
    expected = PREFIX
    for _ in range(40):
        expected = extend(expected, [int(runner.logits(expected, 1).argmax())])
    tokens = PREFIX
    while len(tokens) < len(expected):
        tokens = extend(tokens, step(tokens, runner, drafter, gamma2, draw).tokens)
    assert tokens[: len(expected)].tolist() == expected.tolist()


@pytest.mark.parametrize("sampling", ["T=1", "T=0.6 p=0.9", "T=0"])
@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_each_emitted_token_carries_its_verifiers_law(composition: str, sampling: str) -> None:
    drafter, runner, draw = COMPOSITIONS[composition](2), target(), sampler(sampling)
    tokens = PREFIX
    for _ in range(30):
        verdict = step(tokens, runner, drafter, 4, draw)
        tokens = extend(tokens, verdict.tokens)
        rows = draw.laws(runner.logits(tokens[:-1], len(verdict.tokens)), tokens[:-1])
        assert torch.equal(verdict.laws, rows)
        assert len(verdict.levels) == len(verdict.tokens) == verdict.num_accepted + 1
        assert verdict.levels[-1] == "target"


@pytest.mark.parametrize("composition", COMPOSITIONS)
def test_statistics_count_every_drafted_and_accepted_token(composition: str) -> None:
    drafter, runner, draw = COMPOSITIONS[composition](2), target(), sampler("T=1")
    tokens, steps = PREFIX, 0
    while len(tokens) < 200:
        tokens = extend(tokens, step(tokens, runner, drafter, 4, draw).tokens)
        steps += 1
    stats = drafter.stats
    assert runner.stats.passes == steps
    assert stats.accepted == len(tokens) - len(PREFIX) - steps
    assert stats.accepted <= stats.drafted
    if composition == "ar":
        assert stats.drafted == 0
    else:
        assert 0 < stats.accepted < stats.drafted, "the case neither accepts nor rejects: it tests nothing"


def test_the_same_seed_gives_the_same_sequence_and_another_seed_another() -> None:
    def run(seed_offset: int) -> list[int]:
        drafter, runner, draw = COMPOSITIONS["model, middle"](2), target(), sampler("T=1")
        draw.uniforms(seed_offset)
        tokens = PREFIX
        while len(tokens) < 100:
            tokens = extend(tokens, step(tokens, runner, drafter, 4, draw).tokens)
        return tokens[:100].tolist()

    assert run(0) == run(0)
    assert run(0) != run(1)


def test_a_depth_of_zero_is_plain_decoding() -> None:
    for composition in COMPOSITIONS.values():
        verdict = step(PREFIX, target(), composition(2), 0, sampler("T=1"))
        assert len(verdict.tokens) == 1
        assert np.isclose(float(verdict.laws.sum()), 1.0)
