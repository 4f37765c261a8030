"""Options that say where a text ends, how many there are and what is told about their tokens."""

from __future__ import annotations

import argparse
from dataclasses import replace

from triforce.checks import whole
from triforce.config import MOST_TEXTS, SamplingParams


def add_stopping_arguments(parser: argparse.ArgumentParser) -> None:
    """Where a text ends, besides the limit `-n`."""
    group = parser.add_argument_group("stops and output")
    group.add_argument(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="end where TEXT begins; may be given several times",
    )
    group.add_argument(
        "--stop-id",
        action="append",
        default=[],
        type=int,
        metavar="ID",
        help="end at the token of this id; may be given several times",
    )
    group.add_argument("--include-stop", action="store_true", help="print also the text that ended it")
    group.add_argument("--ignore-eos", action="store_true", help="go on past the model's end tokens")
    group.add_argument(
        "--max-seconds", type=float, metavar="S", help="end after S seconds, reading the prompt included"
    )
    group.add_argument(
        "--logprobs",
        type=int,
        metavar="K",
        help="with --json: the log-probability of each token and of the K likeliest at its place",
    )


def add_num_argument(parser: argparse.ArgumentParser) -> None:
    """How many texts; for commands that print a text and end."""
    parser.add_argument(
        "-N",
        "--num",
        type=int,
        default=1,
        metavar="N",
        help="continue N times; the prompt is read once, the seed goes up",
    )


def with_stops(sampling: SamplingParams, args: argparse.Namespace) -> SamplingParams:
    """`sampling` with the stops of the command line. Raises `UsageError`."""
    return replace(
        sampling,
        stop=args.stop,
        stop_token_ids=args.stop_id,
        include_stop=args.include_stop,
        ignore_eos=args.ignore_eos,
        max_seconds=args.max_seconds,
        logprobs=args.logprobs,
    )


def num_from(args: argparse.Namespace) -> int:
    """The number of texts. Raises `UsageError`."""
    return whole("-N", args.num, 1, MOST_TEXTS)
