"""`triforce generate`: continue a prompt."""

from __future__ import annotations

import argparse

from triforce.cli.control_options import add_control_arguments, with_controls
from triforce.cli.options import (
    add_decoding_arguments,
    add_model_arguments,
    add_sampling_arguments,
    decoding_from,
    load_engine,
    sampling_from,
)
from triforce.cli.output import Output
from triforce.cli.progress import Progress
from triforce.cli.prompt import read_prompt
from triforce.cli.stopping_options import add_num_argument, add_stopping_arguments, num_from, with_stops
from triforce.errors import UsageError

SUMMARY = "continue a prompt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The prompt, what to print, and all shared options."""
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the text to continue; - reads standard input")
    parser.add_argument(
        "-f",
        "--file",
        metavar="FILE",
        help="a text file (- for standard input); a PROMPT follows it after a blank line",
    )
    parser.add_argument("--chat", action="store_true", help="ask as a user, through the model's chat template")
    parser.add_argument("--stats", action="store_true", help="print times and levels to standard error at the end")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end instead of the text")
    add_num_argument(parser)
    add_model_arguments(parser)
    add_sampling_arguments(parser)
    add_stopping_arguments(parser)
    add_control_arguments(parser)
    add_decoding_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Generate; what is there when something ends it early is printed all the same."""
    output = Output(as_json=args.json, stats=args.stats, num=num_from(args))
    try:
        _generate(args, output)
    except KeyboardInterrupt:
        output.close(interrupted=True)
        raise
    except OSError:  # perhaps of the output itself
        raise
    except Exception:
        if output.started:
            output.close(interrupted=True)
        raise
    output.close()
    return 0


def _generate(args: argparse.Namespace, output: Output) -> None:
    sampling = with_controls(with_stops(sampling_from(args), args), args)
    if args.logprobs is not None and not args.json:
        raise UsageError("--logprobs is printed as JSON only: add --json")
    prompt = read_prompt(args.prompt, args.file)
    decoding = decoding_from(args)
    engine = load_engine(args)
    with Progress("reading the prompt", "tokens") as progress:
        streams = engine.streams(
            prompt, num_from(args), sampling, decoding, chat=args.chat, on_prefill=progress.callback
        )
        for stream in streams:
            output.follow(stream, on_first=progress.close)
