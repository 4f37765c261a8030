"""What sets one model family apart from the others, as data. Knows nothing of tensors or of files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

WeightNames = Mapping[str, str]  # name of ours → name in a checkpoint, with {} for the layer

HUGGINGFACE_NAMES: WeightNames = {
    "embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attention_norm": "model.layers.{}.input_layernorm",
    "q": "model.layers.{}.self_attn.q_proj",
    "k": "model.layers.{}.self_attn.k_proj",
    "v": "model.layers.{}.self_attn.v_proj",
    "q_norm": "model.layers.{}.self_attn.q_norm",
    "k_norm": "model.layers.{}.self_attn.k_norm",
    "output": "model.layers.{}.self_attn.o_proj",
    "mlp_norm": "model.layers.{}.post_attention_layernorm",
    "gate": "model.layers.{}.mlp.gate_proj",
    "up": "model.layers.{}.mlp.up_proj",
    "down": "model.layers.{}.mlp.down_proj",
}

GGUF_NAMES: WeightNames = {
    "embedding": "token_embd",
    "norm": "output_norm",
    "head": "output",
    "attention_norm": "blk.{}.attn_norm",
    "q": "blk.{}.attn_q",
    "k": "blk.{}.attn_k",
    "v": "blk.{}.attn_v",
    "q_norm": "blk.{}.attn_q_norm",
    "k_norm": "blk.{}.attn_k_norm",
    "output": "blk.{}.attn_output",
    "mlp_norm": "blk.{}.ffn_norm",
    "gate": "blk.{}.ffn_gate",
    "up": "blk.{}.ffn_up",
    "down": "blk.{}.ffn_down",
}

Switch = bool | str  # always, never, or the name of the config.json entry that decides


@dataclass(frozen=True)
class Family:
    """`name` is config.json's `model_type`, `gguf_architecture` GGUF's word for it, if it has one of its own.

    `slides`: every layer honours `sliding_window`; where false, a config that asks for a window is refused.
    `interleaved_in_gguf`: llama.cpp reorders the rows of q and k for its own RoPE. `defaults` holds the config.json
    entries that transformers itself would fill in when they are absent.
    """

    name: str
    gguf_architecture: str | None
    qkv_bias: Switch = False
    output_bias: Switch = False
    mlp_bias: Switch = False
    qk_norm: bool = False
    slides: bool = False
    interleaved_in_gguf: bool = False
    defaults: Mapping[str, int] = field(default_factory=dict)
    weight_names: WeightNames = field(default_factory=lambda: HUGGINGFACE_NAMES)
