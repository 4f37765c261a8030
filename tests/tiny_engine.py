"""An engine over a small random model of the 256 bytes: the real decoder, caches, tokenizer and text stream."""

from __future__ import annotations

import tokenizers
import torch
from torch import Tensor

from triforce.engine import Engine
from triforce.models.config import ModelConfig
from triforce.models.decoder import Decoder
from triforce.models.family import HUGGINGFACE_NAMES
from triforce.models.matrix import Filed
from triforce.models.weights import Placement, filed, gather
from triforce.text.tokenizer import Tokenizer


class RandomSource:
    """A checkpoint of random weights, the same for the same seed; sharp enough that laws are far from uniform."""

    names = HUGGINGFACE_NAMES

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if "norm" in name:
            return torch.ones(shape, dtype=dtype)
        return (torch.randn(shape, generator=self._generator) * 2 / shape[-1] ** 0.5).to(dtype)

    def read_filed(self, name: str, shape: tuple[int, ...]) -> Filed:
        return filed(self.read(name, shape, torch.float32))


def tiny_decoder(seed: int = 0, eos_token_ids: tuple[int, ...] = (), max_position: int = 512) -> Decoder:
    config = ModelConfig(
        family="llama",
        vocab_size=256,
        hidden_size=64,
        intermediate_size=96,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        norm_eps=1e-5,
        rope_theta=10000.0,
        rope_scaling=None,
        max_position=max_position,
        original_max_position=max_position,
        tied_embeddings=True,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        sliding_window=None,
        eos_token_ids=eos_token_ids,
    )
    return Decoder(config, gather(config, RandomSource(seed), Placement(torch.device("cpu"), torch.float32)))


def byte_tokenizer(special: tuple[int, ...] = ()) -> Tokenizer:
    """One token a byte; `special` ones add nothing to a text."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens([tokenizers.AddedToken(alphabet[i], normalized=False) for i in special])
    return Tokenizer(backend, {})


def tiny_engine(
    eos_token_ids: tuple[int, ...] = (),
    draft_seed: int | None = None,
    max_position: int = 512,
    cache_dtype: torch.dtype = torch.float32,
    special: tuple[int, ...] = (),
) -> Engine:
    draft = tiny_decoder(draft_seed) if draft_seed is not None else None
    return Engine(tiny_decoder(0, eos_token_ids, max_position), byte_tokenizer(special), draft, 0.0, cache_dtype)
