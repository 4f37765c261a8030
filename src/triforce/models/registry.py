"""The model families that can be loaded: a new one is a file beside this and a line here."""

from __future__ import annotations

from triforce.models.family import Family
from triforce.models.llama import LLAMA
from triforce.models.mistral import MISTRAL
from triforce.models.qwen2 import QWEN2
from triforce.models.qwen3 import QWEN3

FAMILIES: tuple[Family, ...] = (
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
)
