"""Finds a model by path or by Hugging Face hub id. Knows nothing of what is inside it."""

from __future__ import annotations

import re
from pathlib import Path

from triforce.errors import DownloadError, ModelError

WANTED = ["*.json", "*.safetensors", "tokenizer*", "*.txt", "*.jinja"]
UNWANTED = ["*/*", "consolidated*"]  # other formats of the same weights


def find_model(path_or_id: str | Path) -> Path:
    """The local directory or file of a model, downloaded when `path_or_id` is a hub id (`org/name`).

    Raises `ModelError` when it is neither a path nor an id, `DownloadError` when the hub does not yield it.
    """
    path = Path(path_or_id).expanduser()
    if path.exists():
        return path
    name = str(path_or_id)
    if not re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) or name.endswith(".gguf"):
        raise ModelError(
            f"{name}: no such file or directory; give a model directory, a .gguf file or a hub id org/name"
        )
    return _download(name)


def _download(name: str) -> Path:
    import huggingface_hub
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=WANTED, ignore_patterns=UNWANTED))
    except GatedRepoError:
        remedy = "accept its licence on its page and log in with `hf auth login`"
        raise DownloadError(f"{name}: access to this model is restricted; {remedy}") from None
    except RepositoryNotFoundError:
        raise DownloadError(f"{name}: neither a local path nor a model on the hub; check the name") from None
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        remedy = "check the network and try again, or give a local directory"
        raise DownloadError(f"{name}: download failed ({reason}); {remedy}") from None
