"""The bound that `benchmarks/bound.py` states is that of its definition."""

from __future__ import annotations

import numpy as np
import pytest
from bound import copied, gain


def test_a_copy_goes_on_until_its_first_wrong_token() -> None:
    tokens = np.array([1, 2, 3, 4, 5, 7, 1, 2, 3, 4, 5, 6])
    assert copied(tokens, 9, 31) == [2, 1, 0]


def test_the_occurrence_that_serves_best_is_copied() -> None:
    tokens = np.array([1, 2, 3, 4, 5, 1, 2, 3, 9, 1, 2, 3, 4, 5])
    assert copied(tokens, 12, 31) == [2, 1]


def test_a_text_that_repeats_itself_is_copied_to_its_end_or_as_deep_as_allowed() -> None:
    assert copied(np.array([1, 2, 3] * 4), 6, 4) == [4, 4, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("costs", "right", "expected"),
    [
        ({1: 2.0, 2: 3.0, 3: 4.0}, [2, 1, 0], 1.5),  # two copied, one more from the same pass
        ({1: 2.0, 2: 10.0, 3: 11.0}, [2, 1, 0], 1.0),  # a deep pass that does not pay is not made
        ({1: 2.0, 2: 2.5, 3: 9.0}, [2, 2, 0, 0], 8 / 6.5),  # one copied twice costs less than two at once
    ],
)
def test_the_gain_is_that_of_the_cheapest_passes(costs: dict[int, float], right: list[int], expected: float) -> None:
    assert gain(costs, right) == pytest.approx(expected)
