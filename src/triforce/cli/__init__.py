"""The `triforce` command. Generated text goes to standard output, everything else to standard error.

Nothing here or in the command modules imports PyTorch before the arguments are parsed and found good.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence

__all__ = ["main", "process"]
_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own). Returns the exit code; `--help` raises SystemExit."""
    try:
        from triforce.cli.app import run

        return run(argv)
    except KeyboardInterrupt:  # while modules are imported, too
        return _INTERRUPTED


def process() -> int:
    """`main` as a whole process: once it is over, Ctrl-C no longer disturbs what the interpreter does at its end."""
    try:
        return main()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
