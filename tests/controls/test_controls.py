"""Each control equals transformers' own processor row by row, whatever was drafted and taken back before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from naive import naive_law, naive_logits
from torch import Tensor
from transformers.generation import logits_process as theirs

from triforce.config import SamplingParams
from triforce.controls import CONTROLS, ControlFactory
from triforce.controls.base import Call, Control
from triforce.errors import UsageError
from triforce.sampling import Sampler
from triforce.tokens import TokenIds

VOCAB = 12
PROMPT = 4
ENDS = (3, 9)
CALL = Call(PROMPT, VOCAB, ENDS)
WORDS = [[5], [3], [1, 2], [1, 2, 4], [2, 4], [7, 7], [0, 9], [6, 1, 2, 4]]
BIASES = {2: 1.5, 5: -2.0, 11: float("-inf")}


class NoWords:
    """A tokeniser for settings that need none."""

    def spellings(self) -> list[bytes]:
        raise AssertionError

    def encode_within(self, text: str) -> list[int]:
        raise AssertionError(text)


def controls_of(prompt_tokens: int = PROMPT, **changes: Any) -> list[Control]:
    return ControlFactory(NoWords(), VOCAB, ENDS).create(SamplingParams(**changes), prompt_tokens)


def random_logits(rows: int, seed: int) -> Tensor:
    return 3 * torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed))


def processed(processor: Any, logits: Tensor, tokens: TokenIds) -> Tensor:
    """`logits` by transformers' processor, one row at a time over its own history."""
    ids, n = torch.from_numpy(tokens).long()[None], len(logits)
    return torch.cat([processor(ids[:, : ids.shape[1] - n + 1 + i], logits[i : i + 1]) for i in range(n)])


@st.composite
def visits(draw: st.DrawFn) -> list[tuple[TokenIds, int]]:
    """What the levels ask of one sampler in turn: sequences that share a prompt, with the rows wanted of each."""
    ids = st.integers(0, VOCAB - 1)
    prompt = draw(st.lists(ids, min_size=PROMPT, max_size=PROMPT))
    text: list[int] = []
    asked = []
    for _ in range(draw(st.integers(1, 6))):
        text = text[: max(len(text) - draw(st.sampled_from([0, 0, 1, 2, 5])), 0)] + draw(st.lists(ids, max_size=5))
        rows = draw(st.integers(1, len(text) + 1))
        asked.append((np.array(prompt + text, dtype=np.int32), rows))
    return asked


REFERENCES: dict[str, tuple[dict[str, Any], Callable[[], Any]]] = {
    "logit_bias": (
        {"logit_bias": BIASES},
        lambda: theirs.SequenceBiasLogitsProcessor({(token,): bias for token, bias in BIASES.items()}),
    ),
    "repetition_penalty": (
        {"repetition_penalty": 1.7},
        lambda: theirs.RepetitionPenaltyLogitsProcessor(1.7),
    ),
    "repetition_penalty below 1": (
        {"repetition_penalty": 0.6},
        lambda: theirs.RepetitionPenaltyLogitsProcessor(0.6),
    ),
    **{
        f"no_repeat_ngram_size {n}": (
            {"no_repeat_ngram_size": n},
            lambda n=n: theirs.NoRepeatNGramLogitsProcessor(n),  # type: ignore[misc]
        )
        for n in (1, 2, 3, 7)
    },
    "bad_words": (
        {"bad_words": WORDS},
        lambda: theirs.NoBadWordsLogitsProcessor([list(word) for word in WORDS], list(ENDS)),
    ),
    "min_new_tokens": (
        {"min_new_tokens": 3},
        lambda: theirs.MinNewTokensLengthLogitsProcessor(PROMPT, 3, list(ENDS)),
    ),
}


@pytest.mark.parametrize("case", REFERENCES)
@settings(max_examples=25)
@given(visits=visits(), seed=st.integers(0, 2**31))
def test_it_equals_transformers_processor(case: str, visits: list[tuple[TokenIds, int]], seed: int) -> None:
    changes, reference = REFERENCES[case]
    (control,) = controls_of(**changes)
    processor = reference()
    for tokens, rows in visits:
        logits = random_logits(rows, seed)
        expected = processed(processor, logits, tokens)
        control.apply(logits, tokens)
        torch.testing.assert_close(logits, expected)


