"""Prompts of a wanted length: prose, and texts that a model continues by repeating what stands in its context.

"quote" is a play, the order to repeat it, and its beginning: what follows stands once, far back. "code" is version
after version of a file of Python's standard library, with a name changed since the first: what follows stands often.
"""

from __future__ import annotations

import argparse as long_module
import inspect
import subprocess
import sys
import typing
from collections.abc import Iterable
from pathlib import Path

from triforce.errors import UsageError
from triforce.pull import document_path
from triforce.text.tokenizer import Tokenizer

QUOTE, CODE = "quote", "code"
REPEATING = (QUOTE, CODE)

_ORDER = "\n\nRepeat the text above, word for word:\n\n"
_QUOTED = ("macbeth", "tempest")  # the second where the first is too short
_QUOTED_SHARE = 0.15  # of the prompt: how far the copy has got
_MODULES = (long_module, inspect, subprocess, typing)
_FILE_START, _FILE_LENGTH = 6000, 2000  # tokens of a module: past imports and help, code proper
_NEXT_VERSION = "\n\n# The next version of this file:\n\n"
_RENAMED = ("default", "preset")  # since the first version


def kind_of(name: str) -> str:
    """`name` of a made text that repeats its context, "prose" of any other."""
    return name if name in REPEATING else "prose"


def prompt_tokens(name: str, tokenizer: Tokenizer, context: int, offset: int, names: list[str]) -> list[int]:
    """`context` tokens of text `name`, from another place for each `offset`.

    A play, or a file, that is too short is followed by the next ones of `names`. Where all are too short, or a text is
    not there, the program ends with one line.
    """
    if name in REPEATING:
        return (_quote if name == QUOTE else _code)(tokenizer, context, offset)
    plays = [other for other in names if other not in REPEATING]
    at = plays.index(name)
    return _excerpt(name, tokenizer, map(_document, (*plays[at:], *plays[:at])), context, offset)


def _quote(tokenizer: Tokenizer, context: int, offset: int) -> list[int]:
    """A play, the order, and the play's beginning."""
    order, copied = tokenizer.encode(_ORDER), int(context * _QUOTED_SHARE)
    play = _excerpt(QUOTE, tokenizer, map(_document, _QUOTED), context - copied - len(order), offset)
    return [*play, *order, *play[:copied]]


def _code(tokenizer: Tokenizer, context: int, offset: int) -> list[int]:
    """The last `context` tokens of version after version, up to the middle of the last one."""
    source = tokenizer.encode(inspect.getsource(_MODULES[offset % len(_MODULES)]))
    first = tokenizer.decode(source[_FILE_START : _FILE_START + _FILE_LENGTH])
    later = tokenizer.encode(_NEXT_VERSION + first.replace(*_RENAMED))
    whole = [*tokenizer.encode(first), *later * (context // len(later) + 1)]
    end = len(whole) - len(later) // 2
    return whole[end - context : end]


def _excerpt(name: str, tokenizer: Tokenizer, texts: Iterable[str], length: int, offset: int) -> list[int]:
    """`length` tokens of `texts` end to end; each `offset` starts half of that later."""
    start, tokens = offset * length // 2, list[int]()
    for text in texts:
        if len(tokens) < start + length:
            tokens += tokenizer.encode(text)
    if len(tokens) < start + length:
        sys.exit(f"{name} has {len(tokens)} tokens, too few for {length} from {start} on")
    return tokens[start : start + length]


def _document(name: str) -> str:
    path = Path(name)
    try:
        found = path if path.is_file() else document_path(name)
    except UsageError as error:
        sys.exit(str(error))
    return found.read_text(encoding="utf-8", errors="replace")
