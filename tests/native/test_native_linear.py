"""Linear layers, norms and gates by the native kernels are what PyTorch computes on the same weights."""

from __future__ import annotations

import gguf
import pytest
import torch
from native_cases import BUILT, FORMATS, blocks, normal, threads
from torch import Tensor

from triforce.attention.rope import Rope
from triforce.models import matrix
from triforce.models.matrix import Filed, FiledMatrix
from triforce.native import NARROW, Kernels

pytestmark = pytest.mark.skipif(not BUILT, reason="native kernels are not built")


@pytest.mark.parametrize("kind", FORMATS)
def test_weights_have_the_values_of_the_gguf_library(native: Kernels, kind: str) -> None:
    weights, expected = blocks(kind, 7, 512)
    ours = native.dequantise(weights, int(gguf.GGMLQuantizationType[kind]), 512)
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 8, 9, 31, NARROW])
@pytest.mark.parametrize("width", [768, 1792])  # one span, and spans that begin within a block of 256
def test_a_linear_layer_equals_the_product_with_its_values(native: Kernels, kind: str, n: int, width: int) -> None:
    weights, values = blocks(kind, 37, width, seed=n)
    number = int(gguf.GGMLQuantizationType[kind])
    x, bias, start = normal(n, width), normal(37), normal(n, 40)
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


@pytest.mark.parametrize("n", [NARROW, NARROW + 1, 200])
@pytest.mark.parametrize("at_once", [1, 64 * 5, 2**21])
def test_a_filed_matrix_is_the_dequantised_one_however_many_rows_are_floats_at_a_time(
    native: Kernels, monkeypatch: pytest.MonkeyPatch, n: int, at_once: int
) -> None:
    monkeypatch.setattr(matrix, "_WIDE_WEIGHTS", at_once)
    (first, a), (second, b) = blocks("Q4_1", 13, 64), blocks("Q8_0", 8, 64, seed=1)
    bias, x = normal(21, seed=2), normal(n, 64, seed=3)
    filed = FiledMatrix(
        native,
        [Filed(first, int(gguf.GGMLQuantizationType.Q4_1)), Filed(second, int(gguf.GGMLQuantizationType.Q8_0))],
        64,
        bias,
    )
    expected = (x.double() @ torch.cat((a, b)).double().t()).float() + bias
    tolerance = {"rtol": 1e-4, "atol": 1e-5 * float(expected.abs().max())}
    torch.testing.assert_close(filed.apply(x), expected, **tolerance)
    y = normal(n, 21, seed=4)
    filed.add_to(added := y.clone(), x)
    torch.testing.assert_close(added, y + expected, **tolerance)


@pytest.mark.parametrize(("n", "dim"), [(5, 16), (5, 24), (5, 33), (5, 576), (61, 576), (523, 64)])
def test_norm_and_gate_equal_pytorchs_for_one_thread_and_for_several(native: Kernels, n: int, dim: int) -> None:
    x, weight = normal(n, dim) * 10, normal(dim, seed=1)
    norm = torch.nn.functional.rms_norm(x, (dim,), weight, 1e-5)
    both = torch.cat((x, normal(n, dim, seed=2)), -1)
    gated = torch.nn.functional.silu(x) * both[:, dim:]
    with threads(3):
        torch.testing.assert_close(native.rms_norm(x, weight, 1e-5), norm, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(native.silu_mul(both), gated, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("value", [0.0, -1e30, 1e30, -88.0, 88.0])
def test_the_gate_survives_extreme_values(native: Kernels, value: float) -> None:
    both = torch.cat((torch.full((1, 16), value), torch.ones(1, 16)), -1)
    torch.testing.assert_close(native.silu_mul(both), torch.nn.functional.silu(both[:, :16]), rtol=1e-5, atol=1e-30)


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
