"""What drafts could gain at most: greedy tokens are recorded, passes measured, and the best drafts chosen in hindsight.

    python benchmarks/bound.py --contexts 8064 16384 --texts code quote --repeats 3

Two bounds on the ratio to plain decoding, of drafts that cost no time; what a step costs beside its pass is left out on
both sides. "always right": any draft of up to `--deepest` tokens is accepted. "copied": a draft is what followed one
earlier occurrence of the last three tokens, whichever serves best, and ends before its first wrong token, or sooner
where that is cheaper; so lookup cannot do better, but a model, or copies of several places in one draft, might. No
method knows beforehand which occurrence serves, or where it goes wrong. The last line is JSON.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from triforce.config import Decoding, SamplingParams
from triforce.engine import Engine
from triforce.runner import ModelRunner
from triforce.tokens import TokenIds

import numpy as np
import torch
from loading import TRAINED_CONTEXT, engine_for
from measuring import finish, in_turn, whole
from synthetic import SPARE_ROWS, random_rows, synthetic_cache
from texts import REPEATING, prompt_tokens

MATCH = 3  # tokens that an earlier occurrence has in common with the last ones
SIZES = (*range(1, 17), 20, 24, 32, 48, 64)  # of measured passes; what lies between is interpolated


def main() -> None:
    args = _arguments()
    rows: list[dict[str, Any]] = []
    print(f"{'context':>7} {'text':10} {'pass of 1':>10} {f'of {1 + args.deepest}':>10} {'always right':>13} copied")
    for context in args.contexts:
        engine = engine_for(args.model, context + args.new, args.trained_context)
        seconds = _passes(engine, context, args)
        for text in args.texts:
            rows += [_bounds(engine, args, context, text, offset, seconds) for offset in range(args.repeats)]
    finish("bound", vars(args), rows, [])


def _bounds(
    engine: Engine, args: argparse.Namespace, context: int, text: str, offset: int, seconds: dict[int, float]
) -> dict[str, Any]:
    prompt = prompt_tokens(text, engine.tokenizer, context, offset, args.texts)
    greedy = SamplingParams(temperature=0, max_new_tokens=args.new)
    new = engine.generate(prompt, greedy, Decoding(method="lookup")).token_ids  # plain decoding's, but sooner
    right = copied(np.asarray([*prompt, *new]), len(prompt), args.deepest)
    gains = {"always_right": gain(seconds, [args.deepest] * len(new)), "copied": gain(seconds, right)}
    one, deepest = (f"{1e3 * seconds[n]:.1f} ms" for n in (1, 1 + args.deepest))
    shown = f"{gains['always_right']:12.2f}x {gains['copied']:5.2f}x"
    print(f"{context:7} {f'{text}+{offset}':10} {one:>10} {deepest:>10} {shown}", flush=True)
    return {"context": context, "text": f"{text}+{offset}", "seconds": [seconds[1], seconds[1 + args.deepest]], **gains}


def _passes(engine: Engine, context: int, args: argparse.Namespace) -> dict[int, float]:
    """Seconds of a pass of 1, 2, ... rows over a full cache of `context` rows: medians of passes in turn.

    No pass is dearer than a larger one: a draft could be filled up with anything.
    """
    tokens = np.resize(np.arange(1000, dtype=np.int32), context + SPARE_ROWS)
    rows = random_rows(engine.target, context, engine.cache_dtype)
    runner = ModelRunner("target", engine.target, synthetic_cache(engine.target, tokens[:context], rows))
    most = 1 + args.deepest
    sizes = sorted({*(size for size in SIZES if size < most), most})
    works: dict[str, Callable[[], object]] = {str(n): partial(runner.logits, tokens[: context + n], n) for n in sizes}
    with torch.inference_mode():
        taken = in_turn(works, args.runs)
    costs = np.interp(range(1, most + 1), sizes, [statistics.median(taken[str(n)]) for n in sizes])
    costs = np.minimum.accumulate(costs[::-1])[::-1]
    return dict(enumerate(costs.tolist(), 1))


def copied(tokens: TokenIds, start: int, deepest: int) -> list[int]:
    """How many tokens, `deepest` at most, stand after an earlier match as they do from each position since `start`."""
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


def gain(seconds: dict[int, float], right: list[int]) -> float:
    """Plain decoding's time by that of the cheapest passes, where `right` tokens can be drafted at each position.

    `seconds` [rows of a pass] up to one more than the most that are right.
    """
    end = len(right)
    cost = [0.0] * (end + 1)  # of all tokens from a position on
    for position in reversed(range(end)):
        depths = range(min(right[position], end - position - 1) + 1)
        cost[position] = min(seconds[depth + 1] + cost[position + depth + 1] for depth in depths)
    return end * seconds[1] / cost[0]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--trained-context", type=int, default=TRAINED_CONTEXT, help="beyond it YaRN is used")
    parser.add_argument("--contexts", type=whole(1 + MATCH), nargs="+", default=[8064])
    parser.add_argument("--texts", nargs="+", default=list(REPEATING))
    parser.add_argument("--repeats", type=whole(1), default=1, help="prompts per text, at different offsets")
    parser.add_argument("--new", type=whole(1), default=128)
    parser.add_argument("--deepest", type=whole(1, SIZES[-1] - 1), default=31)
    parser.add_argument("--runs", type=whole(1), default=15)
    return parser.parse_args()


if __name__ == "__main__":
    main()
