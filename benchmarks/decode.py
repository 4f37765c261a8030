"""Decode speed of our own methods on real text: medians and spreads from one run, the same prompts for every method.

    python benchmarks/decode.py --contexts 4096 8192 16384 --methods ar retrieval triforce

Per context and prompt the methods run in turn over one prefilled cache; ratios to `ar` are taken prompt by prompt.
Greedy tokens are compared with plain decoding's. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

import triforce
from triforce.config import Decoding, SamplingParams
from triforce.engine import Engine
from triforce.native import kernels
from triforce.pull import document_path


@dataclass(frozen=True)
class Row:
    """One method on one prompt."""

    context: int
    prompt: str
    method: str
    tokens_per_second: float
    acceptance: dict[str, float]
    token_ids: list[int]


def main() -> None:
    args = _arguments()
    torch.manual_seed(0)
    texts = [(Path(name).stem, _text(name)) for name in args.texts]
    rows: list[Row] = []
    for context in args.contexts:
        factor = -(-(context + args.new) // args.trained_context)
        scaling = f"yarn:{factor}" if factor > 1 else None
        engine = triforce.load(args.model, draft=args.draft, dtype=args.dtype, rope_scaling=scaling)
        for name, text in texts:
            for offset in range(args.repeats):
                rows += _measure(engine, args, context, f"{name}+{offset}", text, offset)
    _report(rows, args)


def _measure(engine: Engine, args: argparse.Namespace, context: int, name: str, text: str, offset: int) -> list[Row]:
    tokens = engine.tokenizer.encode(text)
    start = offset * context // 2
    prompt = tokens[start : start + context]
    if len(prompt) < context:
        sys.exit(f"{name} has {len(tokens)} tokens, too few for {context} at offset {start}")
    rows = []
    for method in args.methods:
        sampling = SamplingParams(temperature=args.temperature, top_p=args.top_p, seed=offset, max_new_tokens=args.new)
        decoding = Decoding(
            method=method, budget=args.budget, gamma1=args.gamma1, gamma2=args.gamma2, policy=args.policy
        )
        done = engine.generate(prompt, sampling, decoding)
        acceptance = {level.name: level.accepted / level.drafted for level in done.levels if level.drafted}
        row = Row(context, name, method, done.timings.decode_tokens_per_second, acceptance, done.token_ids)
        rows.append(row)
        shown = " ".join(f"{level} {rate:.2f}" for level, rate in acceptance.items())
        seconds = " ".join(f"{level.name} {level.passes}x {level.seconds:.2f}s" for level in done.levels)
        print(f"{context:6} {name:28} {method:10} {row.tokens_per_second:7.2f} tok/s  {shown}  [{seconds}]", flush=True)
    return rows


def _report(rows: list[Row], args: argparse.Namespace) -> None:
    native = kernels()
    variant = native.variant if native else "pytorch"
    summary = []
    print(f"\n{'context':>7} {'method':10} {'tok/s median (min-max)':28} {'x ar median (min-max)':26} tokens as ar")
    for context in args.contexts:
        plain = {row.prompt: row for row in rows if row.context == context and row.method == "ar"}
        for method in args.methods:
            ours = [row for row in rows if row.context == context and row.method == method]
            speeds = [row.tokens_per_second for row in ours]
            ratios = [row.tokens_per_second / plain[row.prompt].tokens_per_second for row in ours if plain]
            same = sum(row.token_ids == plain[row.prompt].token_ids for row in ours if plain)
            print(
                f"{context:7} {method:10} {_spread(speeds):28} {_spread(ratios):26} "
                + (f"{same}/{len(ours)}" if plain and args.temperature == 0 else "-")
            )
            summary.append(
                {"context": context, "method": method, "tokens_per_second": speeds, "ratios": ratios, "same": same}
            )
    print(
        json.dumps(
            {
                "benchmark": "decode",
                "settings": vars(args),
                "threads": torch.get_num_threads(),
                "kernels": variant,
                "rows": summary,
            }
        )
    )


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})" if values else "-"


def _text(name: str) -> str:
    path = Path(name)
    return (path if path.exists() else document_path(name)).read_text(encoding="utf-8", errors="replace")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--draft")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--trained-context", type=int, default=8192, help="beyond it YaRN is used")
    parser.add_argument("--contexts", type=int, nargs="+", default=[4096, 8064])
    parser.add_argument("--texts", nargs="+", default=["hamlet", "lear", "othello"])
    parser.add_argument("--repeats", type=int, default=1, help="prompts per text, at different offsets")
    parser.add_argument("--methods", nargs="+", default=["ar", "retrieval", "triforce"])
    parser.add_argument("--new", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--budget", type=int, default=Decoding.budget)
    parser.add_argument("--gamma1", type=int)
    parser.add_argument("--gamma2", type=int)
    parser.add_argument("--policy", default=Decoding.policy)
    return parser.parse_args()


if __name__ == "__main__":
    main()
