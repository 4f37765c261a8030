"""Three levels over real caches: whatever is drafted and rejected, the target reads what it would have read alone."""

from __future__ import annotations

import pytest
import torch
from tiny import VOCAB, TinyDecoder, assert_same, random_tokens, runner_over, tiny_decoder

from triforce.caches.full import FullCache
from triforce.caches.sparse import SparseCache
from triforce.caches.streaming import StreamingCache
from triforce.config import Decoding, SamplingParams
from triforce.drafters.cascade import Cascade
from triforce.drafters.lookup import Lookup
from triforce.drafters.model import ModelDrafter
from triforce.policies import POLICIES
from triforce.runner import ModelRunner
from triforce.sampling import Sampler
from triforce.speculative import Drafter, step
from triforce.tokens import extend

TARGET, SMALL = tiny_decoder(), tiny_decoder(num_layers=1, vocab_size=VOCAB - 2, seed=1)
PROMPT = random_tokens(70)


def new_target() -> ModelRunner:
    cache = FullCache(TARGET.cache_shape, TARGET.rope, num_queries=16, dtype=torch.float64)
    return runner_over("target", TARGET, cache)


def small_model(decoder: TinyDecoder) -> ModelDrafter:
    cache = StreamingCache(decoder.cache_shape, decoder.rope, slots=20, sinks=4, dtype=torch.float64)
    return ModelDrafter(runner_over("draft", decoder, cache), VOCAB)


def three_levels(target: ModelRunner, inner: str, policy: str) -> Drafter:
    assert isinstance(target.cache, FullCache)
    sparse = SparseCache(target.cache, Decoding(policy=policy, budget=40, chunk=4, sinks=4, recent=8, stride=8))
    drafters = {
        "small": lambda: small_model(SMALL),
        "self": lambda: small_model(TARGET),
        "lookup": lambda: Lookup(VOCAB),
    }
    return Cascade(runner_over("sparse", TARGET, sparse), drafters[inner](), 3)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("inner", ["small", "self", "lookup"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_law_is_that_of_the_target_alone(inner: str, policy: str, temperature: float) -> None:
    target, draw = new_target(), Sampler(SamplingParams(temperature=temperature, seed=3))
    drafter = three_levels(target, inner, policy)
    target.prefill(PROMPT[:-1])
    tokens, laws = PROMPT, []
    while len(tokens) < len(PROMPT) + 60:
        verdict = step(tokens, target, drafter, 5, draw)
        tokens = extend(tokens, verdict.tokens)
        laws.append(verdict.laws)
        assert target.cache.length >= len(tokens) - 1
        assert target.cache.sync(tokens[:-1]) == len(tokens) - 1
    alone = draw.laws(new_target().logits(tokens[:-1], len(tokens) - len(PROMPT)), tokens[:-1])
    torch.testing.assert_close(torch.cat(laws), alone)
    assert 0 < drafter.stats.accepted < drafter.stats.drafted


def test_a_target_that_drafts_for_itself_is_accepted_while_all_rows_fit() -> None:
    """The middle level is exact below its budget, so the target rejects nothing of it."""
    target, draw = new_target(), Sampler(SamplingParams(temperature=0.0))
    drafter, tokens = three_levels(target, "small", "retrieval"), PROMPT[:10]
    target.prefill(tokens[:-1])
    while len(tokens) < 30:
        tokens = extend(tokens, step(tokens, target, drafter, 4, draw).tokens)
    assert drafter.stats.accepted == drafter.stats.drafted > 0


def test_levels_used_for_a_second_prompt_keep_nothing_of_the_first() -> None:
    target, draw = new_target(), Sampler(SamplingParams(temperature=1.0, seed=3))
    drafter = three_levels(target, "small", "retrieval")
    for seed in (1, 2):
        tokens = random_tokens(70, seed)
        target.prefill(tokens[:-1])
        for _ in range(5):
            tokens = extend(tokens, step(tokens, target, drafter, 5, draw).tokens)
    fresh = new_target()
    other = three_levels(fresh, "small", "retrieval")
    fresh.prefill(tokens[:-1])
    same = SamplingParams(temperature=1.0, seed=9)
    ours, theirs = drafter.propose(tokens, 5, Sampler(same)), other.propose(tokens, 5, Sampler(same))
    assert ours is not None
    assert theirs is not None
    assert ours.tokens == theirs.tokens
    torch.testing.assert_close(ours.laws, theirs.laws)
    assert_same(target.logits(tokens, 1), new_target().logits(tokens, 1))
