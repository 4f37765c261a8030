"""What Python costs in a pass over the sparse cache, and what sampling adds to it.

    python benchmarks/overhead.py

Over a cache of random rows (see synthetic.py) each pass is timed whole (`ModelRunner.logits`: sync, embedding, layers,
head) and inside the library (every native call: embedding, `triforce_forward`, head); the rest is Python's share.
Sampling is a law and a draw from real logits, given as its share of one sampled row: pass, law and draw. For 152K words
the logits are the model's own, followed by copies far lower, and the pass is SmolLM2's, so that its share is an upper
bound: a model with such a vocabulary has a longer pass. The last line is JSON.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import triforce
from triforce.caches.sparse import SparseCache
from triforce.config import Decoding, SamplingParams
from triforce.engine import Engine
from triforce.native import kernels
from triforce.pull import document_path
from triforce.runner import ModelRunner
from triforce.sampling import Sampler
from triforce.tokens import TokenIds, extend

import numpy as np
import torch
from measuring import Target, finish, in_turn, spread
from synthetic import random_rows, synthetic_cache
from torch import Tensor

SHARE = 0.15
LARGE_VOCABULARY = 151_936  # Qwen's


class TimedLibrary:
    """The native library, its calls timed: about a microsecond each is added, to Python's share."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(self._library, name)

        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments)
            self.seconds += time.perf_counter() - start
            return result

        setattr(self, name, timed)  # the next call finds it at once
        return timed


def main() -> None:
    args = _arguments()
    torch.manual_seed(0)
    engine = triforce.load("smollm2")
    text = engine.tokenizer.encode(document_path(args.text).read_text(encoding="utf-8"))
    real = engine.logits(text[:512])[None]  # [1, vocab]
    tokens = np.asarray(text[: args.context], dtype=np.int32)
    runner, depth = _sparse_runner(engine, tokens), Decoding().without_clock().gamma1 or 0
    targets, rows = [], []
    for n in (1, depth + 1):
        whole, native = _passes(runner, extend(tokens, tokens[:n].tolist()), n, args.runs)
        share = statistics.median(1 - inside / all_of_it for inside, all_of_it in zip(native, whole, strict=True))
        print(f"sparse pass, {n} rows: {spread(whole, 1e3)} ms, native calls {spread(native, 1e3)} ms", flush=True)
        rows.append({"what": f"sparse pass, {n} rows", "seconds": whole, "native_seconds": native})
        targets.append(Target(f"Python's share of a sparse pass, {n} rows", share, SHARE, at_most=True))
    sampled, shares = _sampling(runner, extend(tokens, tokens[:1].tolist()), real, args.runs)
    finish("overhead", vars(args), rows + sampled, targets + shares)


def _sparse_runner(engine: Engine, tokens: TokenIds) -> ModelRunner:
    full = synthetic_cache(engine.target, tokens, random_rows(engine.target, len(tokens)))
    return ModelRunner("sparse", engine.target, SparseCache(full, Decoding()))


def _passes(runner: ModelRunner, tokens: TokenIds, n: int, runs: int) -> tuple[list[float], list[float]]:
    """Seconds of each pass over the last `n` of `tokens`, and of the native calls in it."""
    native = kernels()
    assert native is not None, "native kernels are not built: install a C compiler, then triforce again"
    library = native._library
    timed = TimedLibrary(library)
    native._library = timed  # type: ignore[assignment]
    inside: list[float] = []

    def work() -> None:
        timed.seconds = 0.0
        runner.logits(tokens, n)
        inside.append(timed.seconds)

    try:
        whole = in_turn({"pass": work}, runs, warm_up=8)["pass"]
    finally:
        native._library = library
    return whole, inside[-runs:]


def _draw(sampler: Sampler, logits: Tensor, tokens: TokenIds) -> object:
    return sampler.draw(sampler.laws(logits, tokens)[0])


def _sampling(
    runner: ModelRunner, tokens: TokenIds, real: Tensor, runs: int
) -> tuple[list[dict[str, Any]], list[Target]]:
    """Laws and draws in turn with the pass that they follow."""
    samplers = {"greedy": Sampler(SamplingParams()), "top-p 0.9": Sampler(SamplingParams(1.0, top_p=0.9, seed=1))}
    works: dict[str, Callable[[], object]] = {"pass": lambda: runner.logits(tokens, 1)}
    for logits in (real, _stretched(real, LARGE_VOCABULARY)):
        for name, sampler in samplers.items():
            works[f"{name}, {logits.shape[1]:,} words"] = partial(_draw, sampler, logits, tokens)
    seconds = in_turn(works, runs, warm_up=8)
    rows, targets = [], []
    whole = statistics.median(seconds.pop("pass"))
    for name, taken in seconds.items():
        print(f"{name}: {spread(taken, 1e3)} ms", flush=True)
        median = statistics.median(taken)
        rows.append({"what": name, "seconds": taken})
        targets.append(Target(f"share of a sampled row: {name}", median / (whole + median), SHARE, at_most=True))
    return rows, targets


def _stretched(logits: Tensor, words: int) -> Tensor:
    """`logits` [1, vocab] followed by copies of them, 10 lower each, to `words` in all."""
    copies = -(-words // logits.shape[1])
    return torch.cat([logits - 10.0 * copy for copy in range(copies)], 1)[:, :words].contiguous()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=8064)
    parser.add_argument("--text", default="hamlet")
    parser.add_argument("--runs", type=int, default=41)
    return parser.parse_args()


if __name__ == "__main__":
    with torch.inference_mode():
        main()
