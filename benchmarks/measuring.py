"""What the benchmarks share: work measured in turn, targets with their verdicts, and the last line of JSON.

Knows nothing of models or of caches.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Target:
    """A figure that is to be at least (or, with `at_most`, at most) `target`."""

    what: str
    value: float
    target: float
    at_most: bool = False

    @property
    def reached(self) -> bool:
        return self.value <= self.target if self.at_most else self.value >= self.target

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return {
            "what": self.what,
            "value": self.value,
            "target": self.target,
            "at_most": self.at_most,
            "reached": self.reached,
        }


def in_turn(
    works: dict[str, Callable[[], object]], runs: int, warm_up: int = 1, repeats: int = 1
) -> dict[str, list[float]]:
    """Seconds of each of `works`, one after the other, `runs` times over, so that all share the machine's noise.

    `warm_up` rounds are not counted. A work is called `repeats` times in its turn; the mean counts.
    """
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(warm_up + runs):
        for name, work in works.items():
            start = time.perf_counter()
            for _ in range(repeats):
                work()
            if turn >= warm_up:
                seconds[name].append((time.perf_counter() - start) / repeats)
    return seconds


class Copy:
    """A copy of memory far larger than the processor's caches: what bandwidth is measured by."""

    def __init__(self, megabytes: int = 256) -> None:
        self._source = torch.zeros(megabytes << 18)
        self._target = torch.empty_like(self._source)
        self.num_bytes = 2 * self._source.nbytes  # read and written

    def __call__(self) -> None:
        self._target.copy_(self._source)


class Product:
    """A square float32 product: what the multiply rate is measured by."""

    def __init__(self, size: int = 1024) -> None:
        self._a = torch.randn(size, size)
        self._out = torch.empty(size, size)
        self.operations = 2 * size**3

    def __call__(self) -> None:
        torch.mm(self._a, self._a, out=self._out)


def spread(values: Sequence[float], scale: float = 1.0) -> str:
    """Median, least and most, times `scale`."""
    if not values:
        return "-"
    return f"{statistics.median(values) * scale:.2f} ({min(values) * scale:.2f}-{max(values) * scale:.2f})"


def whole(least: int, most: int = 1 << 30) -> Callable[[str], int]:
    """What argparse calls for a whole number from `least` to `most`."""

    def parsed(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least:,} to {most:,}")
        return int(text)

    return parsed


def finish(benchmark: str, settings: dict[str, Any], rows: Sequence[Any], targets: Sequence[Target]) -> None:
    """Print the table of targets and, as the last line, everything as JSON."""
    if targets:
        width = max(len(target.what) for target in targets)
        print(f"\n{'':{width}} {'figure':>9} {'target':>10} reached")
    for target in targets:
        bound = f"{'<=' if target.at_most else '>='} {target.target:.3g}"
        print(f"{target.what:{width}} {target.value:9.3f} {bound:>10} {'yes' if target.reached else 'NO'}")
    document = {
        "benchmark": benchmark,
        "settings": settings,
        "threads": torch.get_num_threads(),
        "rows": list(rows),
        "targets": [target.as_dict() for target in targets],
    }
    print(json.dumps(document))
