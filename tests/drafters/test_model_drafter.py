"""The model drafter and the cascade: which law their drafts are drawn from, whatever the vocabularies."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from compositions import COMPOSITIONS, PREFIX, blended, sampler
from scipy.stats import chisquare
from tables import TableRunner
from tiny import random_tokens, runner_over, tiny_decoder

from triforce.caches.streaming import StreamingCache
from triforce.drafters.cascade import Cascade
from triforce.drafters.lookup import Lookup
from triforce.drafters.model import ModelDrafter
from triforce.drafters.none import NoDrafter
from triforce.tokens import extend


def test_it_draws_each_token_from_the_law_it_reports() -> None:
    runner, draw = TableRunner("draft", blended(3, 0.3)), sampler("T=1")
    counts = np.zeros(5, dtype=int)
    for _ in range(1500):
        draft = ModelDrafter(runner, 5).propose(PREFIX, 2, draw)
        assert draft is not None
        sequence = extend(PREFIX, draft.tokens)
        assert torch.equal(draft.laws, draw.laws(runner.logits(sequence[:-1], 2), sequence[:-1]))
        counts[draft.tokens[0]] += 1
    law = draw.laws(runner.logits(PREFIX, 1), PREFIX)[0].double()
    assert chisquare(counts, (1500 * law / law.sum()).numpy()).pvalue > 1e-4


@pytest.mark.parametrize("sampling", ["T=1", "T=0.6 p=0.9", "T=0"])
@pytest.mark.parametrize("own", [3, 5, 8])
def test_its_laws_span_the_targets_vocabulary(own: int, sampling: str) -> None:
    table = torch.randn(own, own, own, generator=torch.Generator().manual_seed(own))
    drafter = ModelDrafter(TableRunner("draft", table), 5)
    draft = drafter.propose(PREFIX, 20, sampler(sampling))
    assert draft is not None
    assert draft.laws.shape == (20, 5)
    torch.testing.assert_close(draft.laws.sum(-1), torch.ones(20))
    assert bool((draft.laws[:, own:] == 0).all())
    assert max(draft.tokens) < min(own, 5)
    assert draft.levels == ["draft"] * 20


def test_a_real_drafter_reads_tokens_that_its_vocabulary_lacks() -> None:
    small = tiny_decoder(vocab_size=10)
    cache = StreamingCache(small.cache_shape, small.rope, dtype=torch.float64)
    drafter = ModelDrafter(runner_over("draft", small, cache), 16)
    tokens = random_tokens(40)
    assert tokens.max() > 10
    draft = drafter.propose(tokens, 3, sampler("T=1"))
    assert draft is not None
    assert max(draft.tokens) < 10
    assert bool((draft.laws[:, 10:] == 0).all())


def test_a_depth_of_zero_gives_no_draft() -> None:
    assert ModelDrafter(TableRunner("draft", blended(3, 0.3)), 5).propose(PREFIX, 0, sampler("T=1")) is None
    assert COMPOSITIONS["model, middle"](2).propose(PREFIX, 0, sampler("T=1")) is None


@pytest.mark.parametrize("depth", [1, 2, 5, 8])
@pytest.mark.parametrize("inner_depth", [1, 3])
def test_a_cascade_drafts_by_the_law_of_its_runner_whoever_proposed(inner_depth: int, depth: int) -> None:
    runner, draw = TableRunner("sparse", blended(2, 0.6)), sampler("T=1")
    near = ModelDrafter(TableRunner("draft", 0.7 * blended(2, 0.6) + 0.3 * blended(3, 0.0)), 5)
    seen: set[str] = set()
    for drafter in (NoDrafter(), near, Lookup(5, min_match=1)):
        draft = Cascade(runner, drafter, inner_depth).propose(PREFIX, depth, draw)
        assert draft is not None
        assert depth <= len(draft.tokens) <= depth + inner_depth
        sequence = extend(PREFIX, draft.tokens)
        assert torch.equal(draft.laws, draw.laws(runner.logits(sequence[:-1], len(draft.tokens)), sequence[:-1]))
        assert len(draft.levels) == len(draft.tokens)
        seen.update(draft.levels)
    assert "sparse" in seen


def test_a_cascade_names_the_level_that_each_token_came_from() -> None:
    same = blended(2, 0.6)
    cascade = Cascade(TableRunner("sparse", same), ModelDrafter(TableRunner("draft", same), 5), 3)
    draft = cascade.propose(PREFIX, 4, sampler("T=1"))
    assert draft is not None
    assert draft.levels == ["draft", "draft", "draft", "sparse"]


def test_a_cascade_without_a_drafter_takes_as_many_passes_as_tokens() -> None:
    runner = TableRunner("sparse", blended(2, 0.6))
    draft = Cascade(runner, NoDrafter(), 1).propose(PREFIX, 6, sampler("T=1"))
    assert draft is not None
    assert len(draft.tokens) == runner.stats.passes == 6
