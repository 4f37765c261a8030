"""`triforce doctor`: what this machine does, which kernels are in use, what is slow and why."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from triforce.machine import Machine

SUMMARY = "measure this machine, and say what is slow and why"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Threads."""
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: as PyTorch chooses)")


def run(args: argparse.Namespace) -> int:
    """Measure and print."""
    from triforce.cli.options import set_threads
    from triforce.machine import measure

    set_threads(args.threads)
    machine = measure()
    rows = [
        ("processor", machine.processor),
        ("threads", str(machine.threads)),
        ("kernels", machine.kernels or "PyTorch's own"),
        ("PyTorch", f"{machine.torch_version}, {machine.torch_capability}"),
        ("copy", f"{machine.copy_bandwidth / 1e9:.1f} GB/s, read and written"),
        ("multiply", f"{machine.multiply_rate / 1e9:.0f} GFLOP/s, float32 product of 1,024 rows"),
        ("attention", f"{machine.attention_bandwidth / 1e9:.1f} GB/s, one query over 32K rows in float16"),
    ]
    for name, value in rows:
        print(f"{name:10} {value}")
    for line in findings(machine):
        print(f"* {line}")
    return 0


def findings(machine: Machine) -> list[str]:
    """What a user could change, or must live with; at least one line."""
    from triforce.native import why_missing

    found = []
    if machine.kernels is None:
        found.append(f"{why_missing()}: decoding runs on PyTorch, several times slower over long contexts")
    elif machine.kernels == "portable":
        found.append("this processor has none of AVX2, AVX-512 or NEON: the portable kernels are several times slower")
    elif machine.attention_bandwidth < 0.5 * machine.copy_bandwidth:
        share = machine.attention_bandwidth / machine.copy_bandwidth
        found.append(f"attention reads at {share:.0%} of the copy bandwidth: close other programs and run this again")
    if machine.load >= 0.5:
        found.append(
            f"the load of the last minute is {machine.load:.1f} on {machine.threads} threads, your own runs "
            "included: if other programs are busy, close them, or leave cores to them by fewer --threads"
        )
    gain = machine.multiply_rate / machine.one_thread_rate
    if machine.threads > 1 and gain < 0.7 * machine.threads:
        found.append(
            f"{machine.threads} threads multiply {gain:.1f} times as fast as one, their cores are shared: "
            "compare generate --stats with fewer --threads"
        )
    flops_per_byte = machine.multiply_rate / machine.copy_bandwidth
    free = max(1, round(flops_per_byte / 3))  # 3 query heads per KV head, 2 operations on each 2 bytes
    found.append(
        f"{flops_per_byte:.1f} operations per byte copied: with 3 query heads per KV head and float16 rows, "
        f"verifying more than {free} token{'s' if free > 1 else ''} or so at once is bound by arithmetic"
    )
    return found
