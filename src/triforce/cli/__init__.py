"""The `triforce` command. Generated text goes to standard output, everything else to standard error.

Nothing here or in the command modules imports PyTorch before the arguments are parsed and found good.
"""

from triforce.cli.app import main

__all__ = ["main"]
