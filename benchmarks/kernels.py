"""The native kernels against what the machine can do: bandwidth and rates measured in the same run.

    python benchmarks/kernels.py

Attention reads float16 rows of SmolLM2-135M's shape (9 heads, 3 KV heads of 64); the linear pass reads all of its
weights as they lie in the file. Medians of 9 runs. The last line is JSON.
"""

from __future__ import annotations

import json

import torch

import triforce
from triforce.machine import copy_bandwidth, median_seconds, multiply_rate
from triforce.models.weights import Weights
from triforce.native import kernels

RUNS = 9
HEADS, KV_HEADS, DIM = 9, 3, 64


def main() -> None:
    native = kernels()
    assert native is not None, "native kernels are not built: install a C compiler, then triforce again"
    bandwidth, peak = copy_bandwidth(), multiply_rate()
    print(
        f"{native.variant}, {native.num_threads} threads, copy {bandwidth / 1e9:.1f} GB/s, "
        f"product {peak / 1e9:.0f} GFLOP/s\n"
    )
    rows = []
    for num_rows in (1024, 32_768, 131_072):
        keys, values = (torch.randn(2, KV_HEADS, num_rows, DIM)).half()
        for n in (1, 4, 8):
            q = torch.randn(n, HEADS, DIM)
            seconds = median_seconds(lambda q=q, keys=keys, values=values: native.attend(q, keys, values), RUNS)
            rows.append(_row(f"attend {n} x {num_rows:,}", seconds, 2 * keys.nbytes, 4 * n * HEADS * num_rows * DIM))
    weights = triforce.load("smollm2").target._weights
    rows += [_linear_row(weights, n) for n in (1, 2, 4, 8)]
    for row in rows:
        row["of_bandwidth"], row["of_peak"] = row["bytes_per_second"] / bandwidth, row["flops"] / peak
        print(
            f"{row['what']:24} {row['seconds'] * 1e3:8.2f} ms {row['bytes_per_second'] / 1e9:7.1f} GB/s "
            f"({row['of_bandwidth']:4.0%} of copy) {row['flops'] / 1e9:7.1f} GFLOP/s ({row['of_peak']:4.0%} of product)"
        )
    print(
        json.dumps(
            {"benchmark": "kernels", "variant": native.variant, "bandwidth": bandwidth, "peak": peak, "rows": rows}
        )
    )


def _linear_row(weights: Weights, n: int) -> dict[str, float | str]:
    """One pass of `n` rows over every matrix of SmolLM2-135M, as filed."""
    matrices = [matrix for layer in weights.layers for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    matrices.append(weights.head)
    inputs = {matrix.width: torch.randn(n, matrix.width) for matrix in matrices}

    def run() -> None:
        for matrix in matrices:
            matrix.apply(inputs[matrix.width])

    num_bytes = sum(part.weights.nbytes for matrix in matrices for part in matrix.parts)
    return _row(
        f"all weights, {n} rows", median_seconds(run, RUNS), num_bytes, 2 * n * sum(m.out * m.width for m in matrices)
    )


def _row(what: str, seconds: float, num_bytes: int, operations: int) -> dict[str, float | str]:
    return {"what": what, "seconds": seconds, "bytes_per_second": num_bytes / seconds, "flops": operations / seconds}


if __name__ == "__main__":
    with torch.inference_mode():
        main()
