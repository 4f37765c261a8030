"""The dtypes that settings choose by name. Needs no PyTorch: the command line refuses a misspelt one at once."""

from __future__ import annotations

from triforce.checks import one_of

DTYPE_NAMES = ("float32", "bfloat16", "float16")  # of weights; PyTorch's own names
CACHE_DTYPE_NAMES = (*DTYPE_NAMES, "int8")  # of keys and values kept


def check_dtype(name: object) -> None:
    """Raise `UsageError` unless `name` is a dtype for weights, or "auto"."""
    one_of("dtype", name, ("auto", *DTYPE_NAMES))


def check_cache_dtype(name: object) -> None:
    """Raise `UsageError` unless `name` is a dtype for keys and values, or "auto"."""
    one_of("cache dtype", name, ("auto", *CACHE_DTYPE_NAMES))
