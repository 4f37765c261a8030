"""Decoding methods by name: each is a drafter for the target, made of `Parts`. Needs no PyTorch to be read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from triforce.checks import one_of

if TYPE_CHECKING:
    from triforce.parts import Parts
    from triforce.speculative import Drafter

METHODS: dict[str, Callable[[Parts], Drafter]] = {
    "ar": lambda parts: parts.plain(),
    "lookup": lambda parts: parts.copied(),
    "draft": lambda parts: parts.drafted(),
    "retrieval": lambda parts: parts.retrieved(),
    "triforce": lambda parts: parts.triforce(),
}


def create_drafter(parts: Parts) -> Drafter:
    """The drafter of the method that `parts.decoding` names; `UsageError` for an unknown one."""
    return METHODS[one_of("method", parts.decoding.method, METHODS)](parts)
