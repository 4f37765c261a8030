"""Mistral 7B and successors: Llama's layout with a sliding window in every layer (arXiv 2310.06825).

GGUF calls it `llama`; its window is then read from the metadata, where there is one.
"""

from __future__ import annotations

from triforce.models.family import Family

MISTRAL = Family(
    name="mistral",
    gguf_architecture=None,
    slides=True,
    defaults={"max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
)
