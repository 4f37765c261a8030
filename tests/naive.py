"""Every control once more, slowly: one row and one history, plain loops over ids. What laws are tested against."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from triforce.config import SamplingParams
from triforce.controls.base import Call

Law = npt.NDArray[np.float64]
Allowed = Callable[[list[int]], set[int]]  # which tokens may follow a generated text
NONE = -math.inf


def naive_law(
    params: SamplingParams, row: Sequence[float], history: list[int], call: Call, allowed: Allowed | None = None
) -> Law:
    """The law that follows `history`, float64; all 0 where every token is ruled out."""
    logits = naive_logits(params, list(row), history, call)
    if allowed is not None:
        may = allowed(history[call.prompt_tokens :])
        logits = [logit if i in may else NONE for i, logit in enumerate(logits)]
    law = np.zeros(len(logits))
    if max(logits) == NONE:
        return law
    if params.temperature == 0.0:
        law[logits.index(max(logits))] = 1.0
        return law
    for i, logit in enumerate(logits):
        law[i] = math.exp((logit - max(logits)) / params.temperature)
    return naive_truncation(params, law / law.sum())


def naive_logits(params: SamplingParams, logits: list[float], history: list[int], call: Call) -> list[float]:
    """Logits after all controls of history but the grammar."""
    text = history[call.prompt_tokens :]
    for token, bias in dict(params.logit_bias).items():
        logits[token] += bias
    for token in set(history):
        penalty = params.repetition_penalty
        logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty
    for token in set(text):
        logits[token] -= params.presence_penalty + params.frequency_penalty * text.count(token)
    n = params.no_repeat_ngram_size
    for start in range(len(history) - n + 1 if n else 0):
        if history[start : start + n - 1] == (history[len(history) - n + 1 :] if n > 1 else []):
            logits[history[start + n - 1]] = NONE
    for word in params.bad_words:
        assert not isinstance(word, str)
        before = list(word[:-1])
        ends_alone = not before and word[0] in call.end_token_ids
        if history[len(history) - len(before) :] == before and not ends_alone:
            logits[word[-1]] = NONE
    if len(text) < params.min_new_tokens:
        for token in call.end_token_ids:
            logits[token] = NONE
    for processor in params.processors:
        logits = list(processor(history, logits))
    return logits


def naive_truncation(params: SamplingParams, law: Law) -> Law:
    """Top-k, top-p, min-p, typical-p of a law without ties."""
    if 0 < params.top_k < len(law):
        law = _only(law, sorted(range(len(law)), key=lambda i: -law[i])[: params.top_k])
    if params.top_p < 1.0:
        law = _only(law, _until(law, sorted(range(len(law)), key=lambda i: -law[i]), params.top_p))
    if params.min_p > 0.0:
        law = _only(law, [i for i, p in enumerate(law) if p >= params.min_p * law.max()])
    if params.typical_p < 1.0:
        possible = [i for i, p in enumerate(law) if p > 0]
        entropy = sum(-law[i] * math.log(law[i]) for i in possible)
        typical = sorted(possible, key=lambda i: abs(-math.log(law[i]) - entropy))
        law = _only(law, _until(law, typical, params.typical_p))
    return law


def _until(law: Law, order: list[int], mass: float) -> list[int]:
    """The first of `order` whose mass reaches `mass`."""
    kept, reached = [], 0.0
    for i in order:
        if reached >= mass:
            break
        kept.append(i)
        reached += law[i]
    return kept


def _only(law: Law, kept: list[int]) -> Law:
    out = np.zeros_like(law)
    out[kept] = law[kept]
    return out / out.sum()
