"""Greedy tokens against plain decoding's: equal, or where they part and whether rounding could do that."""

from __future__ import annotations

from triforce.engine import Engine

TIE = 1e-3  # relative difference of logits below which rounding may choose


def compare(engine: Engine, prompt: list[int], plain: list[int], others: list[int]) -> dict[str, object]:
    """`verdict` "equal", "tie" or "differs", how many tokens are equal, and the relative gap of the two logits then."""
    if others == plain:
        return {"verdict": "equal", "tokens": len(plain)}
    at = next((i for i, (a, b) in enumerate(zip(plain, others, strict=False)) if a != b), None)
    if at is None:
        return {"verdict": "differs", "tokens": min(len(plain), len(others))}
    gap = _relative_gap(engine, [*prompt, *plain[:at]], plain[at], others[at])
    return {"verdict": "tie" if gap < TIE else "differs", "tokens": at, "relative_gap": gap}


def _relative_gap(engine: Engine, tokens: list[int], first: int, second: int) -> float:
    """How far apart the target's logits for two candidates are after `tokens`."""
    logits = engine.logits(tokens)
    return float((logits[first] - logits[second]).abs() / logits[first].abs())
