"""What a command module offers. A new command is one such module and one line in `registry`."""

from __future__ import annotations

import argparse
from typing import Protocol


class Command(Protocol):
    """A module of this shape; it imports nothing heavy before `run`."""

    SUMMARY: str
    """One line for `triforce --help`."""

    def add_arguments(self, parser: argparse.ArgumentParser, /) -> None:
        """Declare the command's options."""
        ...

    def run(self, args: argparse.Namespace, /) -> int:
        """Do it; returns the exit code. Raises `TriForceError` for a user's mistake."""
        ...
