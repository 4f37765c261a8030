"""Plain decoding and prefill against llama.cpp: the same GGUF file, prompt tokens and threads, in turn, one run.

    pip install xllamacpp
    python benchmarks/llamacpp.py --contexts 16 4096 7936

llama.cpp runs with flash attention on and off; per context the better one counts. Its own timings are read. A prompt is
read once by each and then gone on with several times, in turn; prefill has one figure for each prompt. The last line
is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import triforce
from triforce.config import Decoding, SamplingParams
from triforce.pull import document_path, pull

import torch
import xllamacpp
from measuring import whole

REST = 3.0  # seconds between two, whose idle threads go on spinning for a while
FLASH = {
    "flash on": xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "flash off": xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}


def main() -> None:
    args = _arguments()
    model = str(pull("smollm2"))
    engine = triforce.load(model, rope_scaling=args.rope_scaling)
    tokens = engine.tokenizer.encode(document_path(args.text).read_text(encoding="utf-8"))
    servers = {name: _server(model, args, flash) for name, flash in FLASH.items()}
    sampling = SamplingParams(max_new_tokens=args.new, ignore_eos=True)
    rows = []
    for index, context in enumerate(args.contexts):
        for run in range(args.repeats):
            start = (index * args.repeats + run) * 101  # another one each time: nothing can be reused
            prompt = tokens[start : start + context]
            session = engine.session(prompt)
            for turn in range(args.turns):
                row: dict[str, Any] = {"context": context, "run": run, "turn": turn}
                time.sleep(REST)
                session.rewind(len(prompt))
                ours = session.generate(sampling, Decoding(method="ar")).timings
                row["ours"] = (ours.prefill_tokens_per_second, ours.decode_tokens_per_second)
                for name, server in servers.items():
                    time.sleep(REST)
                    row[name] = _measure(server, prompt, args.new)
                rows.append(row)
                print(row, flush=True)
    _report(rows, args)


def _server(model: str, args: argparse.Namespace, flash: Any) -> Any:
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = max(args.contexts) + args.new + 8
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = torch.get_num_threads()
    params.flash_attn_type = flash
    params.warmup = True
    params.n_gpu_layers = 0
    if args.rope_scaling:
        kind, _, factor = args.rope_scaling.partition(":")
        assert kind == "yarn", kind
        params.rope_scaling_type = xllamacpp.llama_rope_scaling_type.LLAMA_ROPE_SCALING_TYPE_YARN
        params.rope_freq_scale = 1 / float(factor)
        params.yarn_orig_ctx = 8192
    return xllamacpp.Server(params)


def _measure(server: Any, prompt: list[int], new: int) -> tuple[float, float]:
    """Prefill and decode tokens per second by llama.cpp's own clock; it keeps the prompt."""
    reply = server.handle_completions(
        {"prompt": prompt, "n_predict": new, "temperature": 0.0, "cache_prompt": True, "ignore_eos": True}
    )
    timings = (reply if isinstance(reply, dict) else json.loads(reply))["timings"]
    return timings["prompt_per_second"], timings["predicted_per_second"]


def _report(rows: list[dict[str, Any]], args: argparse.Namespace) -> None:
    print(f"\n{'context':>7} {'':8} {'ours':>8} {'flash on':>9} {'flash off':>9} {'ratio to the better':>20}")
    summary = []
    for context in args.contexts:
        mine = [row for row in rows if row["context"] == context]
        for index, what in enumerate(("prefill", "decode")):
            counted = mine if what == "decode" else [row for row in mine if row["turn"] == 0]
            medians = {key: statistics.median(row[key][index] for row in counted) for key in ("ours", *FLASH)}
            ours, on, off = (medians[key] for key in ("ours", *FLASH))
            ratio = ours / max(on, off)
            print(f"{context:7} {what:8} {ours:8.1f} {on:9.1f} {off:9.1f} {ratio:20.2f}")
            summary.append(
                {"context": context, "what": what, "ours": ours, "flash_on": on, "flash_off": off, "ratio": ratio}
            )
    print(
        json.dumps(
            {"benchmark": "llamacpp", "settings": vars(args), "threads": torch.get_num_threads(), "rows": summary}
        )
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", type=int, nargs="+", default=[16, 4096, 7936])
    parser.add_argument("--text", default="hamlet")
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--repeats", type=whole(1), default=1, help="prompts of each length")
    parser.add_argument("--turns", type=whole(1), default=5, help="times that each goes on from a prompt")
    parser.add_argument("--rope-scaling")
    return parser.parse_args()


if __name__ == "__main__":
    main()
