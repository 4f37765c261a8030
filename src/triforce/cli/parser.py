"""The argument parser: one subparser per command, and usage errors as our own one-line errors."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import NoReturn

from triforce import __version__
from triforce.cli.command import Command
from triforce.errors import UsageError


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` instead of printing the usage and exiting."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")


def build_parser(commands: Mapping[str, Command]) -> Parser:
    """The parser of the whole command line; the chosen command's name is in `args.command`, None without one."""
    parser = Parser(
        prog="triforce",
        description="Lossless long-context generation, faster, by three-level speculative decoding.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"triforce {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, command in commands.items():
        subparser = subparsers.add_parser(
            name,
            help=command.SUMMARY,
            description=command.SUMMARY[0].upper() + command.SUMMARY[1:] + ".",
            allow_abbrev=False,
        )
        command.add_arguments(subparser)
    return parser
