"""With controls on, at every level, whole sequences follow the law that slow plain rules enumerate: χ², fixed seeds."""

from __future__ import annotations

import pytest
from compositions import COMPOSITIONS, VOCAB, target
from controlled import (
    PREFIX,
    SETTINGS,
    assert_same_controls_at_every_level,
    enumerate_controlled_law,
    law_after,
    params_of,
    sampler_of,
)
from tables import count_sequences, p_value

from triforce.controls import grammar_of
from triforce.drafters.forced import Forced
from triforce.speculative import Drafter, step
from triforce.statistics import LevelStats
from triforce.tokens import extend

THRESHOLD = 1e-4
LENGTH = 3
STACKED = ["lookup", "draft", "retrieval", "model, middle"]


def sequences_p_value(setting: str, drafter: Drafter, num_sequences: int) -> float:
    params, runner = params_of(setting), target()
    counts = count_sequences(PREFIX, LENGTH, num_sequences, runner, drafter, 2, sampler_of(params))
    return p_value(counts, enumerate_controlled_law(runner, LENGTH, params))


@pytest.mark.parametrize("setting", [setting for setting in SETTINGS if setting != "all"])
def test_three_levels_follow_the_controlled_law(setting: str) -> None:
    assert sequences_p_value(setting, COMPOSITIONS["model, middle"](1), 150) > THRESHOLD


@pytest.mark.parametrize("composition", [*STACKED, "model, lower, middle"])
def test_every_composition_follows_the_law_of_all_controls_together(composition: str) -> None:
    assert sequences_p_value("all", COMPOSITIONS[composition](2), 100) > THRESHOLD


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("composition", STACKED)
def test_greedy_sequences_are_those_of_the_slow_plain_rules(composition: str, setting: str) -> None:
    params, runner = params_of(setting, temperature=0.0), target()
    drafter, draw = COMPOSITIONS[composition](2), sampler_of(params)
    expected = PREFIX.tolist()
    while len(expected) < len(PREFIX) + 16:
        law = law_after(params, runner.logits(extend(PREFIX[:0], expected), 1)[0], expected)
        if law.sum() == 0:
            break
        expected.append(int(law.argmax()))
    tokens = PREFIX
    while len(tokens) < len(expected):
        tokens = extend(tokens, step(tokens, runner, drafter, 4, draw).tokens)
    assert tokens[: len(expected)].tolist() == expected
    assert len(set(expected[len(PREFIX) :])) > 1, "the case says one thing only: it tests nothing"


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("composition", STACKED)
def test_the_same_controls_apply_at_every_level(composition: str, setting: str) -> None:
    assert_same_controls_at_every_level(params_of(setting), COMPOSITIONS[composition](2))


@pytest.mark.parametrize("composition", ["lookup", "model, middle"])
def test_forced_tokens_drafted_first_leave_the_law_as_it_is(composition: str) -> None:
    params, runner = params_of("regex"), target()
    draw = sampler_of(params)
    grammar = grammar_of(draw.controls)
    assert grammar is not None
    own = LevelStats("grammar")
    drafter = Forced(grammar, COMPOSITIONS[composition](2), VOCAB, own)
    counts = count_sequences(PREFIX, 5, 120, runner, drafter, 4, draw)
    assert own.drafted > 0
    assert p_value(counts, enumerate_controlled_law(runner, 5, params)) > THRESHOLD
