"""Greedy parity on a real model: every method against plain decoding, token for token, on long prompts.

    python benchmarks/greedy.py --contexts 4096 7680 --new 256

Where a token differs, the two logits that plain decoding weighed there are compared: a difference of less than 1e-3
relative is a tie that rounding may turn either way, and is reported; a larger one is a failure. Exits 1 on failure. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import sys

import triforce
from triforce.config import Decoding, SamplingParams
from triforce.methods import METHODS
from triforce.pull import document_path

from parity import compare


def main() -> int:
    args = _arguments()
    engine = triforce.load(
        args.model,
        draft=args.draft,
        dtype=args.dtype,
        cache_dtype=args.cache_dtype,
        rope_scaling=args.rope_scaling,
    )
    rows = []
    for context in args.contexts:
        for name in args.texts:
            prompt = engine.tokenizer.encode(document_path(name).read_text(encoding="utf-8"))[:context]
            sampling = SamplingParams(max_new_tokens=args.new)
            plain = engine.generate(prompt, sampling, Decoding(method="ar")).token_ids
            for method in args.methods:
                ours = engine.generate(prompt, sampling, Decoding(method=method)).token_ids
                rows.append(
                    {"context": context, "text": name, "method": method, **compare(engine, prompt, plain, ours)}
                )
                print(" ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    failures = [row for row in rows if row["verdict"] == "differs"]
    print(f"{len(rows)} runs, {len(failures)} failures, {sum(row['verdict'] == 'tie' for row in rows)} ties")
    print(json.dumps({"benchmark": "greedy", "settings": vars(args), "rows": rows}))
    return 1 if failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--draft")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--cache-dtype", default="float32")
    parser.add_argument("--rope-scaling")
    parser.add_argument("--contexts", type=int, nargs="+", default=[4096, 7680])
    parser.add_argument("--texts", nargs="+", default=["hamlet", "lear", "othello"])
    parser.add_argument("--methods", nargs="+", default=[name for name in METHODS if name != "ar"])
    parser.add_argument("--new", type=int, default=256)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
