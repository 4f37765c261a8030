"""Bytes of everything that is held: weights, the full cache, what drafts are made of, and whether anything grows.

    python benchmarks/memory.py

No text is read: the rows of 32,768 tokens hold anything, since only sizes count. Then 300 tokens are decoded after a
short prompt, and what is held is compared with what was held before. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

import triforce
from triforce.caches.full import FullCache
from triforce.caches.sparse import NUM_QUERIES, SparseCache
from triforce.caches.streaming import StreamingCache
from triforce.config import Decoding, SamplingParams
from triforce.models import build_rope
from triforce.models.load import CACHE_DTYPES
from triforce.native import kernels

import numpy as np
import torch
from torch import Tensor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", default="smollm2")
    parser.add_argument("--context", type=int, default=32_768)
    parser.add_argument("--cache-dtype", default="float16", choices=CACHE_DTYPES)
    args = parser.parse_args()
    engine = triforce.load(args.model, cache_dtype=args.cache_dtype)
    sizes = held(engine, args.context, CACHE_DTYPES[args.cache_dtype])
    full = sizes["full"]
    for name, size in sizes.items():
        print(f"{name:28} {size:14,} bytes  {size / full:7.2%} of the full cache")
    drafting = (sizes["sparse"] + sizes["sparse, chunk means"]) / full
    print(f"{'sparse cache in all':28} {drafting:30.2%}")
    grown = growth(engine)
    print(f"over 300 tokens: {grown}")
    print(
        json.dumps(
            {
                "benchmark": "memory",
                "context": args.context,
                "cache_dtype": args.cache_dtype,
                "native": kernels() is not None,
                "bytes": sizes,
                "sparse_of_full": drafting,
                "growth": grown,
            }
        )
    )


def held(engine: triforce.Engine, context: int, dtype: torch.dtype) -> dict[str, int]:
    """Bytes by name, with a full cache of `context` rows."""
    model, decoding = engine.target, Decoding()
    rope = build_rope(replace(model.config, rope_scaling=None), None)
    full = FullCache(model.cache_shape, rope, capacity=context, num_queries=NUM_QUERIES + decoding.stride, dtype=dtype)
    for plane in full.planes:
        plane.random_(0, 3) if plane.dtype == torch.int8 else plane.fill_(0.5)
    tokens = np.zeros(context, dtype=np.int32)
    full.log.append(tokens)
    sparse = SparseCache(full, decoding)
    sparse.sync(tokens)
    drafter = StreamingCache(model.cache_shape, rope, slots=decoding.slots, sinks=decoding.sinks, dtype=model.dtype)
    return {
        "weights": bytes_of([model]),
        "full": bytes_of(full.planes),
        "full, remembered queries": bytes_of([full._queries]),
        "sparse": bytes_of(sparse._planes),
        "sparse, chunk means": bytes_of(sparse._means),
        "streaming, target's weights": bytes_of([drafter]),
    }


def growth(engine: triforce.Engine) -> dict[str, list[int]]:
    """What a call holds after each 100 of 300 tokens: its full cache, and all else of its methods' parts."""
    prompt = list(range(300, 900))
    stream = engine.stream(prompt, SamplingParams(max_new_tokens=300), Decoding(method="triforce", budget=256))
    full, rest = [], []
    for number, _ in enumerate(stream, 1):
        if number % 100 == 0:
            assert engine._cache is not None
            full.append(bytes_of(engine._cache.planes))
            rest.append(bytes_of([stream, engine]) - full[-1] - bytes_of(engine.target))
    return {"full": full, "all else": rest}


def bytes_of(things: object) -> int:
    """Bytes of all storages that can be reached, each counted once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors_of(things)}
    return sum(storages.values())


def tensors_of(thing: object, seen: set[int] | None = None) -> list[Tensor]:
    """All tensors that `thing` holds, directly or through others."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return []
    seen.add(id(thing))
    if isinstance(thing, Tensor):
        return [thing]
    inner: list[object] = []
    if isinstance(thing, dict):
        inner = list(thing.values())
    elif isinstance(thing, list | tuple):
        inner = list(thing)
    elif type(thing).__module__.startswith("triforce"):
        inner = list(getattr(thing, "__dict__", {}).values())
    return [tensor for each in inner for tensor in tensors_of(each, seen)]


if __name__ == "__main__":
    with torch.inference_mode():
        main()
