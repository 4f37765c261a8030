"""Qwen 3, dense: Llama's layout with RMS norms on the heads of q and k (arXiv 2505.09388)."""

from __future__ import annotations

from triforce.models.family import Family

QWEN3 = Family(
    name="qwen3",
    gguf_architecture="qwen3",
    qkv_bias="attention_bias",
    output_bias="attention_bias",
    qk_norm=True,
    defaults={"max_position_embeddings": 32768, "head_dim": 128},
)
