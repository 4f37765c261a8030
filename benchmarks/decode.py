"""Decode speed of our own methods on real text: medians and spreads from one run, the same prompts for every method.

    python benchmarks/decode.py --contexts 8064 16384 32768 --texts hamlet lear othello macbeth tempest
    python benchmarks/decode.py --contexts 8064 16384 --texts quote code --repeats 3 --methods ar lookup triforce

Per context and prompt the methods run in turn over one prefilled cache; ratios to `ar` are taken prompt by prompt.
Greedy tokens are compared with plain decoding's. `--texts` are plays, files, or two made texts that repeat their
context (see texts.py): `quote` and `code`. A text too short is followed by the next one. The last line is JSON.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triforce.config import Decoding, SamplingParams
from triforce.engine import Engine
from triforce.native import kernels

import torch
from loading import TRAINED_CONTEXT, engine_for
from measuring import Target, finish, spread
from texts import REPEATING, kind_of, prompt_tokens

# The best method by plain decoding: contexts (those of up to 5 % less count as them) and ratios.
TARGETS = {"prose": {8192: 1.2, 16_384: 1.4, 32_768: 1.7}, **{name: {8192: 2.0, 16_384: 3.0} for name in REPEATING}}


@dataclass(frozen=True)
class Row:
    """One method on one prompt."""

    context: int
    kind: str
    prompt: str
    method: str
    tokens_per_second: float
    acceptance: dict[str, float]
    token_ids: list[int]


def main() -> None:
    args = _arguments()
    torch.manual_seed(0)
    rows: list[Row] = []
    for context in args.contexts:
        engine = engine_for(args.model, context + args.new, args.trained_context, draft=args.draft, dtype=args.dtype)
        for name in args.texts:
            for offset in range(args.repeats):
                rows += _measure(engine, args, context, name, offset)
    _report(rows, args)


def _measure(engine: Engine, args: argparse.Namespace, context: int, text: str, offset: int) -> list[Row]:
    prompt = prompt_tokens(text, engine.tokenizer, context, offset, args.texts)
    name = f"{Path(text).stem}+{offset}"
    rows = []
    for method in args.methods:
        sampling = SamplingParams(temperature=args.temperature, top_p=args.top_p, seed=offset, max_new_tokens=args.new)
        decoding = Decoding(
            method=method, budget=args.budget, gamma1=args.gamma1, gamma2=args.gamma2, policy=args.policy
        )
        done = engine.generate(prompt, sampling, decoding)
        acceptance = {level.name: level.accepted / level.drafted for level in done.levels if level.drafted}
        row = Row(
            context, kind_of(text), name, method, done.timings.decode_tokens_per_second, acceptance, done.token_ids
        )
        rows.append(row)
        shown = " ".join(f"{level} {rate:.2f}" for level, rate in acceptance.items())
        seconds = " ".join(f"{level.name} {level.passes}x {level.seconds:.2f}s" for level in done.levels)
        print(f"{context:6} {name:28} {method:10} {row.tokens_per_second:7.2f} tok/s  {shown}  [{seconds}]", flush=True)
    return rows


def _report(rows: list[Row], args: argparse.Namespace) -> None:
    native = kernels()
    plain = {(row.context, row.prompt): row for row in rows if row.method == "ar"}
    summary: list[dict[str, Any]] = []
    print(f"\n{'context':>7} {'text':9} {'method':10} {'tok/s median (min-max)':28} {'x ar':26} tokens as ar")
    for context, kind, method in dict.fromkeys((row.context, row.kind, row.method) for row in rows):
        ours = [row for row in rows if (row.context, row.kind, row.method) == (context, kind, method)]
        pairs = [(row, plain[context, row.prompt]) for row in ours if plain]
        speeds = [row.tokens_per_second for row in ours]
        ratios = [row.tokens_per_second / ar.tokens_per_second for row, ar in pairs]
        same = sum(row.token_ids == ar.token_ids for row, ar in pairs)
        shown = f"{same}/{len(ours)}" if plain and args.temperature == 0 else "-"
        print(f"{context:7} {kind:9} {method:10} {spread(speeds):28} {spread(ratios):26} {shown}")
        summary.append(
            {
                "context": context,
                "kind": kind,
                "method": method,
                "tokens_per_second": speeds,
                "ratios": ratios,
                "same": same,
                "prompts": [row.prompt for row in ours],
            }
        )
    settings = {**vars(args), "kernels": native.variant if native else "pytorch"}
    finish("decode", settings, summary, _targets(summary))


def _targets(summary: list[dict[str, Any]]) -> list[Target]:
    """The best method's median ratio against its target, per context and kind of text that have one."""
    targets = []
    for context, kind in dict.fromkeys((row["context"], row["kind"]) for row in summary):
        medians = {
            row["method"]: statistics.median(row["ratios"])
            for row in summary
            if (row["context"], row["kind"]) == (context, kind) and row["method"] != "ar" and row["ratios"]
        }
        wanted = [ratio for least, ratio in TARGETS[kind].items() if 0.95 * least <= context <= least]
        if medians and wanted:
            best = max(medians, key=medians.__getitem__)
            targets.append(Target(f"{kind}, {context} tokens: {best} by plain decoding", medians[best], wanted[0]))
    return targets


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--draft")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--trained-context", type=int, default=TRAINED_CONTEXT, help="beyond it YaRN is used")
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
