"""The drafter of forced tokens: what it puts first, what it leaves to another, and who is credited."""

from __future__ import annotations

import torch
from compositions import PREFIX, VOCAB, lookup, sampler, small, target
from tables import TableRunner

from triforce.drafters.cascade import Cascade
from triforce.drafters.forced import Forced
from triforce.drafters.none import NoDrafter
from triforce.sampling import one_hot
from triforce.speculative import Drafter, step
from triforce.statistics import LevelStats
from triforce.tokens import TokenIds, extend


class After:
    """Forces `run` after a token 2, and what is left of it in the middle of it."""

    def __init__(self, run: list[int]) -> None:
        self._run = run

    def forced(self, tokens: TokenIds) -> list[int]:
        for length in range(len(self._run), -1, -1):
            if tokens[len(tokens) - length - 1 :].tolist() == [2, *self._run[:length]]:
                return self._run[length:]
        return []


def forced(run: list[int], drafter: Drafter | None = None) -> tuple[Forced, LevelStats]:
    own = LevelStats("grammar")
    return Forced(After(run), drafter or NoDrafter(), VOCAB, own), own


AFTER_2 = extend(PREFIX, [2])


def test_forced_tokens_come_first_with_one_hot_laws_under_their_own_name() -> None:
    draft = forced([4, 0])[0].propose(AFTER_2, 5, sampler("T=1"))
    assert draft is not None
    assert (draft.tokens, draft.levels) == ([4, 0], ["grammar"] * 2)
    assert torch.equal(draft.laws, one_hot(torch.tensor([4, 0]), VOCAB))


def test_the_rest_of_the_depth_is_the_other_drafters_after_them() -> None:
    draft = forced([4, 0], small())[0].propose(AFTER_2, 5, sampler("T=1"))
    alone = small().propose(extend(AFTER_2, [4, 0]), 3, sampler("T=1"))
    assert draft is not None
    assert alone is not None
    assert draft.tokens == [4, 0, *alone.tokens]
    assert draft.levels == ["grammar", "grammar", "draft", "draft", "draft"]
    torch.testing.assert_close(draft.laws[2:], alone.laws)


def test_a_depth_is_kept_and_a_depth_of_zero_drafts_nothing() -> None:
    drafter, own = forced([4, 0, 1, 3])
    draft = drafter.propose(AFTER_2, 3, sampler("T=1"))
    assert draft is not None
    assert draft.tokens == [4, 0, 1]
    assert drafter.propose(AFTER_2, 0, sampler("T=1")) is None
    assert own.passes == 1


def test_where_nothing_is_forced_it_is_the_other_drafter() -> None:
    ours = forced([4, 0], lookup())[0].propose(PREFIX, 4, sampler("T=1"))
    theirs = lookup().propose(PREFIX, 4, sampler("T=1"))
    assert ours is not None
    assert theirs is not None
    assert (ours.tokens, ours.levels) == (theirs.tokens, theirs.levels)
    assert forced([4, 0])[0].propose(PREFIX, 4, sampler("T=1")) is None


def test_accepted_and_rejected_tokens_are_credited_to_whoever_drafted_them() -> None:
    """A target that always says 4, 0, 1 after 2 accepts what is forced; of the rest it takes some."""
    table = target().table.clone()
    for before, token in ((2, 4), (4, 0), (0, 1)):
        table[:, before] = -50.0
        table[:, before, token] = 50.0
    inner = small()
    drafter, own = forced([4, 0, 1], inner)
    draw, tokens = sampler("T=1"), AFTER_2
    runner = TableRunner("target", table)
    taken = 0
    for _ in range(60):
        before = len(tokens)
        tokens = extend(tokens, step(tokens, runner, drafter, 4, draw).tokens)
        taken += len(tokens) - before - 1
    assert own.drafted == own.accepted > 5
    assert 0 < inner.stats.accepted < inner.stats.drafted
    assert own.accepted + inner.stats.accepted == taken


def test_within_a_cascade_the_sparse_level_is_credited_for_its_own_tokens_only() -> None:
    middle = Cascade(target(), small(), 2)
    middle.stats.name = "sparse"
    drafter, own = forced([4, 0, 1], middle)
    draw, tokens = sampler("T=1"), AFTER_2
    for _ in range(40):
        tokens = extend(tokens, step(tokens, target(), drafter, 4, draw).tokens)
    assert 0 < own.accepted < own.drafted
    lost = middle.stats.drafted - middle.stats.accepted
    assert lost <= 3 * (own.drafted - own.accepted), "with the target's logits it loses only what follows a wrong guess"
