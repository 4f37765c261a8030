"""`triforce version`."""

from __future__ import annotations

import argparse

from triforce import __version__

SUMMARY = "print the version"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""
    del parser


def run(args: argparse.Namespace) -> int:
    """Print it."""
    del args
    print(f"triforce {__version__}")
    return 0
