"""Kernels in C for the hot path on a CPU, compiled when the package is installed; all have equals in PyTorch."""

from triforce.native.library import NARROW, Kernels, kernels, serves_attention

__all__ = ["NARROW", "Kernels", "kernels", "serves_attention"]
