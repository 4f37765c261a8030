"""Reading a prompt: against transformers in float32 with the same weights, and against what arithmetic allows.

    pip install transformers
    python benchmarks/prefill.py --contexts 4096 8064

Both read the whole prompt into an empty cache and give the logits of its last token, in turn; logits are compared. The
bound is the multiplications and additions that the cache and the answer need, over the rate of a square product
measured before each run. The last line is JSON.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import triforce
from triforce.caches.full import FullCache
from triforce.engine import Engine
from triforce.machine import multiply_rate
from triforce.models.config import ModelConfig
from triforce.models.rope_scaling import build_rope
from triforce.pull import document_path, pull
from triforce.runner import ModelRunner
from triforce.tokens import extend

import numpy as np
import torch
from measuring import Target, finish, spread
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers_model import transformers_model

FASTER, OF_BOUND = 1.2, 0.7
LARGEST_DIFFERENCE = 0.02  # of the logits' norm; rows in float16 give about a tenth of it


def main() -> None:
    args = _arguments()
    path = pull("smollm2")
    engine = triforce.load(str(path), cache_dtype=args.cache_dtype)
    theirs = transformers_model(path, torch.float32)
    tokens = engine.tokenizer.encode(document_path(args.text).read_text(encoding="utf-8"))
    rows, targets = [], []
    for context in args.contexts:
        row = _measure(engine, theirs, tokens[:context], args.repeats)
        rows.append(row)
        targets.append(Target(f"{context} tokens: speed by transformers'", row["ratio"], FASTER))
        targets.append(Target(f"{context} tokens: share of the arithmetic bound", row["of_bound"], OF_BOUND))
    finish("prefill", vars(args), rows, targets)


@torch.inference_mode()
def _measure(engine: Engine, theirs: LlamaForCausalLM, prompt: list[int], repeats: int) -> dict[str, Any]:
    work: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: _ours(engine, prompt),
        "transformers": lambda: _theirs(theirs, prompt),
    }
    seconds: dict[str, list[float]] = {name: [] for name in work}
    rates, logits = [], {}
    for turn in range(repeats + 1):  # the first turn is not counted
        rates.append(multiply_rate())
        for name, read in work.items():
            start = time.perf_counter()
            logits[name] = read()
            seconds[name] += [time.perf_counter() - start] if turn else []
        _check(logits["ours"], logits["transformers"])
    bound = _operations(engine.target.config, len(prompt)) / statistics.median(rates)
    ours, transformers = (statistics.median(seconds[name]) for name in ("ours", "transformers"))
    speeds = {name: [len(prompt) / run for run in runs] for name, runs in seconds.items()}
    print(
        f"{len(prompt):6} tokens: ours {spread(speeds['ours'])} tok/s, transformers {spread(speeds['transformers'])}, "
        f"bound {len(prompt) / bound:.1f} at {spread(rates, 1e-9)} GFLOP/s; "
        f"logits differ by {_difference(logits['ours'], logits['transformers']):.1e}",
        flush=True,
    )
    return {
        "context": len(prompt),
        "tokens_per_second": speeds,
        "multiply_rates": rates,
        "bound_seconds": bound,
        "logits_difference": _difference(logits["ours"], logits["transformers"]),
        "ratio": statistics.median(b / a for a, b in zip(seconds["ours"], seconds["transformers"], strict=True)),
        "ratio_of_medians": transformers / ours,
        "of_bound": bound / ours,
    }


def _ours(engine: Engine, prompt: list[int]) -> Tensor:
    rope = build_rope(engine.target.config, len(prompt))
    cache = FullCache(engine.target.cache_shape, rope, capacity=len(prompt), dtype=engine.cache_dtype)
    return ModelRunner("target", engine.target, cache).logits(extend(np.empty(0, np.int32), prompt), 1)[0]


def _theirs(model: LlamaForCausalLM, prompt: list[int]) -> Tensor:
    logits: Tensor = model(torch.tensor([prompt]), use_cache=True, logits_to_keep=1).logits[0, -1]
    return logits


def _operations(config: ModelConfig, tokens: int) -> float:
    """Multiplications and additions of a prompt: every matrix by every token, and attention over half of the square.

    Of the last layer queries, keys and values alone: the rest serves nothing but the last token.
    """
    attended = config.num_heads * config.head_dim
    qkv = config.hidden_size * (attended + 2 * config.num_kv_heads * config.head_dim)
    layer = qkv + attended * config.hidden_size + 3 * config.hidden_size * config.intermediate_size
    attention = 2 * 2 * attended * tokens * tokens / 2  # scores, then values
    all_but_one = (config.num_layers - 1) * (2 * layer * tokens + attention)
    return all_but_one + 2 * qkv * tokens + 2 * config.hidden_size * config.vocab_size


def _difference(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def _check(ours: Tensor, theirs: Tensor) -> None:
    """The comparison is only fair between equal models."""
    if _difference(ours, theirs) > LARGEST_DIFFERENCE:
        sys.exit(f"logits differ by {_difference(ours, theirs):.1e} of their norm: these are not the same model")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", type=int, nargs="+", default=[4096, 8064])
    parser.add_argument("--text", default="hamlet")
    parser.add_argument("--cache-dtype", default="auto")
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
