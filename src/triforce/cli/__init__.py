"""The `triforce` command. Generated text goes to standard output, everything else to standard error.

Nothing here or in the command modules imports PyTorch before the arguments are parsed and found good.
"""

from __future__ import annotations

from collections.abc import Sequence

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's own). Returns the exit code; `--help` raises SystemExit."""
    try:
        from triforce.cli.app import run

        return run(argv)
    except KeyboardInterrupt:  # while modules are imported, too
        return INTERRUPTED
