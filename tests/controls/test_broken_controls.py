"""The tests of controls have teeth: each fault planted here fails the test that is there to see it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from compositions import COMPOSITIONS, target
from controlled import (
    PREFIX,
    SETTINGS,
    assert_same_controls_at_every_level,
    enumerate_controlled_law,
    params_of,
    sampler_of,
)
from tables import count_sequences, p_value
from torch import Tensor

from triforce.controls.base import Control
from triforce.controls.counts import TokenCounts
from triforce.controls.guidance import GuidanceMatcher
from triforce.sampling import Sampler
from triforce.speculative import Draft, Drafter
from triforce.tokens import TokenIds

LENGTH = 3
BELOW = 1e-6


def p_value_of(setting: str, drafter: Drafter, draw: Sampler, num_sequences: int = 250) -> float:
    counts = count_sequences(PREFIX, LENGTH, num_sequences, target(), drafter, 2, draw)
    return p_value(counts, enumerate_controlled_law(target(), LENGTH, params_of(setting)))


def three_levels() -> Drafter:
    return COMPOSITIONS["model, middle"](2)


class Stale:
    """The control, with the first row's history for every row of a pass: drafted tokens are not seen."""

    def __init__(self, control: Control) -> None:
        self.name = control.name
        self._control = control

    def apply(self, logits: Tensor, tokens: TokenIds) -> None:
        committed = tokens[: len(tokens) - len(logits) + 1]
        for i in range(len(logits)):
            self._control.apply(logits[i : i + 1], committed)


class Uncontrolled:
    """A drafter that is drawn from without any control."""

    def __init__(self, setting: str, drafter: Drafter) -> None:
        self.stats = drafter.stats
        self._drafter = drafter
        self._draw = Sampler(params_of(setting, seed=99))

    def propose(self, tokens: TokenIds, depth: int, sampler: Sampler) -> Draft | None:
        del sampler
        return self._drafter.propose(tokens, depth, self._draw)


def stale(setting: str) -> Sampler:
    draw = sampler_of(params_of(setting))
    draw.controls = [Stale(control) for control in draw.controls]
    return draw


@pytest.mark.parametrize("setting", ["no_repeat_ngram_size", "processors", "regex"])
def test_a_history_without_the_drafted_tokens_fails(setting: str) -> None:
    assert p_value_of(setting, three_levels(), stale(setting)) < BELOW


@pytest.mark.parametrize("setting", [setting for setting in SETTINGS if setting not in ("logit_bias", "typical_p")])
def test_a_history_without_the_drafted_tokens_is_seen_in_the_laws(setting: str) -> None:
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        assert_same_controls_at_every_level(params_of(setting), three_levels(), stale(setting))


def test_controls_left_out_at_the_middle_level_are_exact_but_seen_and_cost_acceptance() -> None:
    setting = "regex"
    params = params_of(setting)
    with_controls, without = three_levels(), Uncontrolled(setting, three_levels())
    assert p_value_of(setting, with_controls, sampler_of(params)) > 1e-4
    assert p_value_of(setting, without, sampler_of(params)) > 1e-4
    ours, theirs = with_controls.stats, without.stats
    assert ours.accepted / ours.drafted > theirs.accepted / theirs.drafted
    assert_same_controls_at_every_level(params, three_levels())
    with pytest.raises(AssertionError):
        assert_same_controls_at_every_level(params, without)


def test_a_grammar_that_is_not_rolled_back_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def stay(self: GuidanceMatcher, num_tokens: int) -> None:
        del self, num_tokens

    monkeypatch.setattr(GuidanceMatcher, "rollback", stay)
    assert p_value_of("regex", three_levels(), sampler_of(params_of("regex"))) < BELOW


def test_counts_that_keep_rejected_tokens_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(self: Any, history: TokenIds) -> None:
        kept = self._log.common_prefix(history)
        self._log.truncate(kept)  # and the counts stay
        self._add(history[kept:])

    monkeypatch.setattr(TokenCounts, "_follow", forgetful)
    setting = "frequency_penalty"
    assert p_value_of(setting, three_levels(), sampler_of(params_of(setting)), 400) < BELOW


def test_a_row_too_few_in_the_history_fails() -> None:
    class Late(Stale):
        def apply(self, logits: Tensor, tokens: TokenIds) -> None:
            self._control.apply(logits, np.roll(tokens, 1))

    draw = sampler_of(params_of("bad_words"))
    draw.controls = [Late(control) for control in draw.controls]
    assert p_value_of("bad_words", three_levels(), draw) < BELOW
