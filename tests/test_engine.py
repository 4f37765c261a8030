"""The engine: all methods say what plain decoding says, stop where it stops, and refuse what cannot be done."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import torch
from tiny_engine import tiny_decoder, tiny_engine

import triforce.engine
from triforce.attention.rope import Rope
from triforce.config import Decoding, SamplingParams
from triforce.drafters.lookup import Lookup
from triforce.errors import ModelError, PromptError, UsageError
from triforce.methods import METHODS

PROMPT = "It was the best of times, it was the worst of times. " * 6  # 318 tokens
SMALL = {"budget": 64, "chunk": 4, "sinks": 8, "recent": 16, "stride": 8, "slots": 48, "gamma1": 4, "gamma2": 6}


pytestmark = pytest.mark.usefixtures("each_backend")


def decoding(method: str, **changes: int | None) -> Decoding:
    return Decoding(method=method, **{**SMALL, **changes})  # type: ignore[arg-type]


def test_lookup_reads_the_prompt_before_the_first_token(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []
    monkeypatch.setattr(Lookup, "read", lambda self, tokens: read.append((self.stats.passes, len(tokens))))
    tiny_engine().generate("abcabc", SamplingParams(max_new_tokens=1), Decoding(method="lookup"))
    assert read[0] == (0, 5)


def test_where_depth_is_fixed_lookup_follows_short_matches_too() -> None:
    done = tiny_engine().generate("abc-abc", SamplingParams(max_new_tokens=4), Decoding(method="lookup", gamma2=3))
    (lookup,) = (level for level in done.levels if level.name == "lookup")
    assert lookup.drafted >= 3


@pytest.mark.parametrize("draft_seed", [None, 0, 1], ids=["no draft model", "the target itself", "another model"])
@pytest.mark.parametrize("method", list(METHODS))
def test_greedy_tokens_are_those_of_plain_decoding(method: str, draft_seed: int | None) -> None:
    engine = tiny_engine(draft_seed=draft_seed)
    sampling = SamplingParams(max_new_tokens=80)
    plain = engine.generate(PROMPT, sampling, Decoding(method="ar"))
    assert engine.generate(PROMPT, sampling, decoding(method)).token_ids == plain.token_ids
    assert plain.completion_tokens == 80


@pytest.mark.parametrize("policy", ["retrieval", "attention"])
@pytest.mark.parametrize("method", list(METHODS))
def test_greedy_tokens_over_rows_of_8_bits_are_those_of_plain_decoding_over_them(method: str, policy: str) -> None:
    engine, sampling = tiny_engine(draft_seed=0, cache_dtype=torch.int8), SamplingParams(max_new_tokens=80)
    plain = engine.generate(PROMPT, sampling, Decoding(method="ar"))
    settings = Decoding(method=method, policy=policy, **SMALL)  # type: ignore[arg-type]
    assert engine.generate(PROMPT, sampling, settings).token_ids == plain.token_ids
    exact = tiny_engine().logits(plain.token_ids[:60])
    assert not torch.equal(engine.logits(plain.token_ids[:60]), exact)  # another model, by its cache
    torch.testing.assert_close(engine.logits(plain.token_ids[:60]), exact, rtol=0.2, atol=0.2)


@pytest.mark.parametrize("method", list(METHODS))
def test_depths_left_to_the_clock_change_no_token(method: str) -> None:
    engine, sampling = tiny_engine(draft_seed=1), SamplingParams(max_new_tokens=80)
    free = decoding(method, gamma1=None, gamma2=None)
    plain = engine.generate(PROMPT, sampling, Decoding(method="ar"))
    assert engine.generate(PROMPT, sampling, free).token_ids == plain.token_ids


@pytest.mark.parametrize("method", ["retrieval", "triforce"])
def test_rows_are_left_out_only_where_there_are_twice_as_many_as_are_kept(method: str) -> None:
    engine, sampling = tiny_engine(), SamplingParams(max_new_tokens=20)
    free = decoding(method, gamma1=None, gamma2=None)
    short, long = (engine.generate(ids, sampling, free) for ids in ([1] * 100, [1] * 200))
    passes = [{level.name: level.passes for level in done.levels}["sparse"] for done in (short, long)]
    assert passes[0] == 0 < passes[1]


def test_a_draft_model_drafts_after_short_texts_too() -> None:
    free = decoding("triforce", gamma1=None, gamma2=None)
    done = tiny_engine(draft_seed=1).generate([1] * 100, SamplingParams(max_new_tokens=20), free)
    assert {level.name: level.passes for level in done.levels}["draft"] > 0


@pytest.mark.parametrize("method", list(METHODS))
def test_a_seed_repeats_a_text_though_depths_are_left_to_the_clock(method: str) -> None:
    sampling, free = SamplingParams(temperature=0.8, seed=7, max_new_tokens=40), decoding(method, gamma2=None)
    texts = {tuple(tiny_engine().generate(PROMPT, sampling, free).token_ids) for _ in range(3)}
    assert len(texts) == 1


@pytest.mark.parametrize("method", list(METHODS))
def test_the_same_seed_gives_the_same_text(method: str) -> None:
    sampling = SamplingParams(temperature=0.8, top_p=0.9, seed=7, max_new_tokens=40)
    first = tiny_engine().generate(PROMPT, sampling, decoding(method))
    assert tiny_engine().generate(PROMPT, sampling, decoding(method)).token_ids == first.token_ids
    other = SamplingParams(temperature=0.8, top_p=0.9, seed=8, max_new_tokens=40)
    assert tiny_engine().generate(PROMPT, other, decoding(method)).token_ids != first.token_ids


@pytest.mark.parametrize("method", list(METHODS))
def test_end_of_sequence_inside_an_accepted_block_ends_the_text(method: str) -> None:
    free = tiny_engine().generate(PROMPT, SamplingParams(max_new_tokens=60), Decoding(method="ar")).token_ids
    for end in range(0, 60, 7):
        first = free.index(free[end])
        engine = tiny_engine(eos_token_ids=(free[end],))
        done = engine.generate(PROMPT, SamplingParams(max_new_tokens=60), decoding(method))
        assert done.token_ids == free[: first + 1]
        assert done.finish_reason == "stop"


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 20])
def test_generation_ends_at_the_limit(method: str, limit: int) -> None:
    done = tiny_engine().generate(PROMPT, SamplingParams(max_new_tokens=limit), decoding(method))
    assert (done.completion_tokens, len(done.token_ids), done.finish_reason) == (limit, limit, "length")


@pytest.mark.parametrize("prompt", ["a", "abc", "abcdefghij", PROMPT[:70]])
@pytest.mark.parametrize("method", list(METHODS))
def test_short_prompts_and_large_budgets_decode_like_any_other(method: str, prompt: str) -> None:
    engine, sampling = tiny_engine(), SamplingParams(max_new_tokens=50)
    plain = engine.generate(prompt, sampling, Decoding(method="ar"))
    assert engine.generate(prompt, sampling, decoding(method)).token_ids == plain.token_ids
    assert engine.generate(prompt, sampling, Decoding(method=method)).token_ids == plain.token_ids


@pytest.mark.parametrize("policy", ["retrieval", "attention", "recent"])
def test_generation_outlasts_the_budget(policy: str) -> None:
    engine, sampling = tiny_engine(), SamplingParams(max_new_tokens=150)
    plain = engine.generate(PROMPT[:100], sampling, Decoding(method="ar"))
    fast = engine.generate(PROMPT[:100], sampling, Decoding(method="triforce", policy=policy, **SMALL))  # type: ignore[arg-type]
    assert fast.token_ids == plain.token_ids


def test_streamed_text_adds_up_and_names_its_levels() -> None:
    stream = tiny_engine().stream(PROMPT, SamplingParams(max_new_tokens=60), decoding("triforce"))
    completions = list(stream)
    done = stream.generation()
    assert "".join(completion.text for completion in completions) == done.text
    assert [completion.token_id for completion in completions] == done.token_ids
    assert {completion.level for completion in completions} <= {"target", "sparse", "lookup"}
    assert [completion.finish_reason for completion in completions[:-1]] == [None] * 59
    target, sparse, lookup = done.levels
    assert (target.name, sparse.name, lookup.name) == ("target", "sparse", "lookup")
    assert 0 < sparse.accepted <= sparse.drafted
    assert target.passes + sparse.accepted >= 60


def test_an_abandoned_stream_tells_what_it_gave() -> None:
    stream = tiny_engine().stream(PROMPT, SamplingParams(max_new_tokens=60), decoding("triforce"))
    given = [next(stream).token_id for _ in range(5)]
    assert stream.generation().token_ids == given
    assert stream.generation().finish_reason == "interrupted"


def test_a_second_question_reads_only_what_is_new() -> None:
    engine, sampling = tiny_engine(), SamplingParams(max_new_tokens=8)
    engine.generate(PROMPT, sampling)
    longer = PROMPT + "And then?"
    again = engine.generate(longer, sampling)
    assert again.timings.prefill_tokens < len(longer) // 2
    assert again.token_ids == tiny_engine().generate(longer, sampling).token_ids


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("", "the prompt is empty: give some text"),
        ([], "the prompt is empty: give some text"),
        ([3, 256], "a token id outside 0..255"),
        ([3, -1], "a token id outside 0..255"),
        ([2**40], "a token id outside 0..255"),
        ([1.5, 2.0], "neither text nor a flat sequence of integers"),
        (["1", "2"], "neither text nor a flat sequence of integers"),
        ([[1, 2], [3, 4]], "neither text nor a flat sequence of integers"),
        ([[1], [2, 3]], "neither text nor a flat sequence of integers"),
        (b"bytes", "neither text nor a flat sequence of integers"),
        (None, "neither text nor a flat sequence of integers"),
        ((i for i in range(3)), "neither text nor a flat sequence of integers"),
        (
            "x" * 600,
            r"600 tokens and 8 new ones are 96 more than the 512 .*: shorten it or load .*--rope-scaling yarn:2",
        ),
        ("x" * 510, r"6 more than the 512 .*: ask for 2 new tokens at most, shorten it or .*yarn:2"),
    ],
)
def test_a_prompt_that_cannot_be_served_is_refused_in_one_line(prompt: Any, expected: str) -> None:
    with pytest.raises(PromptError, match=expected) as caught:
        tiny_engine().stream(prompt, SamplingParams(max_new_tokens=8))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"method": "magic"}, "unknown method 'magic': use one of ar, lookup, draft, retrieval, triforce"),
        ({"policy": "magic"}, "unknown policy 'magic': use one of retrieval, attention, recent"),
        ({"budget": 64}, "budget is 64 rows, too few for sinks, recent window and chunks: use at least 112"),
        ({"gamma1": 0}, "gamma1 is 0: use at least 1"),
        ({"gamma2": 0}, "gamma2 is 0: use at least 1"),
        ({"gamma2": 65}, "gamma2 is 65: use at most 64"),
        ({"gamma1": 2.5}, "gamma1 is 2.5: use a whole number"),
        ({"budget": "many"}, "budget is 'many': use a whole number"),
        ({"slots": 10**18}, "slots is 1e\\+18: use at most 65536"),
        ({"method": ["ar"]}, r"method is \['ar'\]: use a name"),
    ],
)
def test_a_setting_that_cannot_be_honoured_names_its_remedy(changes: dict[str, object], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        tiny_engine().stream(PROMPT, SamplingParams(max_new_tokens=8), Decoding(**changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"temperature": float("nan")}, "temperature is nan: use a number"),
        ({"temperature": 1e-50}, "temperature is 1e-50: use 0 for greedy, or at least 1e-37"),
        ({"temperature": "hot"}, "temperature is 'hot': use a number"),
        ({"top_p": 0}, "top_p is 0: use a number above 0"),
        ({"seed": 2**64}, "seed is .*: use at most"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5: use a whole number"),
        ({"stop": ["a", ""]}, "a text of stop is '': give texts of at least one character"),
        ({"stop": 7}, "stop is 7: use a list"),
        ({"stop": [7]}, "a text of stop is 7: give texts of at least one character"),
        ({"stop_token_ids": ["a"]}, "an id of stop_token_ids is 'a': use a whole number"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5: use a list"),
        ({"criteria": ["now"]}, "criteria holds 'now': use functions of the token ids"),
        ({"ignore_eos": 1}, "ignore_eos is 1: use True or False"),
        ({"include_stop": "yes"}, "include_stop is 'yes': use True or False"),
        ({"max_seconds": 0}, "max_seconds is 0: use a number above 0"),
        ({"max_seconds": float("inf")}, "max_seconds is too large: use at most"),
        ({"logprobs": True}, "logprobs is True: use a number of alternatives, 0 for the chosen token alone"),
        ({"logprobs": -1}, "logprobs is -1: use at least 0"),
    ],
)
def test_a_sampling_control_out_of_range_names_its_remedy(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=expected):
        SamplingParams(**changes)


def test_a_stop_id_that_the_vocabulary_lacks_is_refused() -> None:
    with pytest.raises(UsageError, match=r"stop_token_ids holds 256: use ids of the vocabulary, 0\.\.255"):
        tiny_engine().stream(PROMPT, SamplingParams(max_new_tokens=8, stop_token_ids=[255, 256]))


def test_settings_cannot_be_changed_through_the_list_they_came_in() -> None:
    stops = ["a"]
    sampling = SamplingParams(stop=stops, stop_token_ids=[3])
    stops.append("")
    assert (sampling.stop, sampling.stop_token_ids) == (("a",), (3,))
    assert SamplingParams(stop="END").stop == ("END",)


def test_a_budget_beyond_all_memory_holds_what_there_is() -> None:
    sampling = SamplingParams(max_new_tokens=8)
    plain = tiny_engine().generate(PROMPT, sampling, Decoding(method="ar"))
    assert tiny_engine().generate(PROMPT, sampling, Decoding(budget=2**24)).token_ids == plain.token_ids


@pytest.mark.parametrize("method", list(METHODS))
def test_an_interruption_ends_the_stream_and_leaves_the_engine_exact(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = SamplingParams(max_new_tokens=20)
    plain = tiny_engine().generate(PROMPT, sampling, Decoding(method="ar")).token_ids
    for moment in range(1, 9):
        engine, calls, table = tiny_engine(), [0], Rope.table

        def interrupted(
            self: Rope, *args: Any, calls: list[int] = calls, moment: int = moment, table: Any = table
        ) -> Any:
            calls[0] += 1
            if calls[0] == moment:
                raise KeyboardInterrupt
            return table(self, *args)

        with monkeypatch.context() as patched:
            patched.setattr(Rope, "table", interrupted)
            stream = engine.stream(PROMPT, sampling, decoding(method))
            given = []
            with suppress(KeyboardInterrupt):
                given += [completion.token_id for completion in stream]
            given = stream.generation().token_ids
            assert given == plain[: len(given)]
            assert list(stream) == []
        assert engine.generate(PROMPT, sampling, decoding(method)).token_ids == plain


def test_a_drafter_of_another_vocabulary_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Words:
        def __init__(self, name: str) -> None:
            self.name = name

        def vocabulary(self) -> dict[str, int]:
            return {self.name: 0}

    monkeypatch.setattr("triforce.pull.resolve_model", lambda name: name)
    monkeypatch.setattr("triforce.models.load_model", lambda *_, **__: tiny_decoder())
    monkeypatch.setattr("triforce.text.tokenizer.load_tokenizer", Words)
    with pytest.raises(ModelError, match="small has another vocabulary than large: choose a drafter of the same"):
        triforce.engine.load("large", draft="small")
    assert triforce.engine.load("large", draft="large").draft is not None


def test_a_prompt_of_random_ids_survives_every_method() -> None:
    prompt = torch.randint(0, 256, (200,), generator=torch.Generator().manual_seed(3)).tolist()
    engine, sampling = tiny_engine(draft_seed=2), SamplingParams(max_new_tokens=30)
    plain = engine.generate(prompt, sampling, Decoding(method="ar")).token_ids
    assert all(engine.generate(prompt, sampling, decoding(method)).token_ids == plain for method in METHODS)
