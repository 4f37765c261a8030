"""Decoding against transformers' `generate`: the same weights, prompt and number of tokens, in turn, one run.

    pip install transformers
    python benchmarks/transformers_generate.py --contexts 4096 8064

transformers decodes in float32 and bfloat16, of which the better counts, and in float32 with its prompt lookup, for
information. All keep the prompt's rows, so that only decoding is timed; transformers' clock starts when its first token
is there. Greedy tokens are compared with our plain decoding's. The last line is JSON.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import triforce
from triforce.config import Decoding, SamplingParams
from triforce.engine import Engine
from triforce.pull import document_path, pull

import torch
from measuring import Target, finish, spread
from parity import compare
from torch import Tensor
from transformers import DynamicCache, LlamaForCausalLM
from transformers.generation.streamers import BaseStreamer
from transformers_model import transformers_model

FASTER = 6.0
COUNTED = ("float32", "bfloat16")  # whose better one our plain decoding is compared with

Run = tuple[float, list[int]]  # tokens per second, and the tokens


class Clock(BaseStreamer):  # type: ignore[misc]
    """Hears of the prompt and then of new tokens, one or several at a time."""

    def __init__(self) -> None:
        self._arrivals: list[tuple[float, int]] = []

    def put(self, value: Tensor) -> None:
        self._arrivals.append((time.perf_counter(), value.numel()))

    def end(self) -> None:
        pass

    def tokens_per_second(self) -> float:
        """Of all tokens after the first ones, over the time since those."""
        (first, _), *others = self._arrivals[1:]  # the first arrival is the prompt
        return sum(count for _, count in others) / (others[-1][0] - first)


class Theirs:
    """A transformers model and the rows of one prompt."""

    def __init__(self, model: LlamaForCausalLM, prompt: list[int]) -> None:
        self._model = model
        self._prompt = torch.tensor([prompt])
        self._cache = DynamicCache(config=model.config)
        with torch.inference_mode():
            model(self._prompt[:, :-1], past_key_values=self._cache, use_cache=True, logits_to_keep=1)

    def __call__(self, new: int, lookup: int | None = None) -> Run:
        """Greedy; `lookup` tokens are proposed by prompt lookup."""
        clock, length = Clock(), self._prompt.shape[1]
        if (excess := self._cache.get_seq_length() - (length - 1)) > 0:
            self._cache.crop(-excess)
        with torch.inference_mode():
            out = self._model.generate(
                self._prompt,
                attention_mask=torch.ones_like(self._prompt),
                past_key_values=self._cache,
                max_new_tokens=new,
                do_sample=False,
                streamer=clock,
                prompt_lookup_num_tokens=lookup,
            )
        return clock.tokens_per_second(), out[0, length:].tolist()


def main() -> None:
    args = _arguments()
    path = pull("smollm2")
    engine = triforce.load(str(path), cache_dtype=args.cache_dtype)
    models = {name: transformers_model(path, getattr(torch, name)) for name in args.dtypes}
    tokens = engine.tokenizer.encode(document_path(args.text).read_text(encoding="utf-8"))
    rows, targets = [], []
    for context in args.contexts:
        row = _measure(engine, models, tokens[:context], args)
        rows.append(row)
        targets.append(Target(f"{context} tokens: plain decoding by generate's", row["ratio"], FASTER))
    finish("transformers_generate", vars(args), rows, targets)


def _measure(
    engine: Engine, models: dict[str, LlamaForCausalLM], prompt: list[int], args: argparse.Namespace
) -> dict[str, Any]:
    theirs = {name: Theirs(model, prompt) for name, model in models.items()}
    works: dict[str, Callable[[], Run]] = {
        method: partial(_ours, engine, prompt, method, args.new) for method in ("ar", *args.methods)
    }
    works |= {name: partial(run, args.new) for name, run in theirs.items()}
    works["float32 lookup"] = lambda: theirs["float32"](args.new, args.lookup)
    runs: dict[str, list[Run]] = {name: [] for name in works}
    for _ in range(args.repeats):
        for name, work in works.items():
            runs[name].append(work())
    speeds = {name: [speed for speed, _ in mine] for name, mine in runs.items()}
    plain = runs["ar"][0][1]
    parity = {name: compare(engine, prompt, plain, mine[0][1]) for name, mine in runs.items() if name != "ar"}
    for name in works:
        print(f"{len(prompt):6} {name:15} {spread(speeds[name]):28} tok/s  {parity.get(name, '')}", flush=True)
    medians = {name: statistics.median(mine) for name, mine in speeds.items()}
    better = max(args.dtypes, key=medians.__getitem__)
    best = max(("ar", *args.methods), key=medians.__getitem__)
    pairs = {name: zip(speeds[name], speeds[better], strict=True) for name in dict.fromkeys(("ar", best))}
    ratios = {name: statistics.median(ours / other for ours, other in mine) for name, mine in pairs.items()}
    print(f"{len(prompt):6} ours by {better}: ar {ratios['ar']:.2f}x, best ({best}) {ratios[best]:.2f}x", flush=True)
    return {
        "context": len(prompt),
        "tokens_per_second": speeds,
        "better": better,
        "ratio": ratios["ar"],
        "best_method": best,
        "best_ratio": ratios[best],
        "parity": parity,
    }


def _ours(engine: Engine, prompt: list[int], method: str, new: int) -> Run:
    done = engine.generate(prompt, SamplingParams(max_new_tokens=new), Decoding(method=method))
    return done.timings.decode_tokens_per_second, done.token_ids


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", type=int, nargs="+", default=[4096, 8064])
    parser.add_argument("--text", default="hamlet")
    parser.add_argument("--methods", nargs="+", default=["lookup", "triforce"], help="ours, beside plain decoding")
    parser.add_argument("--cache-dtype", default="auto")
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument(
        "--dtypes", nargs="+", default=list(COUNTED), choices=COUNTED, help="theirs; float32 among them"
    )
    parser.add_argument("--lookup", type=int, default=4, help="tokens that their prompt lookup proposes")
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
