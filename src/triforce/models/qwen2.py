"""Qwen 1.5, 2 and 2.5: Llama's layout with biases on q, k and v (arXiv 2407.10671)."""

from __future__ import annotations

from triforce.models.family import Family

QWEN2 = Family(
    name="qwen2",
    gguf_architecture="qwen2",
    qkv_bias=True,
    defaults={"max_position_embeddings": 32768},
)