NAIVE: dict[str, dict[str, Any]] = {
    **{name: changes for name, (changes, _) in REFERENCES.items()},
    "presence_penalty": {"presence_penalty": 0.8},
    "frequency_penalty": {"frequency_penalty": 0.5},
    "negative penalties": {"presence_penalty": -0.3, "frequency_penalty": -0.2},
    "processors": {"processors": [lambda ids, logits: [x - 0.1 * int(ids[-1]) * i for i, x in enumerate(logits)]]},
}
NAIVE["all"] = {key: value for changes in NAIVE.values() for key, value in changes.items()}


def test_every_control_has_a_case() -> None:
    assert set(CONTROLS) <= set(NAIVE["all"])


@pytest.mark.parametrize("case", NAIVE)
@settings(max_examples=25)
@given(visits=visits(), seed=st.integers(0, 2**31))
def test_it_equals_a_slow_plain_rule(case: str, visits: list[tuple[TokenIds, int]], seed: int) -> None:
    params, controls = SamplingParams(**NAIVE[case]), controls_of(**NAIVE[case])
    for tokens, rows in visits:
        logits = random_logits(rows, seed)
        histories = [tokens[: len(tokens) - rows + 1 + i].tolist() for i in range(rows)]
        expected = [
            naive_logits(params, row, history, CALL) for row, history in zip(logits.tolist(), histories, strict=True)
        ]
        for control in controls:
            control.apply(logits, tokens)
        torch.testing.assert_close(logits, torch.tensor(expected), atol=1e-5, rtol=1e-5)


