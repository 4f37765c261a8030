"""`triforce generate`: continue a prompt."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

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
from triforce.cli.prompt import add_file_argument, file_from, read_prompt
from triforce.cli.session import KeptSession, add_session_argument
from triforce.cli.stopping_options import add_num_argument, add_stopping_arguments, num_from, with_stops
from triforce.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from triforce.config import Decoding, SamplingParams
    from triforce.engine import Engine
    from triforce.stream import Stream

SUMMARY = "continue a prompt"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The prompt, what to print, and all shared options."""
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the text to continue; - reads standard input")
    add_file_argument(parser, "a text file (- for standard input); a PROMPT follows it after a blank line")
    parser.add_argument("--chat", action="store_true", help="ask as a user, through the model's chat template")
    add_session_argument(parser)
    parser.add_argument("--stats", action="store_true", help="print times and levels to standard error at the end")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end instead of the text")
    add_num_argument(parser)
    add_model_arguments(parser)
    add_sampling_arguments(parser)
    add_stopping_arguments(parser)
    add_control_arguments(parser)
    add_decoding_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Generate; what is there when something ends it early is printed, and saved, all the same."""
    output = Output(as_json=args.json, stats=args.stats, num=num_from(args))
    kept = KeptSession(args.session)
    if kept.path and num_from(args) > 1:
        raise UsageError("--session keeps one continuation: leave out -N")
    kept.saving(lambda: _generate_and_print(args, output, kept))
    return 0


def _generate_and_print(args: argparse.Namespace, output: Output, kept: KeptSession) -> None:
    try:
        _generate(args, output, kept)
    except KeyboardInterrupt:
        output.close(interrupted=True)
        raise
    except OSError:  # perhaps of the output itself
        raise
    except Exception:
        if output.started:
            output.close(interrupted=True)
        else:
            kept.keep(None)  # a prompt that was refused is not part of the session
        raise
    output.close()


def _generate(args: argparse.Namespace, output: Output, kept: KeptSession) -> None:
    sampling = with_controls(with_stops(sampling_from(args), args), args)
    if args.logprobs is not None and not args.json:
        raise UsageError("--logprobs is printed as JSON only: add --json")
    file = file_from(args)
    goes_on = kept.exists and args.prompt is None and file is None
    prompt = None if goes_on else read_prompt(args.prompt, file)
    decoding = decoding_from(args)
    engine = load_engine(args)
    with Progress("reading the prompt", "tokens") as progress:
        for stream in _streams(engine, kept, prompt, args, sampling, decoding, progress):
            output.follow(stream, on_first=progress.close)


def _streams(
    engine: Engine,
    kept: KeptSession,
    prompt: str | None,
    args: argparse.Namespace,
    sampling: SamplingParams,
    decoding: Decoding,
    progress: Progress,
) -> Iterable[Stream]:
    """What follows `prompt`, as often as asked; or what follows a session, perhaps with `prompt` at its end."""
    if kept.path is None:
        assert prompt is not None
        return engine.streams(prompt, num_from(args), sampling, decoding, chat=args.chat, on_prefill=progress.callback)
    from triforce.conversation import Conversation

    session = kept.open(engine)
    document = file_from(args)
    if document is not None:
        kept.tell_of(document, session)
    if prompt is not None and args.chat:
        stream = Conversation(session).ask(prompt, sampling, decoding, on_prefill=progress.callback)
    else:
        if prompt is not None:
            session.append(prompt)
        stream = session.stream(sampling, decoding, on_prefill=progress.callback)
    kept.keep(session)
    return [stream]
