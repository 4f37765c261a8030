"""Chunks of rows: what native calls average, score and gather is what PyTorch does."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from triforce.attention import chunks
from triforce.attention.int8 import dequantise, quantise
from triforce.native import kernels, serves_means, serves_scores

pytestmark = pytest.mark.skipif(kernels() is None, reason="native kernels are not built")
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int8]
shapes = st.fixed_dictionaries(
    {
        "layers": st.integers(1, 3),
        "heads": st.integers(1, 3),
        "dim": st.sampled_from([16, 32, 48, 64]),
        "chunk": st.sampled_from([1, 3, 8, 16]),
        "count": st.integers(1, 90),
        "spare": st.integers(0, 20),
        "seed": st.integers(0, 99),
    }
)


def keys_of(dtype: torch.dtype, shape: dict[str, int]) -> tuple[Tensor, Tensor | None]:
    """Keys with spare rows at the end, and 8-bit ones' scales."""
    torch.manual_seed(shape["seed"])
    rows = torch.randn(shape["layers"], shape["heads"], shape["count"] * shape["chunk"] + shape["spare"], shape["dim"])
    return quantise(rows) if dtype == torch.int8 else (rows.to(dtype), None)


def room(shape: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Where means go: a view of a larger tensor, as the sparse cache has it."""
    size = shape["layers"], shape["heads"], shape["count"] + 3
    means = torch.full((*size, shape["dim"]), 99, dtype=torch.int8), torch.full((*size, 1), 99.0)
    return means[0][:, :, : shape["count"]], means[1][:, :, : shape["count"]]


@pytest.mark.parametrize("dtype", DTYPES)
@given(shape=shapes, begin=st.integers(0, 90))
def test_native_means_are_pytorchs(dtype: torch.dtype, shape: dict[str, int], begin: int) -> None:
    begin = min(begin, shape["count"])
    keys, scales = keys_of(dtype, shape)
    assert serves_means(keys)
    native, expected = room(shape), room(shape)
    chunks.store_means(keys, scales, shape["chunk"], begin, native)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "kernels", lambda: None)
        chunks.store_means(keys, scales, shape["chunk"], begin, expected)
    torch.testing.assert_close(native[1], expected[1], rtol=1e-5, atol=1e-30)
    assert (native[0].int() - expected[0].int()).abs().max() <= 1, "a mean between two integers may fall to either"
    assert torch.equal(native[0][:, :, :begin], expected[0][:, :, :begin]), "those before are left as they are"


def test_the_mean_of_a_chunk_does_not_depend_on_how_many_are_made_at_once() -> None:
    shape = {"layers": 2, "heads": 2, "dim": 32, "chunk": 8, "count": 20, "spare": 0, "seed": 1}
    keys, scales = keys_of(torch.float16, shape)
    at_once, one_by_one = room(shape), room(shape)
    chunks.store_means(keys, scales, 8, 0, at_once)
    for i in range(20):
        chunks.store_means(keys, scales, 8, i, (one_by_one[0][:, :, : i + 1], one_by_one[1][:, :, : i + 1]))
    assert torch.equal(at_once[0], one_by_one[0])
    assert torch.equal(at_once[1], one_by_one[1])


@pytest.mark.parametrize("value", [0.0, 1e-38, 6e4])
def test_means_of_extreme_keys_are_finite(value: float) -> None:
    keys, means = (
        torch.full((1, 1, 16, 32), value),
        (torch.empty(1, 1, 2, 32, dtype=torch.int8), torch.empty(1, 1, 2, 1)),
    )
    chunks.store_means(keys, None, 8, 0, means)
    assert torch.isfinite(dequantise(*means)).all()
    torch.testing.assert_close(dequantise(*means), keys[:, :, :2], rtol=1e-5, atol=1e-30)


@given(shape=shapes, group=st.integers(1, 4), num=st.integers(1, 9))
def test_native_scores_are_pytorchs(shape: dict[str, int], group: int, num: int) -> None:
    keys, _ = keys_of(torch.float32, shape)
    means, scales = quantise(keys)
    queries = torch.randn(shape["layers"], num, shape["heads"] * group, shape["dim"])
    assert serves_scores(queries, means)
    native = chunks.score(queries, means, scales)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "kernels", lambda: None)
        torch.testing.assert_close(native, chunks.score(queries, means, scales), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@given(shape=shapes, num=st.integers(0, 20))
def test_native_chunks_are_gathered_as_pytorch_does(dtype: torch.dtype, shape: dict[str, int], num: int) -> None:
    keys, _ = keys_of(dtype, shape)
    chosen = torch.randint(shape["count"], (shape["layers"], shape["heads"], num))
    native, expected = (keys.new_zeros(*keys.shape[:2], num * shape["chunk"] + 1, shape["dim"]) for _ in range(2))
    chunks.gather(keys, chosen, shape["chunk"], native)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunks, "kernels", lambda: None)
        chunks.gather(keys, chosen, shape["chunk"], expected)
    assert torch.equal(native, expected)
