"""What each level did: the record that the command line, benchmarks and library callers read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class LevelStats:
    """One level's work: forward passes (or look-ups), tokens it drafted for the level above, how many of those were
    accepted there, and the seconds spent in this level alone."""

    name: str
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0

    def count(self, drafted: int, accepted: int) -> None:
        """Enter one draft of so many tokens, and how many of them the level above accepted."""
        self.drafted += drafted
        self.accepted += accepted
