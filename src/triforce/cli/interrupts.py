"""Ctrl-C around work whose end must not be lost."""

from __future__ import annotations

import contextlib
import signal
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """In a `with` block Ctrl-C raises KeyboardInterrupt once, and again after each `arm`. After `hold` it waits for the
    end of the block, so that what is done there is done whole.

    Where Ctrl-C is ignored, or another thread than the main one asks, nothing is changed.
    """

    def __init__(self) -> None:
        self._armed = self._waiting = False
        self._before: Any = None

    def arm(self) -> None:
        """Let the next Ctrl-C raise; one that came since the last is forgotten, as the same hand's."""
        self._armed, self._waiting = True, False

    def hold(self) -> None:
        """Let Ctrl-C wait."""
        self._armed = False

    def __enter__(self) -> Interrupts:
        self.arm()
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            with contextlib.suppress(ValueError):  # another thread, which hears no signals
                self._before = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if self._waiting and kind is None:
            raise KeyboardInterrupt

    def _hear(self, _: int, __: FrameType | None) -> None:
        if not self._armed:
            self._waiting = True
            return
        self._armed = False
        raise KeyboardInterrupt
