"""Kernels in C for the hot path on a CPU, compiled when the package is installed; all have equals in PyTorch."""

from triforce.native.library import Kernels, floats, kernels, why_missing
from triforce.native.shapes import (
    NARROW,
    ROW_TYPES,
    check_scales,
    check_table,
    serves_attention,
    serves_head,
    serves_means,
    serves_scores,
)

__all__ = [
    "NARROW",
    "ROW_TYPES",
    "Kernels",
    "check_scales",
    "check_table",
    "floats",
    "kernels",
    "serves_attention",
    "serves_head",
    "serves_means",
    "serves_scores",
    "why_missing",
]
