"""The law's tests have teeth: rules with the published defects, and with near misses, fail the same χ² test.

Each is the real code with one thing replaced. Defects are numbered as in the checks of the authors' published code.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compositions import PREFIX, VOCAB
from tables import TableRunner, count, enumerate_law, p_value, random_table

import triforce.drafters.cascade as cascade
import triforce.speculative as speculative
from triforce.config import SamplingParams
from triforce.drafters.cascade import Cascade
from triforce.drafters.model import ModelDrafter
from triforce.sampling import Sampler
from triforce.speculative import Draft, Drafter, Runner, Verdict, step, verify
from triforce.tokens import TokenIds

NUM_SEQUENCES = 1000
LENGTH = 3
BELOW = 1e-6

Verify = Callable[[Draft | None, torch.Tensor, str, Sampler], Verdict]


def broken_p_value(
    monkeypatch: pytest.MonkeyPatch,
    drafter: Drafter,
    depth: int,
    outer: Verify = verify,
    inner: Verify = verify,
    reuse: bool = False,
    num_sequences: int = NUM_SEQUENCES,
) -> float:
    """χ² of the real `step` whose rule is `outer` for the target and `inner` for the level below."""
    runner = TableRunner("target", random_table(VOCAB, 1))
    draw = Sampler(SamplingParams(temperature=1.0, seed=5))

    def verify_by_level(draft: Draft | None, laws: torch.Tensor, level: str, sampler: Sampler) -> Verdict:
        return (outer if level == "target" else inner)(draft, laws, level, sampler)

    monkeypatch.setattr(speculative, "verify", verify_by_level)

    def advance(tokens: TokenIds) -> list[int]:
        if len(tokens) == len(PREFIX):
            advance.start = draw._generator.get_state()  # type: ignore[attr-defined]
        elif reuse:
            draw._generator.set_state(advance.start)  # type: ignore[attr-defined]
        return step(tokens, runner, drafter, depth, draw).tokens

    counts = count(PREFIX, LENGTH, num_sequences, advance)
    return p_value(counts, enumerate_law(runner, PREFIX, LENGTH, draw))


def one_level() -> Drafter:
    return ModelDrafter(TableRunner("draft", random_table(VOCAB, 3)), VOCAB)


def two_levels(nearness: float = 0.0) -> Drafter:
    """`nearness` 1 would make the drafter agree with the middle level, so that it takes every bonus."""
    middle, own = random_table(VOCAB, 2), random_table(VOCAB, 3)
    near = ModelDrafter(TableRunner("draft", nearness * middle + (1 - nearness) * own), VOCAB)
    return Cascade(TableRunner("sparse", middle), near, 1)


def corrects_from_the_whole_law(draft: Draft | None, laws: torch.Tensor, level: str, sampler: Sampler) -> Verdict:
    """Defect 1: after a rejection it draws from the verifier's law and not from the residual."""
    verdict = verify(draft, laws, level, sampler)
    k = verdict.num_accepted
    if draft is None or k == len(draft.tokens):
        return verdict
    return Verdict([*verdict.tokens[:k], sampler.draw(laws[k])], verdict.laws, verdict.levels, k)


def corrects_from_both_sides(draft: Draft | None, laws: torch.Tensor, level: str, sampler: Sampler) -> Verdict:
    """The residual without its max(0, ...)."""
    verdict = verify(draft, laws, level, sampler)
    k = verdict.num_accepted
    if draft is None or k == len(draft.tokens):
        return verdict
    return Verdict(
        [*verdict.tokens[:k], sampler.draw((laws[k] - draft.laws[k]).abs())], verdict.laws, verdict.levels, k
    )


def takes_its_bonus_one_row_early(draft: Draft | None, laws: torch.Tensor, level: str, sampler: Sampler) -> Verdict:
    verdict = verify(draft, laws, level, sampler)
    k = verdict.num_accepted
    if draft is None or k < len(draft.tokens):
        return verdict
    return Verdict([*verdict.tokens[:k], sampler.draw(laws[k - 1])], verdict.laws, verdict.levels, k)


def accepts_twice_as_often(draft: Draft | None, laws: torch.Tensor, level: str, sampler: Sampler) -> Verdict:
    if draft is None:
        return verify(draft, laws, level, sampler)
    return verify(Draft(draft.tokens, draft.laws / 2, draft.levels), laws, level, sampler)


def reports_the_drafters_law(draft: Draft | None, laws: torch.Tensor, level: str, sampler: Sampler) -> Verdict:
    """Accepted tokens pass for drawn from the law of the level below."""
    verdict = verify(draft, laws, level, sampler)
    k = verdict.num_accepted
    if draft is None:
        return verdict
    return Verdict(verdict.tokens, torch.cat((draft.laws[:k], verdict.laws[k:])), verdict.levels, k)


def test_the_rule_itself_passes_with_one_level_and_with_two(monkeypatch: pytest.MonkeyPatch) -> None:
    assert broken_p_value(monkeypatch, one_level(), 2) > 1e-4
    assert broken_p_value(monkeypatch, two_levels(), 2) > 1e-4


@pytest.mark.parametrize(
    "rule",
    [
        corrects_from_the_whole_law,
        corrects_from_both_sides,
        takes_its_bonus_one_row_early,
        accepts_twice_as_often,
    ],
)
def test_a_broken_rule_at_the_target_fails(monkeypatch: pytest.MonkeyPatch, rule: Verify) -> None:
    assert broken_p_value(monkeypatch, one_level(), 2, outer=rule) < BELOW


@pytest.mark.parametrize(
    ("rule", "nearness"),
    [
        (corrects_from_the_whole_law, 0.0),  # defect 1 as published: the outer test still believes what it was told
        (corrects_from_both_sides, 0.0),
        (takes_its_bonus_one_row_early, 0.5),
        (accepts_twice_as_often, 0.0),
        (reports_the_drafters_law, 0.5),
    ],
)
def test_a_broken_rule_below_the_target_fails(monkeypatch: pytest.MonkeyPatch, rule: Verify, nearness: float) -> None:
    assert broken_p_value(monkeypatch, two_levels(nearness), 6, inner=rule) < BELOW


def test_random_numbers_reused_at_every_step_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 2, for chains: the same uniforms and draws at each step of a sequence."""
    assert broken_p_value(monkeypatch, one_level(), 1, reuse=True) < BELOW
    assert broken_p_value(monkeypatch, two_levels(), 1, reuse=True) < BELOW


def test_a_drafter_that_peeks_at_the_verifier_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether to propose must not depend on what the verifier thinks of the very token proposed."""

    class Peeking:
        def __init__(self, runner: Runner) -> None:
            self._honest = one_level()
            self._runner = runner
            self.stats = self._honest.stats

        def propose(self, tokens: TokenIds, depth: int, sampler: Sampler) -> Draft | None:
            draft = self._honest.propose(tokens, depth, sampler)
            assert draft is not None
            law = sampler.laws(self._runner.logits(tokens, 1), tokens)[0]
            return draft if law[draft.tokens[0]] > draft.laws[0, draft.tokens[0]] else None

    peeking = Peeking(TableRunner("target", random_table(VOCAB, 1)))
    assert broken_p_value(monkeypatch, peeking, 1, num_sequences=2000) < BELOW


def test_the_cascade_is_broken_through_the_same_function() -> None:
    assert cascade.step is speculative.step, "the rules above are planted in `speculative` and must reach the cascade"
