"""A tiny model and its tokenizer, as transformers saves them, in both shapes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from calls import END, PAD, PROMPT, new_tokenizer
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

import triforce


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with its tokenizer, as transformers saves them."""
    path = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=PAD,
    )
    model = LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if "norm" not in name:
            nn.init.normal_(parameter, std=2 / parameter.shape[-1] ** 0.5)
    model.save_pretrained(path)
    new_tokenizer().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def reference(directory: Path) -> LlamaForCausalLM:
    return LlamaForCausalLM.from_pretrained(directory).eval()


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(directory, clean_up_tokenization_spaces=False)


@pytest.fixture(scope="module", params=["ar", "retrieval", "triforce"])
def model(directory: Path, request: pytest.FixtureRequest) -> triforce.TriForceModel:
    decoding = triforce.Decoding(method=request.param, gamma1=4, gamma2=6)
    return triforce.TriForceModel.from_pretrained(
        directory, dtype=torch.float32, cache_dtype="float32", decoding=decoding
    )


@pytest.fixture
def inputs(tokenizer: PreTrainedTokenizerFast) -> dict[str, Tensor]:
    return dict(tokenizer(PROMPT, return_tensors="pt"))
