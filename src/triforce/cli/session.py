"""The option --session: a file that a command goes on with and saves at its end."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from triforce.cli.interrupts import Interrupts
from triforce.cli.telling import tell
from triforce.errors import SessionError

if TYPE_CHECKING:
    from triforce.engine import Engine
    from triforce.session import Session


def add_session_argument(parser: argparse.ArgumentParser) -> None:
    """--session."""
    parser.add_argument(
        "--session",
        metavar="FILE",
        help="go on with the session in FILE, where it exists, and save it there at the end",
    )


class KeptSession:
    """The session in `file`, if one was asked for. Raises `SessionError` where none could be saved."""

    def __init__(self, file: str | None) -> None:
        if file == "":
            raise SessionError("--session has an empty name: name a file for the session")
        self.path = None if file is None else Path(file)
        self._session: Session | None = None
        self._interrupts = Interrupts()
        if self.path is None:
            return
        if self.path.exists() and not self.path.is_file():
            what = "is a directory" if self.path.is_dir() else "is no regular file"
            raise SessionError(f"{file} {what}: name a file for the session")
        if not self.path.parent.is_dir():
            raise SessionError(f"{self.path.parent}: no such directory; make it, or name another file for the session")

    @property
    def exists(self) -> bool:
        """Whether there is a file to go on with."""
        return self.path is not None and self.path.exists()

    def open(self, engine: Engine) -> Session:
        """The session in the file, or a new one, which is not cut short from here on. Raises `SessionError`."""
        session = engine.load_session(self.path) if self.path and self.exists else engine.session()
        self._interrupts.guard()
        return session

    def tell_of(self, document: str, session: Session) -> None:
        """Say that `document` is added to what is there: a command repeated as it stood would do so unasked."""
        if len(session) > 0:
            length = f"{len(session):,} tokens"
            tell(f"{self.path} goes on: {document} is added to its {length} (leave out -f to only ask)")

    def keep(self, session: Session | None) -> None:
        """Have `save` save `session`, None for nothing."""
        self._session = session

    def is_in(self, file: str) -> bool:
        """Whether `file` is the one that is kept, however it is spelled."""
        return self.path is not None and os.path.realpath(file) == os.path.realpath(self.path)

    def arm(self) -> None:
        """Let Ctrl-C end something within `saving` again."""
        self._interrupts.arm()

    def hold(self) -> None:
        """Let Ctrl-C wait until the next `arm`, or the end."""
        self._interrupts.hold()

    def saving(self, work: Callable[[], None]) -> None:
        """Do `work`, and save at its end, whatever ended it and however often Ctrl-C is pressed meanwhile."""
        with self._interrupts:
            try:
                try:
                    work()
                finally:  # twice: where a Ctrl-C is raised in here, none is raised in what follows
                    self.hold()
            finally:
                self.hold()
                self.save()

    def save(self) -> None:
        """Save what was read and generated, if anything is to be kept. Raises `SessionError`."""
        if self._session is None or self.path is None:
            return
        if len(self._session) == 0:
            if self.exists:
                tell(f"nothing is left to save: {self.path} stays as it was")
            return
        self._session.save(self.path, prefill=False)
        tell(f"saved {len(self._session):,} tokens in {self.path}")
