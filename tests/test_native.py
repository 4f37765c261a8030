"""The native kernels compute what PyTorch computes, in every variant that this processor runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from triforce.attention import reference
from triforce.attention.int8 import dequantise, quantise
from triforce.attention.rope import Rope
from triforce.errors import UsageError
from triforce.models.matrix import Filed, FiledMatrix
from triforce.native import NARROW, ROW_TYPES, Kernels, kernels, library, serves_attention, serves_means, why_missing

BUILT = library._built()
FORMATS = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]


def variants() -> list[str]:
    """The names of all that this processor runs."""
    names = []
    for name in ("portable", "avx2", "avx512", "neon") if BUILT else ():
        with suppress(UsageError):
            names.append(Kernels(BUILT, name).variant)
    return names


pytestmark = pytest.mark.skipif(not BUILT, reason="native kernels are not built")


@pytest.fixture(params=variants())
def native(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    assert BUILT
    yield Kernels(BUILT, request.param)
    Kernels(BUILT)  # the choice is the library's: back to the best


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stored(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Sequence[Tensor]]:
    """Rows [2, kv_heads, rows, dim] as a cache of `dtype` keeps them, and their scales if it has any."""
    if dtype != torch.int8:
        return rows.to(dtype), ()
    held, scales = quantise(rows)
    return held, tuple(scales)


def cut(rows: Tensor, scales: Sequence[Tensor], end: int) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """The first `end` keys and values, and their scales."""
    return rows[0, :, :end], rows[1, :, :end], tuple(side[:, :end] for side in scales)


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


def test_pytorchs_defaults_do_not_matter(native: Kernels) -> None:
    weights, values = blocks("Q4_0", 8, 64)
    x, gate_up, rows = normal(2, 64), normal(2, 64), normal(2, 2, 9, 16)
    q, k = normal(2, 4, 16), normal(2, 2, 16)
    table = Rope(torch.ones(8, dtype=torch.float64)).table(torch.arange(2), torch.float32, torch.device("cpu"))

    def results() -> list[Tensor]:
        return [
            native.attend(q, rows[0], rows[1]),
            native.rotate_and_store(q, k, k, table, rows[0].clone(), rows[1].clone(), 3),
            native.rms_norm(x, x[0], 1e-5),
            native.silu_mul(gate_up),
            native.dequantise(weights, 2, 64),
            FiledMatrix(native, [Filed(weights, 2)], 64).apply(x),
        ]

    expected, default = results(), torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    torch.set_default_device("meta")
    try:
        found = results()
    finally:
        torch.set_default_dtype(default)
        torch.set_default_device(None)
    torch.testing.assert_close(expected[4], values)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)
        assert (ours.dtype, ours.device) == (theirs.dtype, theirs.device)


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


def blocks(kind: str, rows: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random rows in a format, and their values by the gguf library."""
    number = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[number]
    random = np.random.default_rng(seed)
    if kind in ("F32", "F16", "BF16"):
        values = torch.from_numpy(random.normal(size=(rows, width)).astype(np.float32))
        values = values.to({"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind])
        return values.contiguous().view(torch.uint8), values.float()
    raw = random.integers(0, 256, (rows, width // block, size), dtype=np.uint8)
    scales = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q4_1": (0, 2), "Q5_1": (0, 2)}.get(kind, (0,))
    for at in scales:  # any bits make weights, but scales must be finite halves
        raw[:, :, at : at + 2] = random.normal(size=(rows, width // block, 1)).astype(np.float16).view(np.uint8)
    raw = raw.reshape(rows, -1)
    return torch.from_numpy(raw), torch.from_numpy(gguf.quants.dequantize(raw, number).reshape(rows, width))


@pytest.mark.parametrize("kind", FORMATS)
def test_weights_have_the_values_of_the_gguf_library(native: Kernels, kind: str) -> None:
    weights, expected = blocks(kind, 7, 512)
    ours = native.dequantise(weights, int(gguf.GGMLQuantizationType[kind]), 512)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 9, 31, NARROW])
def test_a_linear_layer_equals_the_product_with_its_values(native: Kernels, kind: str, n: int) -> None:
    weights, values = blocks(kind, 37, 768, seed=n)
    number = int(gguf.GGMLQuantizationType[kind])
    x, bias, start = normal(n, 768), normal(37), normal(n, 40)
    product = (x.double() @ values.double().t()).float()
    tolerance = {"rtol": 1e-4, "atol": 1e-5 * float(product.abs().max())}
    y = start.clone()
    native.linear(x, weights, number, y[:, 2:39], bias=bias)
    torch.testing.assert_close(y[:, 2:39], product + bias, **tolerance)
    native.linear(x, weights, number, y[:, 2:39], accumulate=True)
    torch.testing.assert_close(y[:, 2:39], 2 * product + bias, **tolerance)
    assert torch.equal(y[:, [0, 1, 39]], start[:, [0, 1, 39]])


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("width", [768, 1792])
def test_a_row_of_a_linear_layer_among_others_gets_the_bits_that_it_gets_alone(
    native: Kernels, kind: str, width: int
) -> None:
    weights, _ = blocks(kind, 37, width)
    number = int(gguf.GGMLQuantizationType[kind])
    x = normal(21, width)
    alone, together = torch.empty(21, 37), torch.empty(21, 37)
    for i in range(21):
        native.linear(x[i : i + 1], weights, number, alone[i : i + 1])
    for n in (2, 3, 4, 5, 6, 7, 8, 21):
        native.linear(x[:n], weights, number, together[:n])
        assert torch.equal(together[:n], alone[:n]), n


@pytest.mark.parametrize("dim", [16, 24, 33, 576])
def test_norm_and_gate_equal_pytorchs(native: Kernels, dim: int) -> None:
    x, weight = normal(5, dim) * 10, normal(dim, seed=1)
    norm = torch.nn.functional.rms_norm(x, (dim,), weight, 1e-5)
    torch.testing.assert_close(native.rms_norm(x, weight, 1e-5), norm, rtol=1e-5, atol=1e-6)
    both = torch.cat((x, normal(5, dim, seed=2)), -1)
    gated = torch.nn.functional.silu(x) * both[:, dim:]
    torch.testing.assert_close(native.silu_mul(both), gated, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, -1e30, 1e30, -88.0, 88.0])
def test_the_gate_survives_extreme_values(native: Kernels, value: float) -> None:
    both = torch.cat((torch.full((1, 16), value), torch.ones(1, 16)), -1)
    torch.testing.assert_close(native.silu_mul(both), torch.nn.functional.silu(both[:, :16]), rtol=1e-5, atol=1e-30)


def test_misshaped_arguments_are_refused_before_any_memory_is_touched(native: Kernels) -> None:
    weights, _ = blocks("Q4_1", 8, 64)
    y = torch.zeros(1, 8)
    for x, kind, out in (
        (torch.zeros(1, 96), 3, y),  # another width
        (torch.zeros(1, 64), 8, y),  # another format
        (torch.zeros(1, 64), 99, y),  # no format
        (torch.zeros(1, 64), 3, torch.zeros(1, 9)),  # another height
        (torch.zeros(1, 64).double(), 3, y),
        (torch.zeros(NARROW + 1, 64), 3, torch.zeros(NARROW + 1, 8)),
    ):
        with pytest.raises(AssertionError):
            native.linear(x, weights, kind, out)
    with pytest.raises(AssertionError):
        native.attend(torch.zeros(3, 4, 64), torch.zeros(2, 2, 64), torch.zeros(2, 2, 64))
    with pytest.raises(AssertionError):
        native.attend(torch.zeros(1, 4, 60), torch.zeros(2, 2, 60), torch.zeros(2, 2, 60))


def test_rows_and_tables_that_c_could_not_read_are_refused(native: Kernels) -> None:
    q, k, rows = normal(2, 4, 32), normal(2, 2, 32), normal(2, 2, 9, 32)
    table = Rope(torch.ones(8, dtype=torch.float64)).table(torch.arange(2), torch.float32, torch.device("cpu"))
    cos, sin = table
    wide = torch.ones(2, 1, 34)
    for bad_table, keys, values, row in (
        (table, rows[0], rows[1], -1),
        (table, rows[0], rows[1], 8),
        (table, rows[0], rows[1].half(), 0),
        (table, rows[0], rows[1, :, :8], 0),
        (table, rows[0].double(), rows[1].double(), 0),
        ((cos, sin.double()), rows[0], rows[1], 0),
        ((cos, sin[..., :8]), rows[0], rows[1], 0),
        ((cos[..., :7], sin[..., :7]), rows[0], rows[1], 0),
        ((torch.cat(table, -1)[..., ::2], sin), rows[0], rows[1], 0),
        ((wide, wide), rows[0], rows[1], 0),
    ):
        with pytest.raises(AssertionError):
            native.rotate_and_store(q, k, k, bad_table, keys, values, row)
    with pytest.raises(AssertionError):
        native.attend(q, rows[0], rows[1], None, torch.ones(2, 2))
    held, scales = quantise(rows)
    good = tuple(scales)
    native.attend(q, held[0], held[1], None, None, good)
    for keys, values, bad_scales in (
        (held[0], held[1], ()),
        (held[0], held[1], good[:1]),
        (rows[0], rows[1], good),
        (held[0], held[1], tuple(side[:, :8] for side in good)),
        (held[0], held[1], tuple(side.double() for side in good)),
        (held[0], held[1], tuple(scales.transpose(0, 1).contiguous().transpose(0, 1))),
        (held[0, :, :8], held[1, :, :8], tuple(side[:, :8].clone() for side in good)),
    ):
        with pytest.raises(AssertionError):
            native.attend(q, keys, values, None, None, bad_scales)
        with pytest.raises(AssertionError):
            native.rotate_and_store(q, k, k, table, keys, values, 0, bad_scales)
    with pytest.raises(AssertionError):
        native.dequantise(torch.zeros(2, 18, dtype=torch.int8), 2, 32)
    with pytest.raises(AssertionError):
        native.rms_norm(normal(2, 4), normal(8)[::2], 1e-5)
    with pytest.raises(AssertionError):
        native.gather_chunks(
            rows, torch.tensor([[[0], [2]], [[0], [0]]]), 4, torch.empty(2, 2, 4, 32)
        )  # 9 rows, no third
    with pytest.raises(AssertionError):
        native.gather_chunks(rows, torch.zeros(2, 2, 2, dtype=torch.int64), 4, torch.empty(2, 2, 7, 32))
    with pytest.raises(AssertionError):
        native.score_chunks(normal(2, 3, 4, 32), held, scales[:, :, :8])
    with pytest.raises(AssertionError):
        native.score_chunks(normal(2, 3, 5, 32), held, scales)
    room = torch.empty(2, 2, 2, 32, dtype=torch.int8), torch.empty(2, 2, 2, 1)
    native.mean_chunks(rows, None, 4, 0, room)
    for keys, key_scales, chunk, begin, out in (
        (rows, None, 5, 0, room),  # 9 rows, no 10
        (rows, None, 4, 3, room),
        (rows, None, 4, -1, room),
        (rows, scales, 4, 0, room),
        (held, None, 4, 0, room),
        (rows[:, :1], None, 4, 0, room),
        (rows.transpose(0, 1), None, 4, 0, room),
        (rows, None, 4, 0, (room[0].float(), room[1])),
        (rows, None, 4, 0, (room[0], room[1].double())),
    ):
        with pytest.raises(AssertionError):
            native.mean_chunks(keys, key_scales, chunk, begin, out)
    for chunk in (0, -4):
        with pytest.raises(AssertionError):
            native.mean_chunks(rows, None, chunk, 0, room)
    shifted = torch.zeros(8000).as_strided((1, 2, 100, 32), (6432, 3216, 32, 1))
    assert not serves_means(shifted), "heads are not whole rows apart"
    with pytest.raises(AssertionError):
        native.gather_chunks(rows, torch.ones(2, 2, 1, dtype=torch.int64), -(10**6), rows.clone())
    for call in (
        lambda: native.mean_chunks(rows, None, 4, 0, (room[0].to("meta"), room[1].to("meta"))),
        lambda: native.rms_norm(normal(2, 8).to("meta"), normal(8), 1e-5),
        lambda: native.silu_mul(normal(2, 8).to("meta")),
        lambda: native.dequantise(torch.zeros(2, 18, dtype=torch.uint8, device="meta"), 2, 32),
        lambda: native.attend(normal(1, 4, 32), normal(0, 9, 32), normal(0, 9, 32)),
        lambda: native.row_bytes(2**32, 256),
    ):
        with pytest.raises(AssertionError):
            call()
    assert not serves_means(rows[..., :16])
    assert not serves_attention(normal(2, 5, 32), rows[0], rows[1])
    assert not serves_attention(normal(2, 4, 16), rows[0], rows[1])
    assert not serves_attention(q, rows[0], rows[1, :, :8])
    assert not serves_attention(q, rows[0].to("meta"), rows[1].to("meta"))


def test_the_environment_turns_the_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels.cache_clear()
    monkeypatch.setenv("TRIFORCE_NATIVE", "0")
    assert kernels() is None
    kernels.cache_clear()
    monkeypatch.setenv("TRIFORCE_NATIVE", "portable")
    found = kernels()
    assert found is not None
    assert found.variant == "portable"
    kernels.cache_clear()
    monkeypatch.setenv("TRIFORCE_NATIVE", "mmx")
    with pytest.raises(UsageError, match="does not run native kernels called 'mmx': unset TRIFORCE_NATIVE"):
        kernels()
    monkeypatch.delenv("TRIFORCE_NATIVE")
    assert kernels() is not None


@pytest.mark.parametrize("what", ["no library", "another version"])
def test_a_library_that_cannot_be_used_leaves_pytorch_and_says_why(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if what == "no library":
        broken = tmp_path / "_kernels.so"
        broken.write_bytes(b"not a library")
        monkeypatch.setattr(library, "_built", lambda: broken)
    else:
        monkeypatch.setattr(library.structs, "SIZES", (*library.structs.SIZES, -1, 0))
    kernels.cache_clear()
    assert kernels() is None
    assert "native kernels cannot be loaded (" in why_missing()
    assert ("another version" in why_missing()) == (what == "another version")
    assert why_missing().endswith("): install triforce again")
    kernels.cache_clear()
