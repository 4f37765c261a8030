"""Depth by measured costs and acceptance: what pays is done, what does not is left, and the law never changes."""

from __future__ import annotations

import itertools

import pytest
import torch
from compositions import PREFIX, SAMPLINGS, VOCAB, lookup, middle, small, target
from tables import TableRunner, count_sequences, enumerate_law, p_value
from torch import Tensor

from triforce.config import SamplingParams
from triforce.drafters import adaptive
from triforce.drafters.adaptive import Adaptive, Option, Verifier
from triforce.drafters.cascade import Cascade
from triforce.drafters.lookup import LongMatches
from triforce.drafters.none import NoDrafter
from triforce.sampling import Sampler, one_hot
from triforce.speculative import Draft, step
from triforce.statistics import LevelStats
from triforce.tokens import TokenIds, extend


class Clock:
    """Time that passes only when somebody spends it."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(adaptive, "time", clock)
    return clock


class Counting:
    """A target that always says the next number, at a price of a + b n for n rows."""

    def __init__(self, a: float, b: float) -> None:
        self.stats = LevelStats("target")
        self._a, self._b = a, b
        self.extra = 0.0  # of passes of more than one row
        self.rows: list[int] = []

    def logits(self, tokens: TokenIds, num_rows: int) -> Tensor:
        self.rows.append(num_rows)
        self.stats.passes += 1
        self.stats.seconds += self._a + self._b * num_rows + self.extra * (num_rows > 1)
        return one_hot((torch.from_numpy(tokens[-num_rows:]).long() + 1) % 50, 50)


class Guessing:
    """Says the next numbers, wrong at every `wrong`th, at a price for each."""

    def __init__(self, clock: Clock, price: float, wrong: int = 10**9, name: str = "guess") -> None:
        self.stats = LevelStats(name)
        self.price, self.wrong = price, wrong
        self._clock = clock
        self.asked: list[int] = []
        self.answered: list[int] = []
        self.every = 1  # of how many positions it says anything at one

    def propose(self, tokens: TokenIds, depth: int, sampler: Sampler) -> Draft | None:
        del sampler
        self.asked.append(depth)
        if len(tokens) % self.every:
            return None
        self.answered.append(depth)
        self._clock.now += self.price * depth
        right = [(int(tokens[-1]) + 1 + i) % 50 for i in range(depth)]
        said = [0 if (len(tokens) + i) % self.wrong == 0 else token for i, token in enumerate(right)]
        return Draft(said, one_hot(torch.tensor(said), 50), ["guess"] * depth) if depth else None


def run(target: Counting, drafter: Adaptive, steps: int) -> int:
    """Tokens emitted in so many steps."""
    tokens, sampler = PREFIX, Sampler(SamplingParams())
    for _ in range(steps):
        tokens = extend(tokens, step(tokens, target, drafter, 64, sampler).tokens)
    return len(tokens) - len(PREFIX)


def test_a_cheap_and_right_drafter_is_asked_for_all_it_may_give(clock: Clock) -> None:
    guess = Guessing(clock, 0.1)
    target = Counting(10.0, 0.01)
    run(target, Adaptive(target.stats, [Option(guess, 12)]), 30)
    assert guess.asked[-5:] == [12] * 5


def test_rows_that_cost_as_much_as_tokens_make_drafts_short_or_none(clock: Clock) -> None:
    dear = Guessing(clock, 5.0, wrong=3)
    target = Counting(1.0, 2.0)
    run(target, Adaptive(target.stats, [Option(dear, 12)]), 60)
    assert target.rows[-20:].count(1) >= 18, "below break-even decoding is plain"


def test_a_drafter_that_does_not_pay_is_tried_again_ever_more_rarely(clock: Clock) -> None:
    dear = Guessing(clock, 50.0)
    target = Counting(1.0, 1.0)
    run(target, Adaptive(target.stats, [Option(dear, 12)]), 300)
    first, second = sum(rows > 1 for rows in target.rows[:100]), sum(rows > 1 for rows in target.rows[200:])
    assert 0 < second < first < 12


def test_a_drafter_that_becomes_right_is_found_again(clock: Clock) -> None:
    guess = Guessing(clock, 0.1, wrong=1)
    target = Counting(10.0, 0.5)
    drafter = Adaptive(target.stats, [Option(guess, 12)])
    tokens, sampler = PREFIX, Sampler(SamplingParams())
    for i in itertools.count():
        if i == 60:
            guess.wrong = 10**9
        tokens = extend(tokens, step(tokens, target, drafter, 64, sampler).tokens)
        if i > 60 and guess.asked[-1] > 6:
            break
        assert i < 300


@pytest.mark.parametrize("extra", [0.2, 0.4, 0.6])
def test_passes_of_several_rows_that_begin_dear_do_not_end_drafting(clock: Clock, extra: float) -> None:
    guess, target = Guessing(clock, 0.001, wrong=1), Counting(0.95, 0.05)
    target.extra = extra
    drafter = Adaptive(target.stats, [Option(guess, 12)])
    run(target, drafter, 300)
    guess.wrong = 10**9
    run(target, drafter, 400)
    assert target.rows[-10:] == [13] * 10


def test_of_two_drafters_the_one_that_pays_more_is_taken(clock: Clock) -> None:
    sloppy, careful = Guessing(clock, 0.1, wrong=2), Guessing(clock, 1.0)
    target = Counting(10.0, 0.1)
    drafter = Adaptive(target.stats, [Option(sloppy, 12), Option(careful, 12)])
    run(target, drafter, 60)
    assert drafter.stats is careful.stats
    assert careful.stats.drafted > 5 * sloppy.stats.drafted


def test_a_drafter_that_cannot_pay_before_some_length_is_not_tried_before_it(clock: Clock) -> None:
    guess = Guessing(clock, 0.1)
    target = Counting(10.0, 0.01)
    run(target, Adaptive(target.stats, [Option(guess, 12, least_length=len(PREFIX) + 20)]), 20)
    assert (target.rows, guess.asked) == ([1] * 20, [])
    run(target, Adaptive(target.stats, [Option(guess, 12, least_length=len(PREFIX) + 20)]), 40)
    assert guess.asked[-1] == 12


def test_the_cost_of_a_pass_is_fitted_to_what_was_seen() -> None:
    stats = LevelStats("target")
    verifier = Verifier(stats)
    for rows in (1, 4, 7, 4):
        stats.passes += 1
        stats.seconds += 3.0 + 0.5 * rows
        verifier.observe(rows)
    assert verifier.is_known
    assert verifier.fit() == pytest.approx((3.0, 0.5))
    stats.passes += 2  # two passes at once say nothing of either
    stats.seconds += 100.0
    verifier.observe(3)
    assert verifier.fit() == pytest.approx((3.0, 0.5))


def test_the_fit_follows_a_machine_that_becomes_slower() -> None:
    stats = LevelStats("target")
    verifier = Verifier(stats)
    for i in range(300):
        rows = 1 + i % 4
        stats.passes += 1
        stats.seconds += (3.0 + 0.5 * rows) * (1 if i < 150 else 2)
        verifier.observe(rows)
    assert verifier.fit() == pytest.approx((6.0, 1.0), rel=0.01)


def test_passes_of_one_size_alone_leave_what_was_known() -> None:
    stats = LevelStats("target")
    verifier = Verifier(stats)
    for rows in (1, 5, *[1] * 2000):
        stats.passes += 1
        stats.seconds += 3.0 + 0.5 * rows
        verifier.observe(rows)
        if rows == 5:
            assert verifier.is_known
    assert verifier.fit() == pytest.approx((3.0, 0.5))


# Rows and milliseconds of verifying passes: a slow moment, in which all the largest were, and what followed it.
SLOW_MOMENT = [(4, 54.8), (1, 26.9), (6, 76.6), (9, 115.5), (11, 134.6), (14, 178.0), (15, 190.6)]
AFTER = [(1, 26.7), (1, 26.3), (1, 24.5), (1, 19.4), (7, 56.8), (3, 32.1), (2, 25.2), (1, 19.9), (2, 25.2), (1, 19.5)]


def test_large_passes_seen_while_the_machine_was_slow_do_not_end_drafting() -> None:
    stats = LevelStats("target")
    verifier = Verifier(stats)
    for rows, milliseconds in SLOW_MOMENT + AFTER:
        stats.passes += 1
        stats.seconds += milliseconds / 1000
        verifier.observe(rows)
    a, b = verifier.fit()
    assert 0.017 < a + b < 0.023
    option = Option(NoDrafter(), 15, expected=0.93)
    option.costs.append(0.0)
    rate, depth = option.best(a, b, 15)
    assert rate > 1.2 / (a + b), "drafting pays, by what passes of one, two and three rows took"
    assert depth > 1


def test_the_more_is_expected_of_a_drafter_the_deeper_it_goes_at_first(clock: Clock) -> None:
    second = []
    for expected in (0.6, 0.8, 0.95):
        guess, target = Guessing(clock, 0.1), Counting(10.0, 1.0)
        run(target, Adaptive(target.stats, [Option(guess, 12, expected=expected)]), 3)
        assert (guess.asked[0], target.rows[1]) == (3, 1)
        second.append(guess.asked[1])
    assert second[0] < second[1] < second[2]


def test_the_wait_of_a_try_that_meets_no_match_is_not_doubled(clock: Clock) -> None:
    rare, target = Guessing(clock, 0.1, wrong=1), Counting(1.0, 5.0)
    rare.every = 10
    run(target, Adaptive(target.stats, [Option(rare, 12)]), 300)
    assert len(rare.answered) == 8, "at the matches 0, 1, 2, 3, 4, 6, 10, 17 of 30"


def test_a_draft_whose_pass_was_not_seen_is_made_again(clock: Clock) -> None:
    guess = Guessing(clock, 0.1)
    target = Counting(10.0, 1.0)
    drafter = Adaptive(target.stats, [Option(guess, 12)])
    tokens, sampler = PREFIX, Sampler(SamplingParams())
    for i in range(12):
        if i in (1, 2):  # somebody else's pass
            target.stats.passes += 1
        tokens = extend(tokens, step(tokens, target, drafter, 64, sampler).tokens)
    assert target.rows[-1] == 13


class Priced(TableRunner):
    """A table whose passes cost time, more for some than for others."""

    def logits(self, tokens: TokenIds, num_rows: int) -> Tensor:
        self.stats.seconds += 1.0 + 0.1 * num_rows + 0.05 * (self.stats.passes % 7)
        return super().logits(tokens, num_rows)


@pytest.mark.parametrize("sampling", ["T=1", "T=0.6 p=0.9"])
@pytest.mark.parametrize("inner", ["none", "small"])
def test_whatever_is_chosen_the_output_follows_the_targets_law(sampling: str, inner: str) -> None:
    runner = Priced("target", target().table)
    cheap = Priced("sparse", middle().table)
    drafter = Cascade(cheap, small() if inner == "small" else NoDrafter(), 2)
    copied = lookup()
    options = [Option(LongMatches(copied, 2), 4), Option(copied, 3), Option(drafter, 4)]
    paced = Adaptive(runner.stats, options)
    draw = Sampler(SAMPLINGS[sampling])
    counts = count_sequences(PREFIX, 3, 1500, runner, paced, 64, draw)
    assert p_value(counts, enumerate_law(runner, PREFIX, 3, draw)) > 1e-4
    assert drafter.stats.drafted > 100
    assert VOCAB == 5
