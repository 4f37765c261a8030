"""Random tiny models of transformers, the reference that every family is compared with, and their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

CLASSES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_theta": 5000.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "attn_implementation": "eager",
}


def tiny_model(family: str, settings: dict[str, Any] | None = None) -> PreTrainedModel:
    """A model whose every weight, norms and biases included, is random."""
    config_class, model_class = CLASSES[family]
    torch.manual_seed(0)
    model = model_class(config_class(**{**SIZES, **(settings or {})})).eval()
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
    return model


def reference_logits(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    """[len(tokens), vocab]"""
    with torch.no_grad():
        logits: Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def random_tokens(count: int, seed: int = 0, vocab_size: int = 96) -> list[int]:
    tokens: list[int] = torch.randint(vocab_size, (count,), generator=torch.Generator().manual_seed(seed)).tolist()
    return tokens


def saved(model: PreTrainedModel, directory: Path, shard: str = "50GB") -> Path:
    model.save_pretrained(directory, max_shard_size=shard)
    return directory


def paired_rows(rows: Tensor, num_heads: int) -> Tensor:
    """llama.cpp's order of the rows of q and k: each head's two halves interleaved."""
    halves = rows.unflatten(0, (num_heads, 2, -1))
    return torch.stack((halves[:, 0], halves[:, 1]), 2).reshape(rows.shape)


def write_gguf(model: PreTrainedModel, path: Path, extra: dict[str, Any] | None = None, **settings: Any) -> Path:
    """The model as llama.cpp's converter would write it, in float32; `settings` override metadata, None removes it."""
    config = model.config
    architecture = "llama" if config.model_type == "mistral" else config.model_type
    writer = gguf.GGUFWriter(path, architecture)
    metadata = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "block_count": config.num_hidden_layers,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": getattr(config, "head_dim", None),
        "attention.value_length": getattr(config, "head_dim", None),
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": config.rope_parameters["rope_theta"],
        **settings,
    }
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
    for key, value in metadata.items():
        if value is not None:
            add[type(value)](f"{architecture}.{key}", value)
    writer.add_eos_token_id(2)
    for name, values in gguf_tensors(model, architecture).items():
        writer.add_tensor(name, values)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_tensors(model: PreTrainedModel, architecture: str) -> dict[str, np.ndarray[Any, Any]]:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    if architecture != "llama":
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[architecture.upper()], model.config.num_hidden_layers)
    heads = {"q_proj": model.config.num_attention_heads, "k_proj": model.config.num_key_value_heads}
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        projection = name.split(".")[-2]
        if architecture == "llama" and projection in heads:
            tensor = paired_rows(tensor, heads[projection])
        tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))] = tensor.contiguous().numpy()
    return tensors
