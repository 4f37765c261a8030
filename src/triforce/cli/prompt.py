"""The prompt from an argument, a file and standard input. Knows nothing of tokens."""

from __future__ import annotations

import argparse
import codecs
import sys
from pathlib import Path

from triforce.errors import PromptError, UsageError

_REMEDY = "give some text, a file with -f FILE, or - for standard input"


def add_file_argument(parser: argparse.ArgumentParser, summary: str) -> None:
    """-f FILE, which `file_from` reads."""
    parser.add_argument("-f", "--file", metavar="FILE", action="append", help=summary)


def file_from(args: argparse.Namespace) -> str | None:
    """The one file, if there is one. Raises `UsageError` for a second, which would silently take its place."""
    if args.file and len(args.file) > 1:
        raise UsageError("-f is given twice: put the texts into one file")
    return args.file[0] if args.file else None


def read_prompt(prompt: str | None, file: str | None) -> str:
    """The text to continue: `prompt`, the text of `file`, or both, the file first and a blank line between.

    "-" stands for standard input, which is also read when neither is given and it is not a terminal. Raises
    `PromptError` for a prompt that is empty or not UTF-8, `UsageError` when nothing says what to read.
    """
    if prompt == "-" and file == "-":
        raise UsageError("standard input is asked for twice: use - either as the prompt or with -f")
    if prompt is None and file is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError(f"no prompt: {_REMEDY}")
        prompt = "-"
    document = None if file is None else _read(file)
    question = _read("-") if prompt == "-" else prompt
    if document == "":
        raise PromptError(f"{_name(file)} is empty: {_REMEDY}")
    if question == "":
        raise PromptError(f"the prompt is empty: {_REMEDY}")
    if document and question:
        return document.rstrip("\r\n") + "\n\n" + question
    return document or question or ""


def _read(file: str | None) -> str:
    """All text of `file`, exactly as it stands but without a byte order mark."""
    name = _name(file)
    try:
        data = sys.stdin.buffer.read() if file in (None, "-") else Path(str(file)).read_bytes()
    except FileNotFoundError:
        raise PromptError(f"{name}: no such file; check the path (-f names a file, a prompt stands alone)") from None
    except IsADirectoryError:
        raise PromptError(f"{name} is a directory: give one text file") from None
    except OSError as error:
        raise PromptError(f"{name}: {error.strerror or error}; check the file and its permissions") from None
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        convert = f"iconv -f {'utf-16' if utf16 else 'latin-1'} -t utf-8"
        source = "" if file in (None, "-") else f" {file}"
        raise PromptError(f"{name} is not UTF-8 at byte {error.start}: convert it, as with {convert}{source}") from None


def _name(file: str | None) -> str:
    return "standard input" if file in (None, "-") else str(file)
