"""Which drafter, and how deep: what gives most tokens per second by costs and acceptance measured so far, nothing below
break-even. A cost model with measured numbers in place of a table (as in Sequoia, arXiv 2402.12374, section 3.2).

Exact whatever it chooses: a choice depends on committed tokens and on the clock, never on a token not yet verified. It
is told nothing: how much of its last draft was accepted shows in the tokens that followed.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from triforce.sampling import Sampler
from triforce.speculative import Draft, Drafter
from triforce.statistics import LevelStats
from triforce.tokens import TokenIds

_FADING = 0.95  # of what a pass tells, per later pass
_LEAST_SPREAD = 1e-6  # of sizes, relative, that a slope is taken from
_DRAFTS = 9  # drafts whose median cost counts
_DECAY = 0.9  # of acceptance counts, per draft
_PRIOR = 4.0  # weight of the expected acceptance, in tokens
_FIRST_DEPTH = 3  # of a drafter that was never tried
_LONGEST_WAIT = 128  # steps until a drafter that does not pay is tried again


class Verifier:
    """Seconds of a verifying pass of n rows, as a + b n: least squares of relative errors; recent passes weigh more.

    Relative, because a shared machine is slow for a while and passes of one size may all have been seen then: what
    took long should not outweigh what is known of the rest.
    """

    def __init__(self, stats: LevelStats) -> None:
        self._stats = stats
        self._seen = stats.passes, stats.seconds
        self._sums = np.zeros(5)  # of xx, xy, yy, x, y, weighted by age, for x = 1 / seconds and y = n / seconds
        self.saw_plain = False  # a pass of one row
        self._fit: tuple[float, float] | None = None

    def observe(self, rows: int) -> None:
        """What has been spent since the last call was one pass of `rows`, unless there were none or several."""
        passes, seconds = self._stats.passes - self._seen[0], self._stats.seconds - self._seen[1]
        self._seen = self._stats.passes, self._stats.seconds
        if passes == 1 and seconds > 0:
            x, y = 1 / seconds, rows / seconds
            self._sums = self._sums * _FADING + (x * x, x * y, y * y, x, y)
            self.saw_plain |= rows == 1
            self._update()

    def _update(self) -> None:
        xx, xy, yy, x, y = self._sums.tolist()
        spread = xx * yy - xy * xy
        if spread <= _LEAST_SPREAD * xx * yy:  # all of one size, as far as is remembered
            return
        a, b = (yy * x - xy * y) / spread, (xx * y - xy * x) / spread
        self._fit = (x / xx, 0.0) if b < 0 else (0.0, y / yy) if a < 0 else (a, b)

    @property
    def is_known(self) -> bool:
        """Whether passes of two sizes were seen, one row among them."""
        return self.saw_plain and self._fit is not None

    def fit(self) -> tuple[float, float]:
        """(a, b), both at least 0; only where it `is_known`."""
        assert self._fit is not None
        return self._fit


@dataclass
class Option:
    """One drafter, the most tokens to ask of it, the shortest sequence where it can pay, the acceptance expected of it,
    and what was learned of it."""

    drafter: Drafter
    most: int
    least_length: int = 0
    expected: float = 0.8
    accepted: float = field(init=False)
    tested: float = field(init=False, default=_PRIOR)
    costs: deque[float] = field(init=False, default_factory=lambda: deque(maxlen=_DRAFTS))  # seconds per drafted token
    idle: int = field(init=False, default=0)  # steps since it was tried, of those where it was not expected to pay
    wait: int = field(init=False, default=1)  # such steps until it is tried again

    def __post_init__(self) -> None:
        self.accepted = self.expected * self.tested

    def spend(self, seconds: float, tokens: int) -> None:
        """Count a draft's cost; the next try of what is not expected to pay comes after twice the wait."""
        self.costs.append(seconds / tokens)
        if self.idle:
            self.idle, self.wait = 0, min(2 * self.wait, _LONGEST_WAIT)

    def observe(self, drafted: int, accepted: int) -> None:
        """Count an outcome; tokens after the first rejected one were not tested."""
        self.accepted = self.accepted * _DECAY + accepted
        self.tested = self.tested * _DECAY + min(accepted + 1, drafted)

    @property
    def cost(self) -> float:
        """Seconds per drafted token; only once it was tried."""
        return statistics.median(self.costs)

    def best(self, a: float, b: float, most: int) -> tuple[float, int]:
        """The highest tokens per second, and the depth that gives it, by a verifier that costs a + b n."""
        alpha, cost = min(self.accepted / self.tested, 0.999), self.cost
        rates = [
            ((1 - alpha ** (depth + 1)) / (1 - alpha) / (depth * cost + a + b * (depth + 1)), depth)
            for depth in range(1, most + 1)
        ]
        return max(rates, default=(0.0, 0))


class Adaptive:
    """Chooses among `options`; `verifier`: the books of what verifies."""

    def __init__(self, verifier: LevelStats, options: Sequence[Option]) -> None:
        self._verifier = Verifier(verifier)
        self._options = list(options)
        self._chosen = self._options[-1]
        self._length = 0  # of the sequence that the last draft followed
        self._drafted: list[int] = []

    @property
    def stats(self) -> LevelStats:
        """Those of the drafter chosen last."""
        return self._chosen.drafter.stats

    def propose(self, tokens: TokenIds, depth: int, sampler: Sampler) -> Draft | None:
        self._learn(tokens)
        draft = None
        for option, wanted in self._plan(len(tokens), depth) if depth else []:
            start = time.perf_counter()
            draft = option.drafter.propose(tokens, wanted, sampler)
            if draft:
                option.spend(time.perf_counter() - start, len(draft.tokens))
                self._chosen = option
                break
        self._length, self._drafted = len(tokens), draft.tokens if draft else []
        return draft

    def _learn(self, tokens: TokenIds) -> None:
        """What became of the last draft. A sequence that was cut back or left alone tells nothing."""
        followed = tokens[self._length :].tolist()
        drafted = self._drafted[: len(followed)]
        if followed:
            self._verifier.observe(len(self._drafted) + 1)
        if drafted and len(followed) <= len(self._drafted) + 1:
            accepted = next((i for i, token in enumerate(drafted) if followed[i] != token), len(drafted))
            self._chosen.observe(len(drafted), accepted)

    def _plan(self, length: int, depth: int) -> list[tuple[Option, int]]:
        """Drafters to ask, in order, and how many tokens of each; the first one with an answer is taken."""
        options = [option for option in self._options if length >= option.least_length]
        plan = [(math.inf, option, min(depth, _FIRST_DEPTH)) for option in options if not option.costs]
        tried = [option for option in options if option.costs]
        if self._verifier.is_known:
            a, b = self._verifier.fit()
            plain = 1 / (a + b)
            for option in tried:
                rate, wanted = option.best(a, b, min(depth, option.most))
                if rate > plain:
                    option.idle, option.wait = 0, 1
                    plan.append((rate, option, wanted))
                    continue
                option.idle += 1  # until it has an answer: a try that meets no match is none
                if option.idle >= option.wait:  # cheap drafts also tell again what deep passes cost: two rows may not
                    plan.append((plain, option, min(depth, _FIRST_DEPTH if option.cost < b else 1)))
        elif self._verifier.saw_plain:  # what a draft adds was not seen so far
            plan += [(0.0, option, min(depth, _FIRST_DEPTH)) for option in tried]
        plan.sort(key=lambda entry: -entry[0])
        return [(option, wanted) for _, option, wanted in plan]
