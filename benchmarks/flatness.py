"""What a level costs as the context grows: level 1 (a draft step) and level 2 (a pass over the sparse cache).

    python benchmarks/flatness.py --contexts 2048 8192 32768 131072

No prompt is read: the full cache holds random rows (see synthetic.py), the tokens are a text repeated. Contexts are
visited in turn, and at each visit calls are timed after one that is not, so that a context does not pay for the visit
before it. Whether a cost is flat is said by ratios within a round of visits, so that slow moments are shared. Renewing
the selection grows with the context and is reported apart, spread over the tokens that it serves; a pass over the full
cache is given for comparison. The last line is JSON.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

from triforce.caches.sparse import SparseCache
from triforce.config import Decoding, SamplingParams
from triforce.drafters.lookup import Lookup
from triforce.engine import Engine
from triforce.models.decoder import Decoder
from triforce.parts import Parts
from triforce.pull import document_path
from triforce.runner import ModelRunner
from triforce.sampling import Sampler
from triforce.tokens import TokenIds, extend

import numpy as np
import torch
from loading import engine_for
from measuring import Target, finish, spread, whole
from synthetic import SPARE_ROWS, random_rows, synthetic_cache
from torch import Tensor

FLAT = 1.1  # most that the dearest context may cost by the cheapest
LEVELS = ("draft step, streaming cache", "draft step, lookup", "sparse pass, 1 row", "sparse pass, {} rows")
FULL = "full pass, 1 row"  # for comparison
SHORTEST_VISIT = 0.02  # seconds
QUOTED_FROM = 1000
EXCERPT = 64  # tokens at the end of every context that occurred before, so that lookup finds them


class Context:
    """One length: its tokens, its caches and what is measured at it."""

    def __init__(self, engine: Engine, source: TokenIds, length: int, rows: tuple[Tensor, Tensor]) -> None:
        decoding = Decoding()
        self.length = length
        self.tokens = _ends_quoting(source[:length])
        self._full = synthetic_cache(engine.target, self.tokens, rows)
        self.sparse = SparseCache(self._full, decoding)
        self._lookup = Lookup(engine.target.config.vocab_size)
        self._sampler = Sampler(SamplingParams())
        self._depth = decoding.without_clock().gamma1 or 0
        self._drafter = Parts(engine.target, self._full, engine.draft, decoding).small()
        self._runner = ModelRunner("sparse", engine.target, self.sparse)
        self._target = ModelRunner("target", engine.target, self._full)
        self._more = self.tokens[: self._depth].tolist()  # any tokens: the rows to verify

    def works(self) -> dict[str, Callable[[], object]]:
        """What is timed, by name."""
        work: tuple[Callable[[], object], ...] = (
            lambda: self._drafter.propose(self.tokens, 1, self._sampler),
            lambda: self._lookup.propose(self.tokens, self._depth, self._sampler),
            lambda: self._runner.logits(extend(self.tokens, self._more[:1]), 1),
            lambda: self._runner.logits(extend(self.tokens, self._more), self._depth + 1),
        )
        named = dict(zip((level.format(self._depth + 1) for level in LEVELS), work, strict=True))
        return {**named, FULL: lambda: self._target.logits(extend(self.tokens, self._more[:1]), 1)}


def main() -> None:
    args = _arguments()
    torch.manual_seed(0)
    longest = max(args.contexts)
    engine = engine_for(args.model, longest + SPARE_ROWS, draft=args.draft)
    rows = random_rows(engine.target, longest)
    text = engine.tokenizer.encode(document_path(args.text).read_text(encoding="utf-8"))
    source = np.resize(np.asarray(text, dtype=np.int32), longest)
    contexts = [Context(engine, source, length, rows) for length in args.contexts]
    seconds = _visit(contexts, args)
    selection = {context.length: _selection(engine.target, context, rows, args.runs) for context in contexts}
    _report(seconds, selection, args)


def _visit(contexts: list[Context], args: argparse.Namespace) -> dict[str, dict[int, list[list[float]]]]:
    """Seconds of every work at every context and visit, contexts in turn for one work after the other."""
    seconds: dict[str, dict[int, list[list[float]]]] = {}
    for name in contexts[0].works():
        seconds[name] = {context.length: [] for context in contexts}
        works = {context.length: context.works()[name] for context in contexts}
        visits = args.runs if name != FULL else -(-args.runs // args.calls)
        for visit in range(visits + 1):  # the first one indexes, selects and warms up
            for length, work in works.items():
                taken = _timed(work, args.calls)
                seconds[name][length] += [taken] if visit else []
    return seconds


def _timed(work: Callable[[], object], calls: int) -> list[float]:
    """Seconds of at least `calls` calls, of more where they are short, after one that is not counted."""
    taken: list[float] = []
    while len(taken) <= calls or sum(taken) < SHORTEST_VISIT:
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return taken[1:]


def _selection(model: Decoder, context: Context, rows: tuple[Tensor, Tensor], runs: int) -> list[float]:
    """Seconds of each renewal of the selection, as `runs` times `stride` tokens are committed up to the length."""
    decoding, tokens = Decoding(), context.tokens
    begin = len(tokens) - (runs + 1) * decoding.stride
    full = synthetic_cache(model, tokens[:begin], rows)
    sparse = SparseCache(full, decoding)
    sparse.sync(tokens[:begin])  # averages all chunks at once, as after a prompt
    taken = []
    for end in range(begin + decoding.stride, len(tokens) + 1, decoding.stride):
        full.log.append(tokens[len(full.log) : end])
        start = time.perf_counter()
        sparse.sync(tokens[:end])
        taken.append(time.perf_counter() - start)
    return taken[1:]


def _relative(visits: dict[int, list[list[float]]]) -> dict[int, float]:
    """Each context's cost over the mean of all: the median over rounds of visits."""
    rounds = [[statistics.median(calls) for calls in each] for each in zip(*visits.values(), strict=True)]
    return {
        length: statistics.median(costs[i] / statistics.fmean(costs) for costs in rounds)
        for i, length in enumerate(visits)
    }


