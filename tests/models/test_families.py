"""Every family computes what transformers computes, on random tiny models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from plain_cache import PlainCache, logits_of, plain_cache
from tiny_models import random_tokens, reference_logits, saved, tiny_model

from triforce.caches.base import Segment
from triforce.models import build_rope, load_model

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, one KV head per head": ("llama", {"num_key_value_heads": 4}),
    "llama, one KV head": ("llama", {"num_key_value_heads": 1}),
    "llama, wide heads": ("llama", {"head_dim": 24}),
    "llama, biases everywhere": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
    "mistral, window": ("mistral", {"sliding_window": 7, "head_dim": 12}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 16}),
    "qwen3, biases": ("qwen3", {"head_dim": 16, "attention_bias": True, "tie_word_embeddings": True}),
}


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("case", CASES)
def test_logits_equal_those_of_transformers(case: str, tmp_path: Path) -> None:
    model = tiny_model(*CASES[case])
    decoder = load_model(saved(model, tmp_path), device="cpu")
    tokens = random_tokens(24)
    torch.testing.assert_close(logits_of(decoder, tokens), reference_logits(model, tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", ["llama", "mistral, window", "qwen3"])
def test_passes_over_a_growing_cache_equal_one_pass(case: str, tmp_path: Path) -> None:
    decoder = load_model(saved(tiny_model(*CASES[case]), tmp_path), device="cpu")
    tokens, cache = random_tokens(20), plain_cache(decoder)
    parts = [tokens[:9], tokens[9:10], tokens[10:]]
    hidden = [decoder(torch.tensor(part), [Segment(cache, len(part), len(part))]) for part in parts]
    torch.testing.assert_close(decoder.logits(torch.cat(hidden)), logits_of(decoder, tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3"])
def test_a_ragged_batch_equals_its_sequences_one_by_one(case: str, tmp_path: Path) -> None:
    decoder = load_model(saved(tiny_model(*CASES[case]), tmp_path), device="cpu")
    sequences = [random_tokens(length, seed=length) for length in (5, 1, 11)]
    segments = [Segment(plain_cache(decoder), len(tokens), len(tokens)) for tokens in sequences]
    batch = torch.tensor([token for tokens in sequences for token in tokens])
    together = decoder.logits(decoder(batch, segments))
    apart = torch.cat([logits_of(decoder, tokens) for tokens in sequences])
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("each_backend")
@pytest.mark.parametrize("case", ["llama", "qwen2", "qwen3"])
def test_states_that_are_not_wanted_leave_the_others_and_the_caches_alone(case: str, tmp_path: Path) -> None:
    decoder = load_model(saved(tiny_model(*CASES[case]), tmp_path), device="cpu")
    # Together they take wide products; the rows that are wanted of them narrow ones.
    sequences = [random_tokens(length, seed=length) for length in (70, 9, 30)]
    caches = [plain_cache(decoder) for _ in sequences]
    pieces = zip(caches, sequences, (2, 0, 30), strict=True)
    batch = torch.tensor([token for tokens in sequences for token in tokens])
    some = decoder(batch, [Segment(cache, len(tokens), wanted) for cache, tokens, wanted in pieces])
    alone = [logits_of(decoder, tokens) for tokens in sequences]
    torch.testing.assert_close(decoder.logits(some), torch.cat((alone[0][-2:], alone[2])), rtol=1e-4, atol=1e-4)
    for cache, tokens in zip(caches, sequences, strict=True):
        after = decoder(torch.tensor([5]), [Segment(cache, 1, 1)])
        expected = logits_of(decoder, [*tokens, 5])[-1:]
        torch.testing.assert_close(decoder.logits(after), expected, rtol=1e-4, atol=1e-4)


def test_the_last_layer_attends_only_for_states_that_are_wanted(tmp_path: Path) -> None:
    decoder, attended = load_model(saved(tiny_model("llama"), tmp_path), device="cpu"), list[int]()

    class Counting(PlainCache):
        def attend(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, wanted: int) -> torch.Tensor:
            attended.append(wanted)
            return super().attend(layer, q, k, v, wanted)

    cache = Counting(decoder, build_rope(decoder.config, None))
    assert decoder(torch.tensor(random_tokens(90)), [Segment(cache, 90, 0)]).shape == (0, decoder.config.hidden_size)
    assert attended == [90] * (decoder.config.num_layers - 1) + [0]


def test_sharded_weights_load_like_whole_ones(tmp_path: Path) -> None:
    model, tokens = tiny_model("llama"), random_tokens(12)
    shards = saved(model, tmp_path, shard="20KB")
    assert len(list(shards.glob("*.safetensors"))) > 2
    decoder = load_model(shards, device="cpu")
    torch.testing.assert_close(logits_of(decoder, tokens), reference_logits(model, tokens), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.1), ("float16", 0.02)])
def test_sixteen_bit_weights_stay_near_float32(dtype: str, tolerance: float, tmp_path: Path, each_backend: str) -> None:
    model, tokens = tiny_model("qwen3", {"head_dim": 16}), random_tokens(12)
    decoder = load_model(saved(model, tmp_path), dtype=dtype, device="cpu")
    logits, expected = logits_of(decoder, tokens), reference_logits(model, tokens)
    assert decoder.dtype == (torch.float32 if each_backend == "native" else getattr(torch, dtype))
    assert logits.dtype == torch.float32
    assert float((logits - expected).norm() / expected.norm()) < tolerance


def test_the_cache_shape_tells_what_a_cache_needs(tmp_path: Path) -> None:
    shape = load_model(saved(tiny_model(*CASES["mistral, window"]), tmp_path), device="cpu").cache_shape
    assert (shape.num_layers, shape.num_heads, shape.num_kv_heads) == (2, 4, 2)
    assert (shape.head_dim, shape.sliding_window) == (12, 7)
