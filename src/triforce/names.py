"""The names by which settings choose: methods, policies, dtypes. Knows nothing of what they name, so needs no PyTorch.

The command line refuses a misspelt name by these, at once; the registries beside what they name hold the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable

from triforce.errors import UsageError, shown

METHOD_NAMES = ("ar", "lookup", "draft", "retrieval", "triforce")  # of triforce.methods
POLICY_NAMES = ("retrieval", "attention", "recent")  # of triforce.policies
DTYPE_NAMES = ("float32", "bfloat16", "float16")  # of weights; PyTorch's own names
CACHE_DTYPE_NAMES = (*DTYPE_NAMES, "int8")  # of keys and values kept


def check_name(what: str, name: object, known: Iterable[str]) -> None:
    """Raise `UsageError` for a `name` that is not among the `known` ones."""
    known = list(known)
    if name not in known:
        raise UsageError(f"unknown {what} {shown(name)}: use one of {', '.join(known)}")


def check_dtype(name: object) -> None:
    """The same for the dtype of weights, which may be "auto"."""
    check_name("dtype", name, ("auto", *DTYPE_NAMES))


def check_cache_dtype(name: object) -> None:
    """The same for the dtype of keys and values kept."""
    check_name("cache dtype", name, ("auto", *CACHE_DTYPE_NAMES))
