"""TriForce: lossless long-context generation, faster, by three-level speculative decoding (arXiv 2404.11912).

engine = triforce.load("smollm2")
for completion in engine.stream(prompt):
    print(completion.text, end="")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from triforce.completion import Completion, Generation
from triforce.config import Decoding, SamplingParams
from triforce.errors import TriForceError

if TYPE_CHECKING:
    from triforce.conversation import Conversation
    from triforce.engine import Engine, load
    from triforce.model import TriForceModel
    from triforce.session import Session

__all__ = [
    "Completion",
    "Conversation",
    "Decoding",
    "Engine",
    "Generation",
    "SamplingParams",
    "Session",
    "TriForceError",
    "TriForceModel",
    "__version__",
    "load",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The engine is imported on first use, so that the command line answers `--help` without loading PyTorch."""
    if name in ("Engine", "load"):
        import triforce.engine

        return getattr(triforce.engine, name)
    if name == "TriForceModel":
        from triforce.model import TriForceModel

        return TriForceModel
    if name == "Session":
        from triforce.session import Session

        return Session
    if name == "Conversation":
        from triforce.conversation import Conversation

        return Conversation
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
