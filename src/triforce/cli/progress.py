"""A progress bar on standard error, where that is a terminal; elsewhere nothing. Drawn by rich, imported late."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from triforce.cli.telling import tell

if TYPE_CHECKING:
    import rich.progress


class Progress:
    """Appears at the first `update` and goes away at `close` or at the end of a `with` block."""

    def __init__(self, description: str, unit: Literal["bytes", "tokens"]) -> None:
        self._description = description
        self._unit = unit
        self._bar: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None

    @property
    def callback(self) -> Callable[[int, int], None] | None:
        """`update`, or None where nobody would see it."""
        return self.update if sys.stderr and sys.stderr.isatty() else None

    def update(self, done: int, total: int) -> None:
        """Show `done` of `total`."""
        if self._bar is None or self._task is None:
            self._bar = _bar(self._unit)
            self._task = self._bar.add_task(self._description, total=total)
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total)

    def close(self) -> None:
        """Take the bar off the screen."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = self._task = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def download_progress(name: str, kind: str | None = None) -> Progress:
    """A bar for fetching what is called `name`; where nobody would see it, a line if something is fetched.

    Only what is of a `kind`, if one is given, is fetched.
    """
    from triforce.pull import cached, known

    progress = Progress(f"downloading {name}", "bytes")
    for download in known():
        if download.name == name and kind in (None, download.kind) and not progress.callback and not cached(name):
            tell(f"downloading {name}, {download.archive_bytes / 1e6:.0f} MB")
    return progress


def _bar(unit: Literal["bytes", "tokens"]) -> rich.progress.Progress:
    from rich import progress
    from rich.console import Console

    amount = (
        (progress.DownloadColumn(), progress.TransferSpeedColumn())
        if unit == "bytes"
        else (progress.TextColumn("{task.completed:,}/{task.total:,} tokens"),)
    )
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        *amount,
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
