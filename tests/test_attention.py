"""The reference backend against attention by its definition, and RoPE against complex multiplication."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_attention import slow_attend

from triforce.attention.reference import attend
from triforce.attention.rope import Rope, Rotation, rotate


@settings(max_examples=60)
@given(
    n=st.integers(1, 6),
    before=st.integers(0, 12),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 4),
    dim=st.sampled_from([2, 8]),
    window=st.sampled_from([None, 1, 2, 5, 100]),
    seed=st.integers(0, 1000),
)
def test_attention_equals_its_definition(
    n: int, before: int, kv_heads: int, group: int, dim: int, window: int | None, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(n, kv_heads * group, dim, generator=generator, dtype=torch.float64)
    keys, values = torch.randn(2, kv_heads, before + n, dim, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(attend(q, keys, values, window), slow_attend(q, keys, values, window))


@pytest.mark.parametrize("window", [None, 7, 80])
@pytest.mark.parametrize(("n", "before"), [(64, 0), (65, 0), (70, 9)])
def test_attention_equals_its_definition_where_many_rows_take_another_path(
    n: int, before: int, window: int | None
) -> None:
    q = torch.randn(n, 4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    keys, values = torch.randn(2, 2, n + before, 2, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(attend(q, keys, values, window), slow_attend(q, keys, values, window))


@pytest.mark.parametrize(
    ("rows", "queries", "tolerance"),
    [
        (torch.float32, torch.float32, 1e-5),
        (torch.bfloat16, torch.bfloat16, 3e-2),
        (torch.float16, torch.float32, 3e-3),
        (torch.float32, torch.float16, 3e-3),
    ],
)
@pytest.mark.parametrize("n", [1, 5, 65])
def test_queries_and_rows_may_have_other_dtypes(
    rows: torch.dtype, queries: torch.dtype, tolerance: float, n: int
) -> None:
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(n, 4, 8, generator=generator).to(queries)
    keys, values = torch.randn(2, 2, n + 6, 8, generator=generator).to(rows)
    out = attend(q, keys, values)
    assert out.dtype == queries
    torch.testing.assert_close(out.double(), slow_attend(q, keys, values), atol=tolerance, rtol=tolerance)


def test_masks_of_one_shape_are_not_taken_for_those_of_another() -> None:
    """The mask is kept from call to call: interleaved shapes must each get their own."""
    generator = torch.Generator().manual_seed(4)
    for n, rows, group, window in [(2, 6, 2, None), (2, 6, 2, 3), (3, 6, 2, None), (2, 7, 1, None), (2, 6, 2, None)]:
        q = torch.randn(n, group, 4, generator=generator, dtype=torch.float64)
        keys, values = torch.randn(2, 1, rows, 4, generator=generator, dtype=torch.float64)
        torch.testing.assert_close(attend(q, keys, values, window), slow_attend(q, keys, values, window))


@pytest.mark.parametrize("n", [1, 6, 65])
@pytest.mark.parametrize("window", [None, 4])
def test_a_node_of_a_tree_sees_its_ancestors_among_the_new_rows(n: int, window: int | None) -> None:
    generator = torch.Generator().manual_seed(8)
    before = 5
    ancestors = torch.rand(n, n, generator=generator).lt(0.3).tril() | torch.eye(n, dtype=torch.bool)
    q = torch.randn(n, 4, 2, generator=generator, dtype=torch.float64)
    keys, values = torch.randn(2, 2, before + n, 2, generator=generator, dtype=torch.float64)
    out = attend(q, keys, values, window, ancestors)
    for node in range(n):
        end = before + node + 1
        seen = torch.cat((torch.ones(before, dtype=torch.bool), ancestors[node]))
        seen[: end - window if window is not None and end > window else 0] = False
        alone = slow_attend(q[node : node + 1], keys[:, seen], values[:, seen])
        torch.testing.assert_close(out[node : node + 1], alone)


def test_rotation_is_multiplication_by_a_complex_phase() -> None:
    inv_freq = torch.tensor([1.0, 0.1, 0.01], dtype=torch.float64)
    x = torch.randn(5, 2, 6, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    positions = torch.tensor([0, 1, 7, 1000, 131072])
    phase = torch.exp(1j * positions[:, None] * inv_freq)[:, None]
    turned = torch.complex(x[..., :3], x[..., 3:]) * phase * 1.25
    expected = torch.cat((turned.real, turned.imag), -1)
    table = Rope(inv_freq, 1.25).table(positions, torch.float64, torch.device("cpu"))
    torch.testing.assert_close(rotate(x, table), expected)


def test_dimensions_past_the_rotary_ones_pass_through() -> None:
    x = torch.randn(3, 2, 8, generator=torch.Generator().manual_seed(6))
    table = Rope(torch.ones(2, dtype=torch.float64)).table(torch.arange(3), torch.float32, torch.device("cpu"))
    turned = rotate(x, table)
    assert torch.equal(turned[..., 4:], x[..., 4:])
    torch.testing.assert_close(turned[..., :4], rotate(x[..., :4], table))


def test_the_kept_table_follows_start_and_length() -> None:
    rope = Rope(torch.tensor([1.0, 0.1], dtype=torch.float64))
    rotation = Rotation(rope)
    x = torch.randn(4, 1, 4, generator=torch.Generator().manual_seed(7))
    for start, n in [(0, 4), (0, 3), (2, 3), (2, 3), (0, 4)]:
        table = rope.table(torch.arange(start, start + n), torch.float32, torch.device("cpu"))
        assert torch.equal(rotate(x[:n], rotation.at(start, n, x.dtype, x.device)), rotate(x[:n], table))


def test_the_kept_table_follows_dtype_and_device() -> None:
    rotation = Rotation(Rope(torch.tensor([1.0, 0.1], dtype=torch.float64)))
    for dtype, device in [(torch.float32, "cpu"), (torch.float16, "cpu"), (torch.float16, "meta")]:
        for side in rotation.at(0, 3, dtype, torch.device(device)):
            assert (side.dtype, side.device.type) == (dtype, device)
