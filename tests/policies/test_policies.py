"""One table of cases through every policy: shapes, grouped queries, and what each is known to prefer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from triforce.errors import UsageError
from triforce.policies import POLICIES, create_policy
from triforce.policies.base import group_queries

CASES = [  # queries, heads, kv_heads, chunks, rows of a chunk, dim
    (8, 4, 2, 9, 4, 8),
    (1, 4, 4, 5, 8, 8),
    (3, 6, 1, 1, 2, 4),
    (8, 9, 3, 20, 1, 16),
]
ATTENTIVE = [name for name in POLICIES if name != "recent"]


def case(queries: int, heads: int, kv_heads: int, chunks: int, chunk: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(queries)
    q = torch.randn(queries, heads, dim, generator=generator, dtype=torch.float64)
    keys = torch.randn(kv_heads, chunks, chunk, dim, generator=generator, dtype=torch.float64)
    return q, keys, keys.mean(2)


def one_head_score(name: str, q: Tensor, chunks: Tensor, means: Tensor) -> list[float]:
    """The score of each chunk under the queries `q` [n, dim] of one head, in plain loops."""
    scores = [0.0] * len(chunks)
    for query in q:
        if name == "retrieval":
            weights = [[math.exp(float(query @ mean) / math.sqrt(len(query)))] for mean in means]
        else:
            weights = [[math.exp(float(query @ key) / math.sqrt(len(query))) for key in chunk] for chunk in chunks]
        total = sum(map(sum, weights))
        scores = [score + sum(rows) / total for score, rows in zip(scores, weights, strict=True)]
    return scores


@pytest.mark.parametrize("sizes", CASES, ids=str)
@pytest.mark.parametrize("policy", POLICIES)
def test_there_is_one_finite_score_per_head_and_chunk(policy: str, sizes: tuple[int, int, int, int, int, int]) -> None:
    scores = create_policy(policy).score(*case(*sizes))
    assert scores.shape == (sizes[2], sizes[3])
    assert bool(torch.isfinite(scores).all())


@pytest.mark.parametrize("sizes", CASES, ids=str)
@pytest.mark.parametrize("policy", ATTENTIVE)
def test_scores_of_grouped_queries_are_sums_over_their_heads(
    policy: str, sizes: tuple[int, int, int, int, int, int]
) -> None:
    q, chunks, means = case(*sizes)
    scores = create_policy(policy).score(q, chunks, means)
    group = sizes[1] // sizes[2]
    for kv_head in range(sizes[2]):
        per_head = [
            one_head_score(policy, q[:, head], chunks[kv_head], means[kv_head])
            for head in range(kv_head * group, (kv_head + 1) * group)
        ]
        expected = torch.tensor(per_head, dtype=torch.float64).sum(0)
        torch.testing.assert_close(scores[kv_head], expected)


@pytest.mark.parametrize("policy", ATTENTIVE)
def test_the_chunk_that_a_query_points_at_scores_best(policy: str) -> None:
    q, chunks, _ = case(8, 4, 2, 9, 4, 8)
    chunks[0, 6] = 5 * q[0, 0] / q[0, 0].norm()
    chunks[1, 2] = 5 * q[0, 2] / q[0, 2].norm()
    scores = create_policy(policy).score(q[:1, :].repeat(2, 1, 1), chunks, chunks.mean(2))
    assert scores.argmax(-1).tolist() == [6, 2]


def test_a_single_needle_moves_true_attention_and_not_the_means() -> None:
    """One row that the query wants, its neighbours pulling the mean the other way."""
    q = torch.zeros(1, 1, 4)
    q[..., 0] = 20.0
    chunks = torch.zeros(1, 3, 4, 4)
    chunks[0, 1, :, 0] = torch.tensor([3.0, -2.0, -2.0, -2.0])
    means = chunks.mean(2)
    assert int(create_policy("attention").score(q, chunks, means).argmax()) == 1
    assert int(create_policy("retrieval").score(q, chunks, means).argmin()) == 1


def test_recent_prefers_later_chunks_whatever_the_keys() -> None:
    scores = create_policy("recent").score(*case(8, 4, 2, 9, 4, 8))
    assert bool((scores.diff(dim=-1) > 0).all())


def test_queries_are_grouped_by_the_kv_head_they_share() -> None:
    queries = torch.arange(2 * 6).view(2, 6, 1)  # value: 6 * query + head
    grouped = group_queries(queries, 3)
    assert grouped.shape == (3, 4, 1)
    heads = [sorted(x % 6 for x in row) for row in grouped[..., 0].tolist()]
    assert heads == [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]]


def test_an_unknown_policy_is_a_users_mistake_that_names_the_known_ones() -> None:
    with pytest.raises(UsageError, match="retrieval, attention, recent"):
        create_policy("oracle")