def _ends_quoting(tokens: TokenIds) -> TokenIds:
    """`tokens`, the last of them replaced by what stands at `QUOTED_FROM`: the same in every context."""
    return np.concatenate((tokens[:-EXCERPT], tokens[QUOTED_FROM : QUOTED_FROM + EXCERPT]))


def _report(
    seconds: dict[str, dict[int, list[list[float]]]], selection: dict[int, list[float]], args: argparse.Namespace
) -> None:
    lengths = args.contexts
    print(f"milliseconds, median (min-max)\n{'':30}" + "".join(f"{length:>24,}" for length in lengths))
    rows: list[dict[str, Any]] = []
    targets = []
    for name, visits in seconds.items():
        by_length = {length: [call for visit in visits[length] for call in visit] for length in lengths}
        print(f"{name:30}" + "".join(f"{spread(by_length[length], 1e3):>24}" for length in lengths))
        relative = _relative(visits)
        print(f"{'  by the mean of all':30}" + "".join(f"{relative[length]:>24.3f}" for length in lengths))
        medians = {length: statistics.median(by_length[length]) for length in lengths}
        rows.append({"what": name, "median_seconds": medians, "relative": relative})
        if name != FULL and len(lengths) > 1:
            ratio = max(relative.values()) / min(relative.values())
            targets.append(Target(f"{name}: dearest context by cheapest", ratio, FLAT, at_most=True))
    per_token = {length: [taken / Decoding.stride for taken in selection[length]] for length in lengths}
    for name, by_length in (("selection, each renewal", selection), ("selection, per token", per_token)):
        print(f"{name:30}" + "".join(f"{spread(by_length[length], 1e3):>24}" for length in lengths))
        rows.append({"what": name, "median_seconds": {at: statistics.median(by_length[at]) for at in lengths}})
    finish("flatness", vars(args), rows, targets)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--draft")
    parser.add_argument(
        "--contexts", type=whole(QUOTED_FROM + EXCERPT), nargs="+", default=[2048, 8192, 32_768, 131_072]
    )
    parser.add_argument("--text", default="hamlet")
    parser.add_argument("--runs", type=whole(1), default=15, help="visits of each context")
    parser.add_argument("--calls", type=whole(1), default=3, help="calls timed at each visit, at least")
    return parser.parse_args()


if __name__ == "__main__":
    with torch.inference_mode():
        main()
