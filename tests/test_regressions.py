"""Mistakes that were made once: each has its test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tiny_engine import tiny_engine

from triforce.config import Decoding, SamplingParams
from triforce.errors import UsageError

SPARSE = Decoding(budget=48, chunk=4, sinks=4, recent=8)


@pytest.mark.parametrize("method", ["retrieval", "triforce"])
def test_a_seeded_text_is_the_same_whoever_looks_at_the_cache_meanwhile(method: str) -> None:
    def text(looking: bool) -> list[int]:
        session, given = tiny_engine().session([1, 2, 3] * 60), []
        sampling = SamplingParams(temperature=1.0, seed=3, max_new_tokens=60)
        for completion in session.stream(sampling, Decoding(method, budget=48, chunk=4, sinks=4, recent=8)):
            given.append(completion.token_id)
            if looking:
                session.logits()
        return given

    assert text(True) == text(False)


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    sampling = SamplingParams(temperature=1.0, seed=np.int64(5), max_new_tokens=np.int8(100))  # type: ignore[arg-type]
    plain = SamplingParams(temperature=1.0, seed=5, max_new_tokens=100)
    assert tiny_engine().generate([1] * 300, sampling).token_ids == tiny_engine().generate([1] * 300, plain).token_ids


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"seed": True}, "seed is True: use a whole number"),
        ({"seed": 10**400}, "seed is too large: use at most"),
        ({"temperature": 10**400}, "temperature is too large: use at most"),
        ({"stop": "\ud800"}, "use valid Unicode"),
        ({"json_schema": "[" * 100_000}, "json_schema is not JSON"),
    ],
)
def test_what_no_setting_can_be_is_refused_in_one_line(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        SamplingParams(**changes)
    assert "\n" not in str(caught.value)


def test_criteria_cannot_rewrite_the_history() -> None:
    def rewriting(ids: Any) -> bool:
        ids[:5] = 9
        return False

    with pytest.raises(ValueError, match="read-only"):
        tiny_engine().generate("hello hello", SamplingParams(max_new_tokens=10, criteria=[rewriting]))


def test_no_stop_of_any_kind_comes_before_the_least_number_of_tokens() -> None:
    engine = tiny_engine()
    free = engine.generate("abc", SamplingParams(max_new_tokens=20), Decoding("ar"))
    early = free.token_ids[2]
    least = SamplingParams(max_new_tokens=20, min_new_tokens=10, stop_token_ids=[early])
    assert len(engine.generate("abc", least, SPARSE).token_ids) >= 10
    letter = next(character for character in free.text if character.isascii())
    assert (
        len(engine.generate("abc", SamplingParams(max_new_tokens=20, min_new_tokens=10, stop=letter)).token_ids) >= 10
    )


def test_what_a_fork_notes_is_its_own() -> None:
    session = tiny_engine().session("abc")
    session.notes["a"] = {}
    session.fork().notes["a"]["leak"] = 1
    assert session.notes == {"a": {}}
