"""`triforce pull`: fetch a model or document by name, or list the names."""

from __future__ import annotations

import argparse

from triforce.cli.progress import download_progress

SUMMARY = "fetch a model or document by name, or list the names"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The name."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="what to fetch; without it, the known names are listed")


def run(args: argparse.Namespace) -> int:
    """Print the path of what was fetched, or the list."""
    from triforce.pull import cached, known, pull

    if args.name is None:
        width = max(len(download.name) for download in known())
        for download in known():
            state = "cached" if cached(download.name) else f"{download.archive_bytes / 1e6:.0f} MB"
            print(f"{download.name:{width}}  {state:>8}  {download.summary} ({download.licence})")
        return 0
    with download_progress(args.name) as progress:
        path = pull(args.name, progress.callback)
    print(path)
    return 0
