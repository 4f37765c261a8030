"""What drafts could gain at most: greedy tokens are recorded, passes measured, and the best drafts chosen in hindsight.

    python benchmarks/bound.py --contexts 8064 16384 --texts code quote --repeats 3

Two bounds on the ratio to plain decoding, of drafts that cost no time. "always right": every draft is `--deepest`
tokens deep, and accepted. "copied": a draft is what followed some earlier occurrence of the last three tokens,
whichever occurrence serves best, and ends before the first wrong token, or sooner where that is cheaper. A method that
reads its drafts from the context cannot know either. The last line is JSON.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from measuring import finish, in_turn
from synthetic import SPARE_ROWS, random_rows, synthetic_cache
from texts import REPEATING, prompt_tokens

import triforce
from triforce.config import Decoding, SamplingParams
from triforce.engine import Engine
from triforce.runner import ModelRunner
from triforce.tokens import TokenIds

MATCH = 3  # tokens that an earlier occurrence has in common with the last ones
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # of measured passes; what lies between is interpolated


def main() -> None:
    args = _arguments()
    rows: list[dict[str, Any]] = []
    print(f"{'context':>7} {'text':10} {'pass of 1':>10} {f'of {1 + args.deepest}':>10} {'always right':>13} copied")
    for context in args.contexts:
        factor = -(-(context + args.new) // args.trained_context)
        engine = triforce.load(args.model, rope_scaling=f"yarn:{factor}" if factor > 1 else None)
        seconds = _passes(engine, context, args)
        for text in args.texts:
            for offset in range(args.repeats):
                prompt = prompt_tokens(text, engine.tokenizer, context, offset, args.texts)
                greedy = SamplingParams(temperature=0, max_new_tokens=args.new)
                new = engine.generate(prompt, greedy, Decoding(method="lookup")).token_ids
                row = {
                    "context": context,
                    "text": f"{text}+{offset}",
                    "seconds": seconds,
                    "always_right": _gain(seconds, [args.deepest] * len(new)),
                    "copied": _gain(seconds, copied(np.asarray([*prompt, *new]), len(prompt), args.deepest)),
                }
                rows.append(row)
                one, deepest = (f"{1e3 * seconds[n]:.1f} ms" for n in (1, 1 + args.deepest))
                gains = f"{row['always_right']:12.2f}x {row['copied']:5.2f}x"
                print(f"{context:7} {row['text']:10} {one:>10} {deepest:>10} {gains}", flush=True)
    finish("bound", vars(args), rows, [])


def _passes(engine: Engine, context: int, args: argparse.Namespace) -> dict[int, float]:
    """Seconds of a pass of 1, 2, ... rows over a full cache of `context` rows: medians of passes in turn."""
    tokens = np.resize(np.arange(1000, dtype=np.int32), context + SPARE_ROWS)
    rows = random_rows(engine.target, context)
    runner = ModelRunner("target", engine.target, synthetic_cache(engine.target, tokens[:context], rows))
    sizes = [size for size in SIZES if size <= 1 + args.deepest]
    works: dict[str, Callable[[], object]] = {str(n): partial(runner.logits, tokens[: context + n], n) for n in sizes}
    with torch.inference_mode():
        taken = in_turn(works, args.runs)
    medians = [statistics.median(taken[str(n)]) for n in sizes]
    return {n: float(np.interp(n, sizes, medians)) for n in range(1, 2 + args.deepest)}


def copied(tokens: TokenIds, start: int, deepest: int) -> list[int]:
    """How many tokens from each position since `start` on stand, `deepest` at most, after an earlier match."""
    grams = np.lib.stride_tricks.sliding_window_view(tokens, MATCH)
    right = []
    for position in range(start, len(tokens)):
        same = (grams[: position - MATCH] == tokens[position - MATCH : position]).all(1)
        ends = np.flatnonzero(same) + MATCH
        right.append(max((_common(tokens, int(end), position, deepest) for end in ends), default=0))
    return right


def _common(tokens: TokenIds, one: int, other: int, most: int) -> int:
    """How many tokens from `one` on are those from `other` on."""
    length = min(most, len(tokens) - other)
    differ = tokens[one : one + length] != tokens[other : other + length]
    return int(differ.argmax()) if differ.any() else length


def _gain(seconds: dict[int, float], right: list[int]) -> float:
    """Plain decoding's time by that of the cheapest passes, where `right` tokens can be drafted at each position."""
    end = len(right)
    cost = [0.0] * (end + 1)  # of all tokens from a position on
    for position in reversed(range(end)):
        depths = range(min(right[position], end - position - 1) + 1)
        cost[position] = min(seconds[depth + 1] + cost[position + depth + 1] for depth in depths)
    return end * seconds[1] / cost[0]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--trained-context", type=int, default=8192, help="beyond it YaRN is used")
    parser.add_argument("--contexts", type=int, nargs="+", default=[8064])
    parser.add_argument("--texts", nargs="+", default=list(REPEATING))
    parser.add_argument("--repeats", type=int, default=1, help="prompts per text, at different offsets")
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--deepest", type=int, default=31, help="tokens drafted at once, at most")
    parser.add_argument("--runs", type=int, default=15)
    return parser.parse_args()


if __name__ == "__main__":
    main()
