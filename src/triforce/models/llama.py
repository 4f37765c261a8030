"""Llama 1 to 3 and all that share its layout: SmolLM, TinyLlama, Yi, DeepSeek-Coder (arXiv 2302.13971, 2407.21783)."""

from __future__ import annotations

from triforce.models.family import Family

LLAMA = Family(
    name="llama",
    gguf_architecture="llama",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    mlp_bias="mlp_bias",
    interleaved_in_gguf=True,
    defaults={"max_position_embeddings": 2048},
)
