"""The caller's own functions of (history, logits), and transformers' `LogitsProcessor` objects as they are.

Knows transformers by the names of its classes and of their arguments, and does not import it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from triforce.controls.base import rows
from triforce.errors import UsageError
from triforce.tokens import TokenIds

_BASES = ("LogitsProcessor", "LogitsWarper", "LogitsProcessorList")
_COUNTS_ITS_CALLS = {  # class -> what to do instead
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "leave it out",
    "SynthIDTextWatermarkLogitsProcessor": "leave it out",
    "xgrammar.contrib.hf.LogitsProcessor": "use json_schema, regex or grammar",
}


class Processors:
    """Applies `functions` in their order, to one row at a time.

    A plain function is called as `f(token_ids, logits)` with a read-only numpy array [length] of int32 and a tensor
    [vocab]; one of transformers' shape as `f(input_ids, scores)` with tensors [1, length] of int64 and [1, vocab].
    Each must be a function of its arguments alone. Raises `UsageError` for objects known not to be.
    """

    name = "processors"

    def __init__(self, functions: Sequence[Callable[..., Any]]) -> None:
        refuse_counting(functions)
        self._functions = [(function, is_transformers(function)) for function in functions]
        self._any_transformers = any(theirs for _, theirs in self._functions)

    def apply(self, logits: Tensor, tokens: TokenIds) -> None:
        ids = torch.from_numpy(tokens).long()[None] if self._any_transformers else None
        for row, history in rows(logits, tokens):
            for function, theirs in self._functions:
                if theirs:
                    assert ids is not None
                    out = function(ids[:, : len(history)], row.clone()[None])
                else:
                    history = history.view()
                    history.flags.writeable = False
                    out = function(history, row.clone())
                row.copy_(_checked(function, out, row, len(history)))


def is_transformers(function: Callable[..., Any]) -> bool:
    """Whether it is an object of transformers' classes, or takes arguments of their names."""
    for base in type(function).__mro__:
        if base.__name__ in _BASES and base.__module__.split(".")[0] == "transformers":
            return True
    return _parameters(function)[:2] == ["input_ids", "scores"]


def _parameters(function: Callable[..., Any]) -> list[str]:
    """The names of the arguments; none for what cannot be asked, as some built-in functions."""
    try:
        return list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return []


def refuse_counting(functions: Sequence[Callable[..., Any]]) -> None:
    """Speculation asks about positions more than once and takes tokens back, which an object that counts misreads."""
    for base in (base for function in functions for base in type(function).__mro__):
        for name in (base.__name__, f"{base.__module__}.{base.__name__}"):
            if name in _COUNTS_ITS_CALLS:
                raise UsageError(
                    f"{base.__name__} counts its calls, but drafted tokens are taken back: {_COUNTS_ITS_CALLS[name]}"
                )


def _checked(function: Callable[..., Any], out: object, row: Tensor, position: int) -> Tensor:
    name = getattr(function, "__name__", type(function).__name__)
    try:
        logits = torch.as_tensor(out)
    except (TypeError, ValueError, RuntimeError):
        logits = torch.empty(0)
    if logits.shape not in (row.shape, (1, *row.shape)):
        what = f"a shape {list(logits.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise UsageError(f"processor {name} returned {what}: return the logits [{len(row)}]")
    logits = logits.to("cpu", torch.float32).view(-1)
    highest = float(logits.amax())  # NaN where there is one
    if math.isnan(highest) or highest == math.inf:
        raise UsageError(
            f"processor {name} returned NaN or +inf after {position} tokens: "
            "return finite numbers, or -inf for tokens that must not come"
        )
    return logits
