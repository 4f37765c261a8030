"""A script: the `triforce` command over a small random model that stops for a while and says so, to be interrupted."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from chatting import chatting_engine

import triforce
import triforce.session
from triforce.cli import main
from triforce.runner import PREFILL_ROWS, ModelRunner


def slow_down() -> None:
    """Stop after the first pass of a prefill, at each token, and before a file is written."""
    catch_up, steps = ModelRunner._catch_up, [0]

    def slowly(self: ModelRunner, tokens, num_rows, _):  # type: ignore[no-untyped-def]
        def report(rows: int) -> None:
            if num_rows == 0 and rows == PREFILL_ROWS:
                reach("prefill", 1.0)

        if num_rows:
            steps[0] += 1
            reach(f"token {steps[0]}", 0.05 if steps[0] != 3 else 1.0)
        return catch_up(self, tokens, num_rows, report)

    ModelRunner._catch_up = slowly  # type: ignore[method-assign]
    write = triforce.session.write_session

    def write_slowly(*given) -> None:  # type: ignore[no-untyped-def]
        reach("save", 0.5)
        write(*given)

    triforce.session.write_session = write_slowly


def reach(what: str, seconds: float) -> None:
    print("reached", what, file=sys.stderr, flush=True)
    time.sleep(seconds)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # even where a shell started us in the background
    torch.set_num_threads(1)
    slow_down()
    triforce.load = lambda *_, **__: chatting_engine(4096)  # type: ignore[assignment]
    import triforce.pull

    triforce.pull.resolve_model = lambda name, _: Path(name)  # type: ignore[assignment]
    triforce.pull.cached = Path  # type: ignore[assignment]
    sys.exit(main())
