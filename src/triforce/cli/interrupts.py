"""Ctrl-C around work whose end must not be lost."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from types import FrameType, TracebackType
from typing import Any

_SAME_HAND = 1.0  # seconds in which a second Ctrl-C means what the first one meant


class Interrupts:
    """In a `with` block Ctrl-C raises KeyboardInterrupt; after `guard` not twice at once, so that what a first one set
    off is not cut short by a second; after `hold` it waits for the end of the block, where it is raised.

    Where Ctrl-C is ignored, or another thread than the main one asks, nothing is changed.
    """

    def __init__(self) -> None:
        self._held = self._waiting = self._guarding = False
        self._raised = -math.inf
        self._before: Any = None

    def arm(self) -> None:
        """Let the next Ctrl-C raise; one that waits is forgotten, as the same hand's."""
        self._held = self._waiting = False

    def guard(self) -> None:
        """From here on there is something to lose."""
        self._guarding = True

    def hold(self) -> None:
        """Let Ctrl-C wait."""
        self._held = True

    def __enter__(self) -> Interrupts:
        self.arm()
        self._raised = -math.inf
        if callable(signal.getsignal(signal.SIGINT)):
            with contextlib.suppress(ValueError):  # another thread, which hears no signals
                self._before = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._before = None
        if self._waiting and kind is None:
            raise KeyboardInterrupt

    def _hear(self, _: int, __: FrameType | None) -> None:
        now = time.monotonic()
        if self._held or (self._guarding and now - self._raised < _SAME_HAND):
            self._waiting = True
            return
        self._raised = now
        raise KeyboardInterrupt
