"""A script that forks a process for each line it reads; that process saves sessions to a file until it is killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from tiny_engine import tiny_engine


def main(path: Path) -> None:
    torch.set_num_threads(1)
    engine = tiny_engine()
    sessions = [engine.session(f"text {number} " + "x" * 400) for number in range(20)]
    for session in sessions:
        session.prefill()
    for turn, _ in enumerate(sys.stdin):
        process = os.fork()
        if process == 0:
            print(os.getpid(), flush=True)
            while True:
                for session in sessions[turn % 7 :]:
                    session.save(path)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
