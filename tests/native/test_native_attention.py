"""Attention by the native kernels is what PyTorch computes, and so are the rows that they store."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from native_cases import BUILT, blocks, cut, normal, stored, threads, variants
from torch import Tensor

from triforce.attention import reference
from triforce.attention.int8 import dequantise, quantise
from triforce.attention.rope import Rope
from triforce.native import NARROW, ROW_TYPES, Kernels, serves_attention

pytestmark = pytest.mark.skipif(not BUILT, reason="native kernels are not built")


@pytest.mark.parametrize("dtype", ROW_TYPES)
def test_attention_equals_the_reference_over_random_shapes(native: Kernels, dtype: torch.dtype) -> None:
    @given(
        n=st.integers(1, NARROW),
        before=st.integers(0, 700),
        kv_heads=st.integers(1, 4),
        group=st.integers(1, 8),
        dim=st.sampled_from([16, 48, 64, 80, 128, 256]),
        window=st.one_of(st.none(), st.integers(1, 300)),
        scale=st.sampled_from([0.01, 1.0, 30.0]),
        seed=st.integers(0, 99),
    )
    def check(
        n: int, before: int, kv_heads: int, group: int, dim: int, window: int | None, scale: float, seed: int
    ) -> None:
        q = normal(n, kv_heads * group, dim, seed=seed) * scale
        rows = stored(normal(2, kv_heads, n + before + 3, dim, seed=seed + 1), dtype)
        keys, values, scales = cut(*rows, n + before)
        assert serves_attention(q, keys, values)
        expected = reference.attend(q.double(), keys.double(), values.double(), window)
        if scales:
            keys_read, values_read = dequantise(keys, scales[0]).double(), dequantise(values, scales[1]).double()
            expected = reference.attend(q.double(), keys_read, values_read, window)
        atol = 2e-5 * max(scale / 5, 1)  # the rounding of a score grows with it, and is the error of its weight
        ours = native.attend(q, keys, values, window, None, scales)
        torch.testing.assert_close(ours, expected.float(), rtol=2e-4, atol=atol)

    check()


@pytest.mark.parametrize("dtype", ROW_TYPES)
@pytest.mark.parametrize("window", [None, 700])
def test_a_query_among_others_gets_the_bits_that_it_gets_alone(
    native: Kernels, dtype: torch.dtype, window: int | None
) -> None:
    n, rows = 20, 1291  # the new rows straddle blocks, and the rows several splits
    q, held = normal(n, 6, 64), stored(normal(2, 2, rows, 64, seed=1), dtype)
    keys, values, scales = cut(*held, rows)
    together = native.attend(q, keys, values, window, None, scales)
    for i in range(n):
        keys, values, scales = cut(*held, rows - n + 1 + i)
        assert torch.equal(native.attend(q[i : i + 1], keys, values, window, None, scales)[0], together[i])


@pytest.mark.parametrize("dtype", ROW_TYPES)
@pytest.mark.parametrize("heads", [2, 6])
def test_a_query_gets_the_same_bits_however_many_tokens_come_with_it(
    native: Kernels, dtype: torch.dtype, heads: int
) -> None:
    q, held = normal(13, heads, 64), stored(normal(2, 2, 601, 64, seed=1), dtype)
    keys, values, scales = cut(*held, 601 - 12)
    alone = native.attend(q[:1], keys, values, None, None, scales)[0]
    for n in range(2, 14):  # tiles of every size
        keys, values, scales = cut(*held, 601 - 13 + n)
        assert torch.equal(native.attend(q[:n], keys, values, None, None, scales)[0], alone), n


@pytest.mark.skipif("avx512" not in variants(), reason="this processor has no AVX-512")
@pytest.mark.parametrize("dtype", ROW_TYPES)
@pytest.mark.parametrize("dim", [16, 64, 80, 256])
def test_vectors_of_32_and_of_64_bytes_give_the_same_bits(dtype: torch.dtype, dim: int) -> None:
    held = stored(normal(2, 2, 601, dim, seed=1), dtype)
    for n in range(1, 9):
        q, (keys, values, scales) = normal(n, 6, dim), cut(*held, 601)
        narrow, wide = (Kernels(BUILT, name).attend(q, keys, values, None, None, scales) for name in ("avx2", "avx512"))
        assert torch.equal(narrow, wide), n


@pytest.mark.parametrize("n", [65, 200])
@pytest.mark.parametrize("window", [None, 50])
def test_attention_of_many_tokens_equals_the_reference(native: Kernels, n: int, window: int | None) -> None:
    q, held = normal(n, 6, 32), normal(2, 2, n + 130, 32, seed=1)
    expected = reference.attend(q.double(), held[0].double(), held[1].double(), window).float()
    torch.testing.assert_close(native.attend(q, held[0], held[1], window), expected, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("fill", [0.0, 1e-40, 60000.0, -60000.0])
def test_attention_over_extreme_values_equals_the_reference(native: Kernels, fill: float) -> None:
    q, keys = torch.full((3, 4, 64), fill if abs(fill) < 1 else 100.0), torch.full((2, 130, 64), fill)
    values = normal(2, 130, 64)
    keys[:, ::7] *= -1
    expected = reference.attend(q.double(), keys.double(), values.double()).float()
    torch.testing.assert_close(native.attend(q, keys, values), expected, rtol=1e-4, atol=1e-5)


def ancestors_of(parents: list[int]) -> Tensor:
    """[n, n]: which nodes each node of a tree sees, itself included; a root's parent is -1."""
    sees = torch.eye(len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            sees[node] |= sees[parent]
    return sees


def test_attention_of_a_tree_sees_ancestors_only(native: Kernels) -> None:
    parents = [-1, 0, 0, 1, 2, 2, -1]
    n, before = len(parents), 90
    sees = ancestors_of(parents)
    q, rows = normal(n, 6, 32), normal(2, 2, before + n, 32, seed=1)
    out = native.attend(q, rows[0], rows[1], None, sees)
    for node in range(n):
        seen = [*range(before), *(before + int(i) for i in sees[node].nonzero())]
        alone = reference.attend(q[node : node + 1], rows[0][:, seen], rows[1][:, seen])
        torch.testing.assert_close(out[node : node + 1], alone, rtol=1e-4, atol=1e-5)


def test_attention_of_random_trees_equals_the_references(native: Kernels) -> None:
    @given(
        parents=st.lists(st.integers(0, 99), min_size=1, max_size=3 * NARROW),
        before=st.integers(0, 200),
        group=st.integers(1, 4),
        window=st.one_of(st.none(), st.integers(1, 150)),
    )
    @example(parents=[0] * 150, before=0, group=4, window=None)  # met in tiles, whose tokens do not see all before
    def check(parents: list[int], before: int, group: int, window: int | None) -> None:
        n = len(parents)
        sees = ancestors_of([parent % (node + 1) - 1 for node, parent in enumerate(parents)])
        q, (keys, values) = normal(n, 2 * group, 32), normal(2, 2, before + n, 32, seed=1)
        expected = reference.attend(q, keys, values, window, sees)
        torch.testing.assert_close(native.attend(q, keys, values, window, sees), expected, rtol=1e-4, atol=1e-5)

    check()


def test_four_threads_compute_what_one_does(native: Kernels) -> None:
    weights, _ = blocks("Q4_K", 300, 512)
    x, one, four = normal(3, 512), torch.empty(3, 300), torch.empty(3, 300)
    q, (keys, values) = normal(5, 6, 64), normal(2, 2, 5000, 64, seed=1)
    native.linear(x, weights, 12, one)
    with threads(4):
        native.linear(x, weights, 12, four)
        attended = native.attend(q, keys.half(), values.half())
    assert torch.equal(one, four)
    expected = reference.attend(q, keys.half(), values.half())
    torch.testing.assert_close(attended, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [NARROW, 1])
def test_the_most_query_rows_and_the_widest_head_fit(native: Kernels, n: int) -> None:
    q, (keys, values) = normal(n, 512 // n, 256), normal(2, 1, 300, 256, seed=1).half()
    assert serves_attention(q, keys, values)
    torch.testing.assert_close(native.attend(q, keys, values), reference.attend(q, keys, values), rtol=1e-3, atol=1e-4)
    assert not serves_attention(normal(n, 512 // n + 1, 256), keys, values)


@pytest.mark.parametrize("dtype", ROW_TYPES)
@pytest.mark.parametrize("n", [1, 5])
def test_rotated_rows_are_stored_as_pytorch_stores_them(native: Kernels, dtype: torch.dtype, n: int) -> None:
    qkv = normal(n, 4 + 2 + 2, 32)
    q, k, v = qkv.split_with_sizes((4, 2, 2), 1)
    rope = Rope(1e4 ** -(torch.arange(0, 24, 2, dtype=torch.float64) / 24), scale=1.1)  # 24 of 32 dimensions
    table = rope.table(torch.arange(1000, 1000 + n), torch.float32, torch.device("cpu"))
    ours, theirs = torch.zeros(2, 2, 9, 32, dtype=dtype), torch.zeros(2, 2, 9, 32, dtype=dtype)
    our_scales, their_scales = (tuple(torch.zeros(2, 2, 9, 1)) if dtype == torch.int8 else () for _ in range(2))
    rotated = native.rotate_and_store(q, k, v, table, ours[0], ours[1], 3, our_scales)
    expected = reference.rotate_and_store(q, k, v, table, theirs[0], theirs[1], 3, their_scales)
    torch.testing.assert_close(rotated, expected, rtol=1e-6, atol=1e-6)
    tolerance = {torch.bfloat16: (0.01, 1e-6), torch.int8: (0, 1)}.get(dtype, (1e-3, 1e-6))
    torch.testing.assert_close(ours, theirs, rtol=tolerance[0], atol=tolerance[1])
    assert torch.equal(ours[1], theirs[1])
    assert ours[:, :, :3].eq(0).all()
    for our_side, their_side in zip(our_scales, their_scales, strict=True):
        torch.testing.assert_close(our_side, their_side, rtol=1e-6, atol=0)
        assert our_side[:, :3].eq(0).all()


@pytest.mark.parametrize("scale", [0.0, 1e-40, 2e-30, 1.0, 1e30])
def test_rows_of_8_bits_are_pytorchs_to_the_bit(native: Kernels, scale: float) -> None:
    n = 20
    k, v = normal(2, n, 2, 32) * scale
    v[0] = 0
    v[1] = torch.arange(32) * scale * 0.5 * 127 / 15.5  # halves between integers go to the even one
    k[:, :, 7] *= 50
    still = torch.ones(n, 1, 16), torch.zeros(n, 1, 16)
    ours, scales = torch.full((2, 2, n, 32), 7, dtype=torch.int8), torch.full((2, 2, n, 1), 7.0)
    native.rotate_and_store(normal(n, 4, 32), k, v, still, ours[0], ours[1], 0, tuple(scales))
    expected, expected_scales = quantise(torch.stack((k, v)).transpose(1, 2))
    assert torch.equal(ours, expected)
    assert torch.equal(scales, expected_scales)
    error = (dequantise(ours, scales) - torch.stack((k, v)).transpose(1, 2)).abs()
    assert bool((error <= 0.501 * scales + 1e-30).all())


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from Linux's /proc")
def test_a_thread_that_ends_gives_back_what_its_attention_worked_in(native: Kernels) -> None:
    q, rows = normal(NARROW, 6, 64), normal(2, 2, 2048, 64, seed=1)

    def grown(threads: int) -> int:
        before = _resident()
        for _ in range(threads):
            caller = Thread(target=native.attend, args=(q, rows[0], rows[1]))
            caller.start()
            caller.join()
        return _resident() - before

    grown(10)
    assert grown(100) < 25 << 20  # kept, they are 60 MB


def _resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
