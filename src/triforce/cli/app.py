"""Runs one command and turns whatever ends it into an exit code: 0, or 1 for a user's mistake."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence

from triforce.cli.parser import build_parser
from triforce.cli.registry import COMMANDS
from triforce.cli.telling import tell
from triforce.errors import TriForceError, UsageError


def run(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own). Returns the exit code; Ctrl-C raises as it does."""
    _never_fail_on_a_character()
    if sys.stderr is None:  # closed: `print` would turn to standard output
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    try:
        return _run_command(argv)
    except TriForceError as error:
        return _complain(error)
    except BrokenPipeError:
        _silence()
        return 0
    except OSError as error:  # a full disk, a file without permission
        named = f"{error.filename}: " if error.filename else ""
        return _complain(f"{named}{error.strerror or error}")


def _run_command(argv: Sequence[str] | None) -> int:
    args, unknown = build_parser(COMMANDS).parse_known_args(argv)
    if unknown:
        raise UsageError(f"unknown argument {unknown[0]}: see triforce {args.command or ''} --help")
    if args.command is None:
        raise UsageError(f"no command given: use one of {', '.join(COMMANDS)}, or see triforce --help")
    code = COMMANDS[args.command].run(args)
    if sys.stdout:
        sys.stdout.flush()  # here, where a closed pipe is still caught
    return code


def _complain(problem: object) -> int:
    """One line, however the message was wrapped."""
    with contextlib.suppress(OSError):
        tell(problem)
    return 1


def _never_fail_on_a_character() -> None:
    """A terminal that lacks a character shows a question mark instead of ending the generation."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _silence() -> None:
    """Send what is still buffered nowhere, lest the interpreter trip over the closed pipe on its way out."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
