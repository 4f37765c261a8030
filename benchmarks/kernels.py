"""The native kernels against what the machine can do: bandwidth and rates measured in turn with them.

    python benchmarks/kernels.py

Attention reads float16 rows of SmolLM2-135M's shape (9 heads, 3 KV heads of 64), 30 calls in a row as in a pass over
its layers, each on the next of as many layers as fill 256 MB, so that rows come from memory; seconds are of one call.
A maximum over the same memory says what reading alone takes; a copy may seem faster, as bytes written count too.
The pass over all weights as filed is one native call over a cache of 16 rows, and the head's. The bound by arithmetic
is the better of two square products in PyTorch: the processor's own peak of fused multiply-adds cannot be had from
Python, and is higher. Medians of 15 turns, two works each, after 4 turns that do not count. The last line is JSON.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triforce
from triforce.caches.full import FullCache
from triforce.models.decoder import Decoder
from triforce.models.matrix import FiledMatrix
from triforce.models.rope_scaling import build_rope
from triforce.native import Kernels, kernels

import torch
from measuring import Copy, Product, Target, finish, in_turn, spread, whole

LAYERS, HEADS, KV_HEADS, DIM = 30, 9, 3, 64
FLUSHED = 256 << 20  # bytes of rows to go through before the same are read again: more than a processor's caches
HELD = 16  # rows in the cache of a pass over weights
WARM_UP = 4  # turns
REPEATS = 2  # of a work in each turn


@dataclass(frozen=True)
class Kernel:
    """Something to run, the bytes that a call must read and the multiplications and additions that it must do."""

    work: Callable[[], object]
    num_bytes: int
    operations: int
    calls: int = 1  # in `work`


def main() -> None:
    args = _arguments()
    torch.manual_seed(0)
    native = kernels()
    if native is None:
        sys.exit("no native kernels: unset TRIFORCE_NATIVE, or install a C compiler, then triforce again")
    print(f"{native.variant}, {native.num_threads} threads\n")
    model = triforce.load("smollm2").target
    rows: dict[str, dict[str, Any]] = {}
    for num_rows in args.rows:
        rows |= _measure(_attention(native, num_rows), args.runs)
    rows |= _measure({f"all weights, {n} rows": _weights_pass(model, n) for n in (1, 2, 4, 8)}, args.runs)
    finish("kernels", {**vars(args), "variant": native.variant}, list(rows.values()), _targets(rows))


def _measure(works: dict[str, Kernel], runs: int) -> dict[str, dict[str, Any]]:
    """Each of `works` in turn with a copy and two products."""
    copy, products = Copy(), {f"product {size}": Product(size) for size in (1024, 2048)}
    machine: dict[str, Callable[[], object]] = {"copy": copy, **products}
    kernels_work = {name: kernel.work for name, kernel in works.items()}
    seconds = in_turn({**machine, **kernels_work}, runs, WARM_UP, REPEATS)
    for name, kernel in works.items():
        seconds[name] = [taken / kernel.calls for taken in seconds[name]]
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    bandwidth = copy.num_bytes / medians["copy"]
    peak = max(product.operations / medians[name] for name, product in products.items())
    print(f"copy {bandwidth / 1e9:.1f} GB/s, product {peak / 1e9:.0f} GFLOP/s")
    rows = {}
    for name, kernel in works.items():
        read, done = kernel.num_bytes / medians[name], kernel.operations / medians[name]
        rows[name] = {
            "what": name,
            "seconds": seconds[name],
            "copy_bandwidth": bandwidth,
            "product_rate": peak,
            "of_bandwidth": read / bandwidth,
            "of_peak": done / peak,
        }
        print(
            f"{name:22} {spread(seconds[name], 1e3):>22} ms {read / 1e9:6.1f} GB/s ({read / bandwidth:4.0%} of copy) "
            f"{done / 1e9:6.1f} GFLOP/s ({done / peak:4.0%} of product)",
            flush=True,
        )
    return rows


def _attention(native: Kernels, num_rows: int) -> dict[str, Kernel]:
    """1, 4 and 8 queries over `num_rows` rows, of one layer after the other; and a plain maximum over all of them."""
    num_bytes = 2 * KV_HEADS * num_rows * DIM * 2
    layers = torch.randn(-(-FLUSHED // num_bytes), 2, KV_HEADS, num_rows, DIM, dtype=torch.float16)
    turn = itertools.cycle(layers.unbind(0))

    def kernel(n: int) -> Kernel:
        q = torch.randn(n, HEADS, DIM)

        def work() -> None:
            for keys, values in itertools.islice(turn, LAYERS):
                native.attend(q, keys, values)

        return Kernel(work, num_bytes, 4 * n * HEADS * num_rows * DIM, LAYERS)

    read = Kernel(layers.view(torch.float32).amax, layers.nbytes, layers.nbytes // 4)
    attending = {f"attend {n} x {num_rows:,}": kernel(n) for n in (1, 4, 8)}
    return {f"read {len(layers)} x {num_rows:,}": read, **attending}


def _weights_pass(model: Decoder, n: int) -> Kernel:
    """`n` rows through every matrix of the model, as filed: all layers in one call, and the head."""
    weights, config = model._weights, model.config
    cache = FullCache(model.cache_shape, build_rope(config), capacity=HELD + n, dtype=torch.float16)
    cache.keys.zero_(), cache.values.zero_()
    cache.log.append([0] * HELD)
    rows, native_pass = cache.rows(n, model.dtype), model._native_pass
    assert native_pass is not None
    start = torch.randn(n, config.hidden_size)

    def work() -> None:
        hidden = native_pass(start.clone(), rows)
        assert hidden is not None
        model.logits(hidden)

    every = [matrix for layer in weights.layers for matrix in (layer.qkv, layer.output, layer.gate_up, layer.down)]
    matrices = [matrix for matrix in (*every, weights.head) if isinstance(matrix, FiledMatrix)]
    assert len(matrices) == len(every) + 1, "the weights are not as filed"
    num_bytes = sum(part.weights.nbytes for matrix in matrices for part in matrix.parts)
    return Kernel(work, num_bytes, 2 * n * sum(matrix.out * matrix.width for matrix in matrices))


def _targets(rows: dict[str, dict[str, Any]]) -> list[Target]:
    """The three lines of the project's targets, as far as their rows were measured."""
    targets = [
        Target(f"attention, 1 row over {num_rows:,}: share of copy bandwidth", row["of_bandwidth"], 0.7)
        for num_rows in (32_768, 131_072)
        if (row := rows.get(f"attend 1 x {num_rows:,}"))
    ]
    if row := rows.get("attend 8 x 32,768"):
        bound = max(("of_bandwidth", "of_peak"), key=row.__getitem__)
        name = {"of_bandwidth": "copy bandwidth", "of_peak": "the square product"}[bound]
        targets.append(Target(f"verification, 8 rows over 32,768: share of {name}, which binds", row[bound], 0.6))
    row = rows["all weights, 1 rows"]
    targets.append(
        Target("all weights, 1 row: times bytes / copy bandwidth", 1 / row["of_bandwidth"], 1.5, at_most=True)
    )
    return targets


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=whole(1), nargs="+", default=[1024, 32_768, 131_072])
    parser.add_argument("--runs", type=whole(1), default=15)
    return parser.parse_args()


if __name__ == "__main__":
    with torch.inference_mode():
        main()
