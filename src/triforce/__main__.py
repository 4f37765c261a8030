"""`python -m triforce` is the `triforce` command."""

import sys

from triforce.cli import main

sys.exit(main())
