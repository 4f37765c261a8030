"""Options that several commands share, and the settings and engine made from them."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from triforce.checks import one_of
from triforce.cli.interrupts import Interrupts
from triforce.cli.progress import download_progress
from triforce.cli.telling import tell
from triforce.config import Decoding, SamplingParams
from triforce.dtypes import check_cache_dtype, check_dtype
from triforce.errors import UsageError
from triforce.methods import METHODS
from triforce.policies import POLICIES

if TYPE_CHECKING:
    from triforce.engine import Engine

DEFAULT_MODEL = "smollm2"


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, and where and how it runs."""
    group = parser.add_argument_group("model")
    group.add_argument(
        "-m",
        "--model",
        default=DEFAULT_MODEL,
        help="a name that `triforce pull` lists, a model directory, a .gguf file or a hub id org/name "
        "(default: %(default)s)",
    )
    group.add_argument("--draft", metavar="MODEL", help="a smaller model of the same vocabulary that drafts")
    group.add_argument("--dtype", default="auto", help="float32, bfloat16, float16 or auto (default: %(default)s)")
    group.add_argument(
        "--cache-dtype",
        default="auto",
        metavar="DTYPE",
        help="the same or int8, of keys and values kept (default: %(default)s)",
    )
    group.add_argument("--device", default="auto", help="cpu, cuda, cuda:N or auto (default: %(default)s)")
    group.add_argument(
        "--rope-scaling", metavar="KIND:FACTOR", help="extend the context past the trained one, as in yarn:2"
    )
    group.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: as PyTorch chooses)")


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """What to draw."""
    defaults = SamplingParams()
    group = parser.add_argument_group("sampling")
    group.add_argument(
        "-n",
        "--max-new-tokens",
        type=int,
        default=defaults.max_new_tokens,
        metavar="N",
        help="new tokens at most (default: %(default)s)",
    )
    group.add_argument(
        "--temperature",
        type=float,
        default=defaults.temperature,
        metavar="T",
        help="0 is greedy (default: %(default)s)",
    )
    group.add_argument(
        "--top-p", type=float, default=defaults.top_p, metavar="P", help="draw from the likeliest tokens of mass P"
    )
    group.add_argument(
        "--top-k", type=int, default=defaults.top_k, metavar="K", help="draw from the K likeliest tokens; 0 is off"
    )
    group.add_argument(
        "--min-p", type=float, default=defaults.min_p, metavar="P", help="drop tokens below P times the likeliest one's"
    )
    group.add_argument("--seed", type=int, help="repeat a run exactly (default: another one each time)")


def add_decoding_arguments(parser: argparse.ArgumentParser) -> None:
    """How to decode; nothing here changes what is drawn."""
    defaults = Decoding()
    group = parser.add_argument_group("decoding", "Speed only: no setting here changes the law of the output.")
    group.add_argument(
        "--method",
        default=defaults.method,
        help=f"one of {', '.join(METHODS)}; ar is plain decoding (default: %(default)s)",
    )
    group.add_argument(
        "--budget",
        type=int,
        default=defaults.budget,
        metavar="ROWS",
        help="rows per KV head that the sparse level keeps (default: %(default)s)",
    )
    group.add_argument(
        "--gamma1",
        type=int,
        default=defaults.gamma1,
        metavar="N",
        help="tokens drafted for the sparse level (default: as measured costs and acceptance suggest)",
    )
    group.add_argument(
        "--gamma2",
        type=int,
        default=defaults.gamma2,
        metavar="N",
        help="tokens drafted for the target (default: as measured, none where that would not pay)",
    )
    group.add_argument(
        "--policy",
        default=defaults.policy,
        help=f"how the sparse level chooses its rows: one of {', '.join(POLICIES)} (default: %(default)s)",
    )


def sampling_from(args: argparse.Namespace) -> SamplingParams:
    """The sampling settings. Raises `UsageError`."""
    if args.max_new_tokens < 1:
        raise UsageError(f"-n is {args.max_new_tokens}: ask for at least 1 token")
    return SamplingParams(
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        min_p=args.min_p,
        seed=args.seed,
        max_new_tokens=args.max_new_tokens,
    )


def decoding_from(args: argparse.Namespace) -> Decoding:
    """The decoding settings, with names that exist: found out here, before PyTorch is there. Raises `UsageError`."""
    one_of("method", args.method, METHODS)
    one_of("policy", args.policy, POLICIES)
    return Decoding(method=args.method, gamma1=args.gamma1, gamma2=args.gamma2, budget=args.budget, policy=args.policy)


def load_engine(args: argparse.Namespace) -> Engine:
    """The engine that `add_model_arguments` describes; shows the download, if there is one. Raises `TriForceError`."""
    check_dtype(args.dtype)
    check_cache_dtype(args.cache_dtype)

    with Interrupts() as interrupts:  # what is half imported cannot be gone on with, nor imported again
        interrupts.hold()
        import triforce
        from triforce.native import kernels, why_missing

        load = triforce.load
        set_threads(args.threads)

    if args.rope_scaling:
        from triforce.models.config import RopeScaling

        RopeScaling.parse(args.rope_scaling)  # before a model is fetched
    if kernels() is None:
        tell(f"{why_missing()}; PyTorch serves, several times slower")
    engine = load(
        fetch_model(args.model),
        draft=fetch_model(args.draft) if args.draft else None,
        dtype=args.dtype,
        cache_dtype=args.cache_dtype,
        device=args.device,
        rope_scaling=args.rope_scaling,
    )
    if args.rope_scaling:
        tell(f"{args.rope_scaling} makes the context {engine.context_length:,} tokens")
    if args.method == "draft" and not args.draft:
        tell(f"no --draft is given: the model drafts from its own last {Decoding.slots} tokens, which seldom pays")
    return engine


def set_threads(threads: int | None) -> None:
    """Let PyTorch and the native kernels use so many threads. Raises `UsageError` for less than 1."""
    if threads is None:
        return
    if not 1 <= threads <= 1024:
        raise UsageError(f"--threads is {threads}: use at least 1 and at most 1024")
    import torch

    torch.set_num_threads(threads)


def fetch_model(name: str) -> str:
    """The path of the model called `name`, downloaded with a bar if need be. Raises `TriForceError`."""
    from triforce.pull import resolve_model

    with download_progress(name, "model") as progress:
        return str(resolve_model(name, progress.callback))
