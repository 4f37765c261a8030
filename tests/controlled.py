"""Settings with controls of history over the table models of `compositions.py`, and the law that each must give."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import torch
from compositions import VOCAB, blended, middle, target
from naive import Allowed, Law, naive_law
from tables import TableRunner
from torch import Tensor

from triforce.config import SamplingParams
from triforce.controls import ControlFactory
from triforce.controls.base import Call
from triforce.sampling import Sampler
from triforce.speculative import Drafter, step
from triforce.tokens import TokenIds, extend

PREFIX: TokenIds = np.array([3, 1, 3, 3, 1], dtype=np.int32)  # not all tokens: a first and a second occurrence differ
END = 4
CALL = Call(len(PREFIX), VOCAB, (END,))
REGEX = "(a|b|c(a|b)){2,3}"  # never one spelling forced, so that no token is preferred to another one of the same text
LETTERS = [b"a", b"b", b"c", b"ab", b""]


class Letters:
    """A tokeniser of the table models' five tokens: three letters, two at once, and the end."""

    def spellings(self) -> list[bytes]:
        return LETTERS

    def encode_within(self, text: str) -> list[int]:
        return [b"abc".index(byte) for byte in text.encode()]


def shun_the_last(token_ids: Any, logits: Any) -> Any:
    """A processor of the caller's: the last token and its neighbour become less likely. Takes lists and tensors."""
    last = int(token_ids[-1])
    for token in (last, (last + 1) % VOCAB):
        logits[token] = logits[token] - 1.5
    return logits


SETTINGS: dict[str, dict[str, Any]] = {
    "logit_bias": {"logit_bias": {2: 1.0, 0: -1.5}},
    "repetition_penalty": {"repetition_penalty": 2.5},
    "presence_penalty": {"presence_penalty": 1.5},
    "frequency_penalty": {"frequency_penalty": 0.9},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words": {"bad_words": [[1, 3], [2], [0, 0], [3, 4]]},
    "min_new_tokens": {"min_new_tokens": 2},
    "processors": {"processors": [shun_the_last]},
    "typical_p": {"typical_p": 0.8},
    "regex": {"regex": REGEX},
}
SETTINGS["all"] = {
    "repetition_penalty": 1.3,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    "no_repeat_ngram_size": 3,
    "logit_bias": {2: 0.5},
    "bad_words": [[1, 1], [0, 2]],
    "min_new_tokens": 2,
    "processors": [shun_the_last],
    "typical_p": 0.99,
    "top_p": 0.99,
    "regex": REGEX,
}


def params_of(setting: str, temperature: float = 1.0, seed: int = 21) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=seed, **SETTINGS[setting])


def sampler_of(params: SamplingParams) -> Sampler:
    return Sampler(params, ControlFactory(Letters(), VOCAB, (END,)).create(params, len(PREFIX)))


def _texts() -> set[str]:
    """All that `REGEX` matches, by Python's own engine."""
    texts = ("".join(letters) for n in range(7) for letters in itertools.product("abc", repeat=n))
    return {text for text in texts if re.fullmatch(REGEX, text)}


MATCHING = _texts()


def allowed_by_regex(text: list[int]) -> set[int]:
    """Tokens that some matching text goes on with, found by looking through all of them."""
    if END in text:
        return {END}
    said = b"".join(LETTERS[token] for token in text).decode()
    goes_on = {
        token
        for token, letters in enumerate(LETTERS)
        if letters and any(matching.startswith(said + letters.decode()) for matching in MATCHING)
    }
    return goes_on | ({END} if said in MATCHING else set())


def law_after(params: SamplingParams, logits: Tensor, history: list[int]) -> Law:
    """The law after `history`, by the slow plain rules."""
    allowed: Allowed | None = allowed_by_regex if params.regex else None
    return naive_law(params, logits.tolist(), history, CALL, allowed)


def enumerate_controlled_law(runner: TableRunner, length: int, params: SamplingParams) -> dict[tuple[int, ...], float]:
    """The probability of every sequence of `length` tokens after the prefix, and of shorter ones with a dead end."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(length):
        longer = {}
        for sequence, mass in law.items():
            tokens = extend(PREFIX, sequence)
            after = law_after(params, runner.logits(tokens, 1)[0], tokens.tolist())
            longer |= {(*sequence, token): mass * float(p) for token, p in enumerate(after) if p > 0}
            if after.sum() == 0:
                longer[sequence] = mass
        law = longer
    return law


def naive_laws(params: SamplingParams, runner: TableRunner, tokens: list[int], num_rows: int) -> Tensor:
    """Laws [num_rows, vocab] after each of the last tokens, by the slow plain rules."""
    rows = runner.logits(extend(PREFIX[:0], tokens), num_rows)
    first = len(tokens) - num_rows + 1
    return torch.stack([torch.from_numpy(law_after(params, row, tokens[: first + i])) for i, row in enumerate(rows)])


def assert_same_controls_at_every_level(params: SamplingParams, drafter: Drafter, draw: Sampler | None = None) -> None:
    """Every law on the way, drafted or emitted, is the level's own logits under the slow plain rules."""
    runner, draw = target(), draw or sampler_of(params)
    below = {"sparse": middle(), "draft": TableRunner("draft", blended(3, 0.3))}.get(drafter.stats.name)
    for _ in range(2):
        tokens = PREFIX
        while len(tokens) < len(PREFIX) + 8 and END not in tokens[len(PREFIX) :]:
            draft = drafter.propose(tokens, 3, draw)
            if below is not None and draft is not None:
                drafted = [*tokens.tolist(), *draft.tokens[:-1]]
                expected = naive_laws(params, below, drafted, len(draft.tokens))
                torch.testing.assert_close(draft.laws.double(), expected, atol=1e-5, rtol=1e-4)
            verdict = step(tokens, runner, drafter, 3, draw)
            if not verdict.tokens:
                break
            tokens = extend(tokens, verdict.tokens)
            expected = naive_laws(params, runner, tokens[:-1].tolist(), len(verdict.tokens))
            torch.testing.assert_close(verdict.laws.double(), expected, atol=1e-5, rtol=1e-4)
