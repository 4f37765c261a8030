"""One table of cases through every policy: shapes, grouped queries, and what each is known to prefer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from triforce.attention.chunks import gather, group_queries
from triforce.attention.int8 import dequantise, quantise
from triforce.errors import UsageError
from triforce.policies import POLICIES, create_policy
from triforce.policies.base import Candidates

pytestmark = pytest.mark.usefixtures("each_backend")

CASES = [  # queries, heads, kv_heads, chunks, rows of a chunk, dim
    (8, 4, 2, 9, 4, 8),
    (1, 4, 4, 5, 8, 8),
    (3, 6, 1, 1, 2, 4),
    (8, 9, 3, 20, 1, 16),
    (8, 9, 3, 300, 2, 64),
]
ATTENTIVE = [name for name in POLICIES if name != "recent"]


def case(queries: int, heads: int, kv_heads: int, chunks: int, chunk: int, dim: int) -> tuple[Tensor, Candidates]:
    generator = torch.Generator().manual_seed(queries)
    q = torch.randn(2, queries, heads, dim, generator=generator)
    return q, candidates_of(torch.randn(2, kv_heads, chunks, chunk, dim, generator=generator))


def candidates_of(keys: Tensor) -> Candidates:
    """Chunks [layers, kv_heads, chunks, chunk, dim] with their means as the cache keeps them."""
    return Candidates(*quantise(keys.mean(3)), keys.__getitem__)


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
    assert scores.shape == (2, sizes[2], sizes[3])
    assert bool(torch.isfinite(scores).all())


@pytest.mark.parametrize("sizes", CASES, ids=str)
@pytest.mark.parametrize("policy", ATTENTIVE)
def test_scores_of_grouped_queries_are_sums_over_their_heads(
    policy: str, sizes: tuple[int, int, int, int, int, int]
) -> None:
    q, candidates = case(*sizes)
    scores = create_policy(policy).score(q, candidates)
    means = dequantise(candidates.means, candidates.scales)
    group = sizes[1] // sizes[2]
    for layer in range(2):
        for kv_head in range(sizes[2]):
            per_head = [
                one_head_score(policy, q[layer, :, head], candidates.keys(layer)[kv_head], means[layer, kv_head])
                for head in range(kv_head * group, (kv_head + 1) * group)
            ]
            torch.testing.assert_close(scores[layer, kv_head], torch.tensor(per_head).sum(0), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("policy", ATTENTIVE)
def test_the_chunk_that_a_query_points_at_scores_best(policy: str) -> None:
    q, candidates = case(8, 4, 2, 9, 4, 8)
    keys = torch.stack((candidates.keys(0), candidates.keys(1)))
    keys[1, 0, 6] = 5 * q[1, 0, 0] / q[1, 0, 0].norm()
    keys[1, 1, 2] = 5 * q[1, 0, 2] / q[1, 0, 2].norm()
    scores = create_policy(policy).score(q[:, :1].repeat(1, 2, 1, 1), candidates_of(keys))
    assert scores[1].argmax(-1).tolist() == [6, 2]


def test_a_single_needle_moves_true_attention_and_not_the_means() -> None:
    """One row that the query wants, its neighbours pulling the mean the other way."""
    q = torch.zeros(1, 1, 1, 4)
    q[..., 0] = 20.0
    keys = torch.zeros(1, 1, 3, 4, 4)
    keys[0, 0, 1, :, 0] = torch.tensor([3.0, -2.0, -2.0, -2.0])
    assert int(create_policy("attention").score(q, candidates_of(keys)).argmax()) == 1
    assert int(create_policy("retrieval").score(q, candidates_of(keys)).argmin()) == 1


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8])
def test_gathered_chunks_are_those_asked_for_and_nothing_else_is_written(dtype: torch.dtype) -> None:
    source = torch.arange(2 * 3 * 50 * 4).view(2, 3, 50, 4).to(dtype)
    chunks = torch.tensor([[[0, 2, 9], [1, 2, 3], [4, 8, 9]], [[0, 1, 2], [3, 6, 9], [7, 8, 9]]])
    out = torch.full((2, 3, 16, 4), 7).to(dtype)
    gather(source, chunks, 5, out)
    for layer in range(2):
        for head in range(3):
            rows = [5 * int(number) + i for number in chunks[layer, head] for i in range(5)]
            assert torch.equal(out[layer, head, :15], source[layer, head, rows])
    assert bool((out[:, :, 15] == 7).all())
