"""The engine for prompts of a wanted length."""

from __future__ import annotations

from typing import Any

import triforce
from triforce.engine import Engine

TRAINED_CONTEXT = 8192  # SmolLM2's; beyond it YaRN is used


def engine_for(model: str, tokens: int, trained_context: int = TRAINED_CONTEXT, **settings: Any) -> Engine:
    """`triforce.load` with the scaling that `tokens` need; `settings` are its own."""
    factor = -(-tokens // trained_context)
    return triforce.load(model, rope_scaling=f"yarn:{factor}" if factor > 1 else None, **settings)
