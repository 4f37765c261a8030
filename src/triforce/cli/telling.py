"""What is said beside the output: one line on standard error."""

from __future__ import annotations

import sys


def tell(text: object) -> None:
    """`text` on one line, however it was wrapped."""
    print("triforce:", " ".join(str(text).split()), file=sys.stderr, flush=True)
