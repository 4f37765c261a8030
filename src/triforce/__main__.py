"""`python -m triforce` is the `triforce` command."""

import sys

from triforce.cli import process

sys.exit(process())
