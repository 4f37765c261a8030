"""What this machine does: measured bandwidth and rates, and which kernels are in use. Knows nothing of models."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from triforce.attention import attend
from triforce.native import kernels

_HEADS, _KV_HEADS, _DIM, _ROWS = 9, 3, 64, 32_768  # the shape of SmolLM2-135M at 32K tokens


@dataclass(frozen=True)
class Machine:
    """Rates are medians of 5 runs: bytes per second read and written, multiplications and additions per second."""

    processor: str
    threads: int
    torch_version: str
    torch_capability: str
    kernels: str | None  # the native variant, None where PyTorch serves
    copy_bandwidth: float
    multiply_rate: float
    attention_bandwidth: float  # bytes of float16 keys and values read per second by one query
    one_thread_rate: float  # as `multiply_rate`, of one thread
    load: float  # tasks that ran or waited in the last minute, on average, our own among them; 0 where it is unknown


def measure() -> Machine:
    """Measure for about two seconds."""
    native = kernels()
    load = _load()  # first: the measurements are load themselves
    return Machine(
        processor=_processor(),
        threads=torch.get_num_threads(),
        torch_version=torch.__version__,
        torch_capability=torch.backends.cpu.get_cpu_capability(),
        kernels=native.variant if native else None,
        copy_bandwidth=copy_bandwidth(),
        multiply_rate=multiply_rate(),
        attention_bandwidth=attention_bandwidth(),
        one_thread_rate=one_thread_rate(),
        load=load,
    )


def copy_bandwidth(megabytes: int = 256) -> float:
    """Bytes read plus bytes written per second by a copy far larger than the caches."""
    source = torch.zeros(megabytes << 18)
    target = torch.empty_like(source)
    return 2.0 * source.numel() * source.element_size() / median_seconds(lambda: target.copy_(source))


def multiply_rate(size: int = 1024) -> float:
    """Floating point operations per second of a square float32 product."""
    a = torch.randn(size, size)
    seconds = median_seconds(lambda: a @ a)
    return 2.0 * size * size * size / seconds


def _load() -> float:
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):  # no such thing on Windows
        return 0.0


def one_thread_rate() -> float:
    """The multiply rate of a single thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return multiply_rate()
    finally:
        torch.set_num_threads(threads)


def attention_bandwidth() -> float:
    """Bytes of keys and values per second that one query reads over 32K float16 rows."""
    q = torch.randn(1, _HEADS, _DIM)
    rows = torch.randn(2, _KV_HEADS, _ROWS, _DIM).half()
    return rows.numel() * rows.element_size() / median_seconds(lambda: attend(q, rows[0], rows[1]))


def median_seconds(work: Callable[[], object], runs: int = 5) -> float:
    """The median of `runs` runs of `work`, after one that is not counted."""
    work()
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
