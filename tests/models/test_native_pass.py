"""A pass in one native call gives what the same layers give one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import random_tokens, reference_logits, saved, tiny_model
from torch import Tensor

from triforce.caches.full import FullCache
from triforce.caches.sparse import SparseCache
from triforce.config import Decoding
from triforce.models import build_rope, load_model
from triforce.models.decoder import Decoder
from triforce.native import ROW_TYPES, kernels
from triforce.runner import ModelRunner

pytestmark = pytest.mark.skipif(kernels() is None, reason="native kernels are not built")

CASES = {
    "llama": ("llama", {"head_dim": 16}),
    "llama, biases everywhere": ("llama", {"head_dim": 16, "attention_bias": True, "mlp_bias": True}),
    "mistral, window": ("mistral", {"head_dim": 16, "sliding_window": 7}),
    "qwen2": ("qwen2", {"hidden_size": 64}),
    "qwen3": ("qwen3", {"head_dim": 16}),
}


class Counted(FullCache):
    """Counts the layers that attend by themselves."""

    attended = 0

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, wanted: int) -> Tensor:
        self.attended += 1
        return super().attend(layer, q, k, v, wanted)


def cache_of(decoder: Decoder, dtype: torch.dtype) -> Counted:
    return Counted(decoder.cache_shape, build_rope(decoder.config, None), num_queries=64, dtype=dtype)


@pytest.mark.parametrize("dtype", ROW_TYPES)
@pytest.mark.parametrize("case", CASES)
def test_logits_and_rows_equal_those_layer_by_layer(case: str, dtype: torch.dtype, tmp_path: Path) -> None:
    family, settings = CASES[case]
    decoder = load_model(saved(tiny_model(family, settings), tmp_path), device="cpu")
    assert decoder._native_pass is not None
    tokens = np.asarray(random_tokens(90), dtype=np.int32)
    fast, slow = cache_of(decoder, dtype), cache_of(decoder, dtype)
    for end, num_rows in ((70, 3), (71, 1), (76, 5), (90, 2)):
        whole, ours = decoder._native_pass, ModelRunner("fast", decoder, fast).logits(tokens[:end], num_rows)
        decoder._native_pass = None
        theirs = ModelRunner("slow", decoder, slow).logits(tokens[:end], num_rows)
        decoder._native_pass = whole
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(fast.keys[:, :, :90], slow.keys[:, :, :90], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(fast.values[:, :, :90], slow.values[:, :, :90], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(fast.queries(90, 20), slow.queries(90, 20), rtol=1e-4, atol=1e-4)
    assert fast.attended < slow.attended


@pytest.mark.parametrize(
    ("settings", "has_pass"),
    [
        pytest.param({"head_dim": 12, "num_attention_heads": 8}, False, id="heads of no whole vectors"),
        pytest.param(
            {"head_dim": 16, "num_attention_heads": 16, "num_key_value_heads": 1}, True, id="16 heads to a KV head"
        ),
    ],
)
def test_what_native_attention_does_not_serve_goes_layer_by_layer(
    settings: dict[str, int], has_pass: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model("llama", settings)
    path = saved(model, tmp_path)
    decoder = load_model(path, device="cpu")
    assert (decoder._native_pass is not None) == decoder.reads_half_rows == has_pass
    kernels.cache_clear()
    monkeypatch.setenv("TRIFORCE_NATIVE", "0")
    plain = load_model(path, device="cpu")
    expected = cache_of(plain, torch.float32)
    tokens = np.asarray(random_tokens(64), dtype=np.int32)
    theirs = ModelRunner("plain", plain, expected).logits(tokens, 64)
    kernels.cache_clear()
    monkeypatch.delenv("TRIFORCE_NATIVE")

    cache = cache_of(decoder, torch.float32)
    runner = ModelRunner("native", decoder, cache)
    ours = torch.cat([runner.logits(tokens[:60], 60), runner.logits(tokens, 4)])
    assert cache.attended == (2 if has_pass else 4)  # the pass over 60 tokens has 960 query rows of one KV head
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours, reference_logits(model, tokens.tolist()), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(cache.keys[:, :, :64], expected.keys[:, :, :64], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(cache.values[:, :, :64], expected.values[:, :, :64], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(cache.queries(64, 64), expected.queries(64, 64), rtol=1e-4, atol=1e-5)


def test_a_sparse_cache_that_holds_everything_gives_the_full_caches_logits(tmp_path: Path) -> None:
    decoder = load_model(saved(tiny_model("llama", {"head_dim": 16}), tmp_path), device="cpu")
    full = cache_of(decoder, torch.float16)
    sparse = SparseCache(full, Decoding(budget=128, chunk=8, sinks=16, recent=64, stride=8))
    tokens = np.asarray(random_tokens(60), dtype=np.int32)
    target, middle = ModelRunner("target", decoder, full), ModelRunner("sparse", decoder, sparse)
    target.prefill(tokens[:50])
    torch.testing.assert_close(middle.logits(tokens, 4), target.logits(tokens, 4), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", ROW_TYPES)
@pytest.mark.parametrize("case", CASES)
def test_verified_logits_have_the_bits_of_plain_decodings(case: str, dtype: torch.dtype, tmp_path: Path) -> None:
    family, settings = CASES[case]
    decoder = load_model(saved(tiny_model(family, settings), tmp_path), device="cpu")
    tokens = np.asarray(random_tokens(90), dtype=np.int32)
    verified, plain = cache_of(decoder, dtype), cache_of(decoder, dtype)
    for cache in (verified, plain):
        ModelRunner("", decoder, cache).prefill(tokens[:70])
    for end, num_rows in ((71, 1), (73, 2), (80, 7), (90, 10)):
        together = ModelRunner("", decoder, verified).logits(tokens[:end], num_rows)
        alone = [ModelRunner("", decoder, plain).logits(tokens[:i], 1) for i in range(end - num_rows + 1, end + 1)]
        assert torch.equal(together, torch.cat(alone))
    assert torch.equal(verified.keys[:, :, :89], plain.keys[:, :, :89])
