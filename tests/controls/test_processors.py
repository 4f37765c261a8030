"""The caller's own processors: plain functions, and every shape that transformers' objects come in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process as theirs

from triforce.config import SamplingParams
from triforce.controls.processors import Processors, is_transformers
from triforce.errors import UsageError

VOCAB = 6
TOKENS = np.array([1, 4, 4, 2], dtype=np.int32)


class Shift(LogitsProcessor):
    """One of a user's own, in transformers' shape."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert input_ids.dtype == torch.int64
        assert (input_ids.shape[0], scores.shape) == (1, (1, VOCAB))
        return scores + input_ids[:, -1:]


class Ducked:
    """In transformers' shape by the names of its arguments only."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.masked_fill(torch.arange(VOCAB)[None] == input_ids[:, -1:], -torch.inf)


def ban_last(token_ids: Any, logits: Tensor) -> Tensor:
    assert logits.shape == (VOCAB,)
    logits[int(token_ids[-1])] = -torch.inf  # its own copy: nothing but what is returned counts
    return logits


def apply(processors: Any, rows: int = 2) -> Tensor:
    logits = torch.arange(rows * VOCAB, dtype=torch.float32).view(rows, VOCAB)
    Processors(SamplingParams(processors=processors).processors).apply(logits, TOKENS)
    return logits


def test_a_function_sees_each_rows_history_and_its_logits() -> None:
    seen: list[tuple[list[int], list[float]]] = []

    def look(token_ids: Any, logits: Tensor) -> Tensor:
        seen.append((token_ids.tolist(), logits.tolist()))
        return logits

    apply([look])
    assert seen == [([1, 4, 4], [0, 1, 2, 3, 4, 5]), ([1, 4, 4, 2], [6, 7, 8, 9, 10, 11])]


def test_they_are_applied_in_their_order() -> None:
    logits = apply([lambda _, row: row + 1, lambda _, row: row * 10])
    assert logits[0].tolist() == [10, 20, 30, 40, 50, 60]


@pytest.mark.parametrize(
    ("processors", "expected"),
    [
        (ban_last, [[0, 1, 2, 3, -torch.inf, 5], [6, 7, -torch.inf, 9, 10, 11]]),
        ([Ducked()], [[0, 1, 2, 3, -torch.inf, 5], [6, 7, -torch.inf, 9, 10, 11]]),
        ([Shift()], [[4, 5, 6, 7, 8, 9], [8, 9, 10, 11, 12, 13]]),
        (Shift(), [[4, 5, 6, 7, 8, 9], [8, 9, 10, 11, 12, 13]]),
        (LogitsProcessorList([Shift(), Ducked()]), [[4, 5, 6, 7, -torch.inf, 9], [8, 9, -torch.inf, 11, 12, 13]]),
        ([LogitsProcessorList([Shift()]), ban_last], [[4, 5, 6, 7, -torch.inf, 9], [8, 9, -torch.inf, 11, 12, 13]]),
        ([lambda _, row: row.numpy() + 1], [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]),
        ([lambda _, row: (row + 1).tolist()], [[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]),
        ([lambda input_ids, scores: scores + input_ids.shape[1]], [[3, 4, 5, 6, 7, 8], [10, 11, 12, 13, 14, 15]]),
    ],
)
def test_functions_and_transformers_objects_are_told_apart(processors: Any, expected: list[list[float]]) -> None:
    assert apply(processors).tolist() == expected


@pytest.mark.parametrize(
    "processor",
    [
        theirs.RepetitionPenaltyLogitsProcessor(1.3),
        theirs.NoRepeatNGramLogitsProcessor(2),
        theirs.MinPLogitsWarper(0.2),
        theirs.TopKLogitsWarper(3),
        theirs.SuppressTokensLogitsProcessor([1, 3]),
        theirs.PrefixConstrainedLogitsProcessor(lambda _, ids: [int(ids[-1]), 0], 1),
        theirs.ExponentialDecayLengthPenalty((1, 1.1), 3, 2),
    ],
    ids=lambda processor: type(processor).__name__,
)
def test_transformers_own_processors_are_accepted_as_they_are(processor: Any) -> None:
    logits = torch.randn(1, VOCAB, generator=torch.Generator().manual_seed(0))
    expected = processor(torch.from_numpy(TOKENS).long()[None], logits.clone())
    assert is_transformers(processor)
    Processors([processor]).apply(logits, TOKENS)
    assert torch.equal(logits, expected)


def test_a_history_cannot_be_changed_by_a_function() -> None:
    def spoil(token_ids: Any, logits: Tensor) -> Tensor:
        token_ids[0] = 5
        return logits

    with pytest.raises(ValueError, match="read-only"):
        apply([spoil])
    assert TOKENS.flags.writeable


def nothing(token_ids: Any, logits: Tensor) -> None:
    del token_ids, logits


@pytest.mark.parametrize(
    ("processor", "expected"),
    [
        (nothing, r"processor nothing returned a NoneType: return the logits \[6\]"),
        (lambda _, row: row[:3], r"returned a shape \[3\]: return the logits \[6\]"),
        (lambda _, row: row * float("nan"), "returned NaN or .inf after 3 tokens: return finite numbers, or -inf"),
        (lambda _, row: row + float("inf"), "returned NaN or .inf after 3 tokens: return finite numbers, or -inf"),
        (
            object.__new__(theirs.UnbatchedClassifierFreeGuidanceLogitsProcessor),
            "UnbatchedClassifierFreeGuidanceLogitsProcessor counts its calls, but drafted tokens are taken back",
        ),
    ],
)
def test_a_processor_that_cannot_be_used_is_named_in_one_line(processor: Any, expected: str) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        apply([processor])
    assert "\n" not in str(caught.value)
