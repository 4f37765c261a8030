"""Files that are replaced whole or not at all, whenever the process or the machine stops. Knows nothing of contents."""

from __future__ import annotations

import errno
import os
import platform
import re
import secrets
import shutil
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` when the block ends well and is gone when it does not.

    The content is on the disk before the name points to it. A symbolic link stays one. Raises `OSError`.
    """
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not path.is_file():  # a device or a pipe, which a file would take the place of
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    _sweep(path.parent)
    part = path.parent / f"{_prefix()}{os.getpid()}-{secrets.token_hex(4)}.part"
    try:
        with part.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, part)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Have the new name survive a power cut, where the system can do that."""
    if hasattr(os, "O_DIRECTORY"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # file systems that cannot say so
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _sweep(folder: Path) -> None:
    """Remove what killed processes of this machine left here."""
    if os.name != "posix":
        return
    for part in folder.glob(f"{_prefix()}*.part"):
        owner = re.match(r"(\d+)-", part.name.removeprefix(_prefix()))
        if owner and not _runs(int(owner[1])):
            with suppress(OSError):
                part.unlink()


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def _prefix() -> str:
    return f".triforce-{zlib.crc32(platform.node().encode()):08x}-"
