"""TriForce: lossless long-context generation, faster, by three-level speculative decoding (arXiv 2404.11912).

engine = triforce.load("smollm2")
for completion in engine.stream(prompt):
    print(completion.text, end="")
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
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
_ON_FIRST_USE = {
    "Conversation": "conversation",
    "Engine": "engine",
    "Session": "session",
    "TriForceModel": "model",
    "load": "engine",
}
"""Names by module: what needs PyTorch is imported on first use, so that the command line answers `--help` at once."""

if sys.platform == "linux" and "OMP_WAIT_POLICY" not in os.environ:
    # How long an idle OpenMP thread waits before it sleeps; read once, when PyTorch is loaded. 10,000 turns are 0.1 ms,
    # not some ms, in which a busy machine loses nine tenths of its speed (docs/log.md, 17). "active" is for processes
    # with more such threads than cores, a pool for each Python thread that ever computed: 1,000 turns, not 100, which
    # are over before the next kernel begins (31). Intel's OpenMP, not measured, takes it for ever without a time.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    os.environ.setdefault("KMP_BLOCKTIME", "200")
    os.environ["OMP_WAIT_POLICY"] = "active"


def __getattr__(name: str) -> Any:
    if name not in _ON_FIRST_USE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_ON_FIRST_USE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
