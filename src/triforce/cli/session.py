"""The option --session: a file that a command goes on with and saves at its end."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

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
        self.path = None if file is None else Path(file)
        self._session: Session | None = None
        if self.path and self.path.is_dir():
            raise SessionError(f"{file} is a directory: name a file for the session")
        if self.path and not self.path.parent.is_dir():
            raise SessionError(f"{self.path.parent}: no such directory; make it, or name another file for the session")

    @property
    def exists(self) -> bool:
        """Whether there is a file to go on with."""
        return self.path is not None and self.path.exists()

    def open(self, engine: Engine) -> Session:
        """The session in the file, or a new one. Raises `SessionError`."""
        return engine.load_session(self.path) if self.path and self.exists else engine.session()

    def keep(self, session: Session) -> None:
        """Have `save` save `session`, which went on."""
        self._session = session

    def save(self) -> None:
        """Save what was read and generated, if anything is to be kept. Raises `SessionError`."""
        if self._session is not None and self.path:
            self._session.save(self.path, prefill=False)