@settings(max_examples=50)
@given(
    visits=visits(),
    seed=st.integers(0, 2**31),
    temperature=st.sampled_from([0.0, 0.7, 1.3]),
    top_k=st.integers(0, 14),
    top_p=st.floats(0.05, 1.0),
    min_p=st.floats(0.0, 0.5),
    typical_p=st.floats(0.05, 1.0),
)
def test_laws_of_all_controls_together_equal_a_slow_plain_rule(
    visits: list[tuple[TokenIds, int]], seed: int, temperature: float, **truncations: Any
) -> None:
    params = SamplingParams(temperature=temperature, **truncations, **NAIVE["all"])
    sampler = Sampler(params, controls_of(**NAIVE["all"]))
    for tokens, rows in visits:
        logits = random_logits(rows, seed)
        before = logits.clone()
        laws = sampler.laws(logits, tokens)
        assert torch.equal(logits, before), "the caller's logits are changed"
        for i, law in enumerate(laws):
            history = tokens[: len(tokens) - rows + 1 + i].tolist()
            expected = torch.from_numpy(naive_law(params, before[i].tolist(), history, CALL))
            torch.testing.assert_close(law.double(), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("typical_p", [0.05, 0.3, 0.7, 0.95, 0.999])
@pytest.mark.parametrize("spread", [0.5, 1.0, 5.0])
def test_typical_p_equals_transformers(typical_p: float, spread: float) -> None:
    for vocab in (7, 3000):
        logits = spread * torch.randn(5, vocab, generator=torch.Generator().manual_seed(vocab))
        tokens = np.zeros(5, dtype=np.int32)
        laws = Sampler(SamplingParams(temperature=1.0, typical_p=typical_p, top_k=2000)).laws(logits, tokens)
        scores = theirs.TopKLogitsWarper(2000)(None, logits)  # type: ignore[arg-type]
        expected = theirs.TypicalLogitsWarper(typical_p)(None, scores).softmax(-1)  # type: ignore[arg-type]
        torch.testing.assert_close(laws, expected)


def test_stop_ids_wait_for_the_least_number_of_tokens_too() -> None:
    def banned(**changes: Any) -> list[list[int]]:
        (control,) = controls_of(1, min_new_tokens=2, **changes)
        logits = torch.zeros(3, VOCAB)
        control.apply(logits, np.array([0, 1, 2], dtype=np.int32))
        return [row.nonzero().flatten().tolist() for row in logits]

    assert banned(stop_token_ids=[8]) == [[3, 8, 9], [3, 8, 9], []]
    assert banned(stop_token_ids=[8], ignore_eos=True) == [[8], [8], []]
    assert banned(ignore_eos=True) == [[], [], []]


def test_no_control_set_makes_none_and_greedy_stays_a_one_hot_law() -> None:
    assert controls_of() == []
    assert controls_of(temperature=0.7, top_p=0.9, typical_p=0.5) == []
    tokens = np.array([2, 2, 2, 2], dtype=np.int32)
    logits = torch.zeros(1, VOCAB)
    logits[0, 2], logits[0, 5] = 2.0, 1.5
    law = Sampler(SamplingParams(), controls_of(repetition_penalty=2.0)).laws(logits, tokens)
    assert law[0].nonzero().flatten().tolist() == [5]
    assert float(law.sum()) == 1.0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_any_possible_token_has_an_empty_law_and_no_other_row_does(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_p=0.9, typical_p=0.9, bad_words=[[2, i] for i in range(VOCAB)])
    sampler = Sampler(params, ControlFactory(NoWords(), VOCAB, ()).create(params, 1))
    laws = sampler.laws(torch.zeros(3, VOCAB), np.array([0, 2, 1], dtype=np.int32))
    assert laws.sum(-1).tolist() == pytest.approx([1.0, 0.0, 1.0])
    assert sampler.draw(laws[1]) is None
    assert str(sampler.dead_end(7)) == "bad_words leaves no token possible after 7 new ones: relax it"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias names token 12, but the model's ids end at 11: leave it out"),
        ({"bad_words": [[1, 99]]}, "bad_words names token 99, but the model's ids end at 11: leave it out"),
    ],
)
def test_a_token_that_the_model_lacks_is_refused(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        controls_of(**changes)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"typical_p": 0}, "typical_p is 0: use a number above 0"),
        ({"typical_p": 1.1}, "typical_p is 1.1: use at most 1"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0: use at least"),
        ({"repetition_penalty": "x"}, "repetition_penalty is 'x': use a number"),
        ({"presence_penalty": float("nan")}, "presence_penalty is nan: use a number"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty is too large: use at most"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1: use at least 0"),
        ({"no_repeat_ngram_size": 2.0}, "no_repeat_ngram_size is 2.0: use a whole number"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens is 9, more than max_new_tokens 8: lower it"),
        ({"logit_bias": {"a": 1.0}}, "a token id of logit_bias is 'a': use a whole number"),
        ({"logit_bias": {1: float("inf")}}, "the logit_bias of token 1 is too large: use at most"),
        ({"logit_bias": [1, 2]}, "logit_bias has 1: give a mapping of ids to numbers"),
        ({"logit_bias": 3}, "logit_bias is 3: use a list"),
        ({"bad_words": "word"}, "bad_words is 'word': give a list of words"),
        ({"bad_words": [""]}, "bad_words has an empty word: leave it out"),
        ({"bad_words": [[]]}, "bad_words has an empty word: leave it out"),
        ({"bad_words": [[1.5]]}, "a token id of bad_words is 1.5: use a whole number"),
        ({"bad_words": [4]}, "a word of bad_words is 4: give a text, or a list of token ids"),
        ({"processors": [3]}, r"processors has 3: give functions f\(token_ids, logits\)"),
        ({"processors": [theirs.LogitsProcessor]}, "processors has <class .*LogitsProcessor'>: give functions"),
        ({"json_schema": "{"}, "json_schema is not JSON"),
        ({"json_schema": {"a": {1}}}, "json_schema cannot be written as JSON"),
        ({"regex": ""}, "regex is '': give some text"),
        ({"regex": 3}, "regex is 3: give some text"),
        ({"choice": "yes"}, "choice is 'yes': give a list of texts"),
        ({"choice": []}, "choice is empty: give at least one text"),
        ({"choice": ["yes", ""]}, "a text of choice is '': give a list of texts, not empty"),
        ({"regex": "a", "choice": ["a"]}, "regex and choice are given: one call takes one of them"),
    ],
)
def test_a_setting_that_cannot_be_honoured_names_its_remedy(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        SamplingParams(**changes)
    assert "\n" not in str(caught.value)


def test_settings_stay_as_they_were_given() -> None:
    words, biases = [[1, 2]], {3: 1.0}
    params = SamplingParams(bad_words=words, logit_bias=biases)
    words[0].append(9)
    biases[4] = 2.0
    assert params == SamplingParams(bad_words=[(1, 2)], logit_bias=[(3, 1.0)])
    assert hash(params) == hash(SamplingParams(bad_words=[(1, 2)], logit_bias={3: 1.0}))


def test_a_long_history_is_not_read_anew_for_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is added up from call to call is what is new: of 128K tokens read once, a call touches a few."""
    added: list[int] = []
    add = np.add.at
    tokens = np.arange(2**17, dtype=np.int32) % VOCAB

    class Counting:
        def at(self, counts: Any, ids: TokenIds, by: int) -> None:
            added.append(len(ids))
            add(counts, ids, by)

    monkeypatch.setattr("triforce.controls.counts.np.add", Counting())
    (control,) = controls_of(repetition_penalty=1.5)
    for drafted in (0, 5, 3, 6):
        control.apply(torch.zeros(drafted + 1, VOCAB), np.append(tokens, np.int32([7] * drafted)))
    assert added[0] == 2**17
    assert sum(added[1:]) < 30
