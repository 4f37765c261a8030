"""What saving must not do: lose an older file, whatever fails or is killed, or leave half of one."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from triforce.atomic import replacing
from triforce.engine import Engine
from triforce.errors import SessionError
from triforce.session import Session


def fails(session: Session, path: Path) -> str:
    with pytest.raises(SessionError) as caught:
        session.save(path)
    assert "\n" not in str(caught.value)
    assert not list(path.parent.glob(".triforce-*"))
    return str(caught.value)


def test_a_save_that_fails_names_the_file_and_loses_nothing(engine: Engine, saved: Path) -> None:
    before, session = saved.read_bytes(), engine.session("Another text.")
    session.prefill()
    folder = saved.parent
    assert f"cannot save {folder} (it is a directory)" in fails(session, folder)
    assert "No such file or directory" in fails(session, folder / "absent" / "saved")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limit[1]))
        assert f"cannot save {saved} (File too large)" in fails(session, saved)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert saved.read_bytes() == before
    assert session.text == "Another text."


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("call", ["fsync", "replace", "open"])
def test_whatever_call_fails_the_older_file_stays(
    engine: Engine, saved: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: str
) -> None:
    before, session = saved.read_bytes(), engine.session("Another text.")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(Path if call == "open" else os, call, refuse)
        message = fails(session, saved)
    assert f"cannot save {saved} ({os.strerror(number)}): choose another place, or make room" == message
    assert saved.read_bytes() == before


def test_the_content_is_on_the_disk_before_the_name_is_moved(
    engine: Engine, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, object]] = []
    fsync, replaced = os.fsync, os.replace

    def record_fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        calls.append(("folder", None) if stat.S_ISDIR(status.st_mode) else ("file", status.st_size))
        fsync(descriptor)

    def record_replace(source: Path, target: Path) -> None:
        calls.append(("replace", source.stat().st_size))
        replaced(source, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    engine.session("Another text.").save(saved)
    size = saved.stat().st_size
    assert calls == [("file", size), ("replace", size), ("folder", None)]


def test_a_link_and_permissions_outlast_a_save(engine: Engine, saved: Path, tmp_path: Path) -> None:
    saved.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(saved)
    engine.session("Another text.").save(link)
    assert link.is_symlink()
    assert engine.load_session(saved).text == "Another text."
    assert stat.S_IMODE(saved.stat().st_mode) == 0o600


def test_two_saves_at_once_disturb_neither(engine: Engine, tmp_path: Path) -> None:
    with replacing(tmp_path / "one") as file:
        file.write(b"one")
        engine.session("two").save(tmp_path / "two")
        engine.session("another one").save(tmp_path / "one")
    assert engine.load_session(tmp_path / "two").text == "two"
    assert (tmp_path / "one").read_bytes() == b"one", "the last to end wins"


def test_a_save_killed_at_any_moment_leaves_the_old_file_or_the_new_one(engine: Engine, tmp_path: Path) -> None:
    """50 processes that save without end, each killed a random moment after its first save began."""
    path, script = tmp_path / "saved", Path(__file__).with_name("saving.py")
    engine.session("text 0").save(path)
    process = subprocess.Popen(
        [sys.executable, str(script), str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    moments = np.random.default_rng(0).uniform(0.0, 0.03, 50)
    texts, parts = [], set()
    for moment in moments:
        print(file=process.stdin, flush=True)  # have it fork a process that saves
        saving = int(process.stdout.readline())
        time.sleep(moment)
        os.kill(saving, signal.SIGKILL)
        assert process.stdout.readline().strip() == str(-signal.SIGKILL)
        text = engine.load_session(path).text
        assert text.split()[0] == "text"
        texts.append(text)
        parts |= {part.name for part in tmp_path.glob(".triforce-*.part")}
    process.stdin.close()
    assert process.wait(timeout=30) == 0
    process.stdout.close()
    assert len(texts) == 50
    assert len(set(texts)) > 3, "the saves never came to their end"
    assert len(parts) > 5, "none was killed in the middle"
    assert any(text == before for before, text in pairwise(["text 0", *texts])), "no older file ever stayed"
    engine.session("text last").save(path)
    assert not list(tmp_path.glob(".triforce-*.part")), "what killed processes left is not swept up"
