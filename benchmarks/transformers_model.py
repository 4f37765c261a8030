"""The model of a GGUF file in transformers, with exactly our dequantised weights, so that a comparison is of programs.

transformers' own reader of GGUF files needs another package; this one goes through the tested reader of this package.
"""

from __future__ import annotations

from pathlib import Path

from triforce.models.family import GGUF_NAMES, HUGGINGFACE_NAMES
from triforce.models.gguf_file import GgufFile
from triforce.models.gguf_model import GgufSource, config_from_gguf

import torch
from transformers import LlamaConfig, LlamaForCausalLM

_OURS = {theirs: ours for ours, theirs in HUGGINGFACE_NAMES.items()}


def transformers_model(path: Path, dtype: torch.dtype) -> LlamaForCausalLM:
    """The Llama model in the GGUF file `path`, weights in `dtype`, attention by PyTorch's fused kernel."""
    file = GgufFile(path)
    config, family = config_from_gguf(file)
    assert family.name == "llama" and config.rope_scaling is None, config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            rope_theta=config.rope_theta,  # where versions before 5 look
            tie_word_embeddings=config.tied_embeddings,
            attn_implementation="sdpa",
        )
    )
    source = GgufSource(file, config, family)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            filed = f"{_filed_name(name.removesuffix('.weight'))}.weight"
            parameter.copy_(source.read(filed, tuple(parameter.shape), torch.float32))
    model.generation_config.eos_token_id = None  # every run makes as many tokens as it is asked for
    model.generation_config.pad_token_id = 0
    return model.to(dtype).eval()


def _filed_name(name: str) -> str:
    """GGUF's name for the parameter that transformers calls `name`."""
    parts = name.split(".")
    layer = parts[2] if parts[1] == "layers" else None
    ours = _OURS[name if layer is None else ".".join([*parts[:2], "{}", *parts[3:]])]
    return GGUF_NAMES[ours].format(layer)
