"""From what a user calls a model to a path on this machine: a known name, a path, or a model on the hub."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from triforce.errors import DownloadError, ModelError, shown
from triforce.pull.cache import Progress, pull
from triforce.pull.index import FULL
from triforce.pull.registry import known

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_ACCEPTED = "a model directory, a .gguf file, a hub id such as org/name, or one of these names"

# Weights only as safetensors: unlike .bin files, they cannot run code when they are read.
_WANTED = ("*.safetensors", "*.safetensors.index.json", "config.json", "generation_config.json", "tokenizer*.json")
_WANTED_BESIDE = ("special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
_UNWANTED = ("*/*", "consolidated*.safetensors")  # copies in other layouts


def resolve_model(model: str | os.PathLike[str], on_progress: Progress | None = None) -> Path:
    """The directory or file of the model called `model`, fetched if need be.

    Raises `ModelError` when it is none of the accepted things, `DownloadError` when it cannot be fetched.
    """
    models = [download.name for download in known() if download.kind == "model"]
    accepted = f"{_ACCEPTED}: {', '.join(models)}"
    name = os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
    if not isinstance(name, str):
        raise ModelError(f"the model is {shown(model)}; give {accepted}")
    if name in models:
        return pull(name, on_progress)
    path = Path(os.path.expanduser(name))
    try:
        if name and path.is_dir():
            return _inside(path)
        if path.suffix == ".gguf" and path.is_file():
            return path
        is_other = name != "" and path.exists()
    except OSError:  # a name that is too long
        raise ModelError(f"there is no model {shown(name)}; give {accepted}") from None
    if is_other:
        raise ModelError(f"{name} is not a model; give {accepted}")
    if _HUB_ID.fullmatch(name) and path.suffix != ".gguf":
        return _from_hub(name, show_progress=on_progress is not None)
    raise ModelError(f"there is no model {shown(name)}; give {accepted}")


def _inside(folder: Path) -> Path:
    """The model that `folder` is, or the one GGUF file that it holds in place of one. Raises `ModelError`."""
    files = [] if (folder / "config.json").exists() else sorted(filter(Path.is_file, folder.glob("[!.]*.gguf")))
    if len(files) > 1:
        raise ModelError(f"{folder} holds {len(files)} GGUF files: name one of them, as {files[0]}")
    return files[0] if files else folder


def _from_hub(repo: str, show_progress: bool) -> Path:
    """The snapshot of `repo`: only settings, tokeniser and safetensors."""
    from huggingface_hub import errors, snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE

    try:
        with _progress_bars(show_progress):
            path = snapshot_download(repo, allow_patterns=[*_WANTED, *_WANTED_BESIDE], ignore_patterns=list(_UNWANTED))
    except errors.GatedRepoError:
        raise DownloadError(f"{repo} is gated; accept its terms on its hub page and run `hf auth login`") from None
    except errors.RepositoryNotFoundError:
        raise DownloadError(f"{repo} is neither a path here nor a model on the hub; check the spelling") from None
    except errors.LocalEntryNotFoundError:
        raise DownloadError(f"cannot reach the hub for {repo} and no copy is kept here; go online once") from None
    except errors.HFValidationError as error:
        raise ModelError(f"{repo} is no valid hub id ({_one_line(error)}); use org/name") from None
    except Exception as error:  # whatever the HTTP library of this version of the hub client raises
        if isinstance(error, OSError) and error.errno in FULL:
            remedy = "free space, or set HF_HOME to another folder"
            raise DownloadError(f"cannot keep {repo} in {HF_HUB_CACHE} ({error.strerror}); {remedy}") from None
        raise DownloadError(f"fetching {repo} failed ({_one_line(error)}); try again later") from None
    return _complete(Path(path), repo)


def _complete(path: Path, repo: str) -> Path:
    if not (path / "config.json").is_file():
        raise ModelError(f"{repo} has no config.json; use a model in the transformers format")
    if not any(path.glob("*.safetensors")):
        raise ModelError(f"{repo} has no safetensors weights; use a model that has")
    return path


@contextmanager
def _progress_bars(show: bool) -> Iterator[None]:
    """The hub's own bars on stderr, only when `show`."""
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if show or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
