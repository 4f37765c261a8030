"""Prompts of a wanted length: prose, and texts that a model continues by repeating what stands in its context.

"code" is source of Python's standard library, followed by the beginning of a second version in which a name is changed;
"quote" is a play, the order to repeat it, and its beginning. What follows either is known from the context.
"""

from __future__ import annotations

import argparse as long_module
import inspect
import subprocess
import typing
from collections.abc import Iterable
from pathlib import Path

from triforce.pull import document_path
from triforce.text.tokenizer import Tokenizer

QUOTE, CODE = "quote", "code"
REPEATING = (QUOTE, CODE)

_ORDER = "\n\nRepeat the text above, word for word:\n\n"
_QUOTED = ("macbeth", "tempest")  # the second where the first is too short
_MODULES = (long_module, inspect, subprocess, typing)
_RENAMED = ("prog", "program")
_SECOND_VERSION = f"\n\n# The same file, where {_RENAMED[0]} is called {_RENAMED[1]}\n\n"
_COPIED = 0.15  # share of a repeating prompt that is copy


def kind_of(name: str) -> str:
    """Whether text `name` is "prose" or "repeating"."""
    return "repeating" if name in REPEATING else "prose"


def prompt_tokens(name: str, tokenizer: Tokenizer, context: int, offset: int, names: list[str]) -> list[int]:
    """`context` tokens of text `name`, from another place for each `offset`.

    A play, or a file, that is too short is followed by the next ones of `names`. Raises `ValueError` where all are.
    """
    if name in REPEATING:
        return _repeating(name, tokenizer, context, offset)
    plays = [other for other in names if other not in REPEATING]
    at = plays.index(name)
    return _excerpt(name, tokenizer, map(_document, (*plays[at:], *plays[:at])), context, offset)


def _repeating(name: str, tokenizer: Tokenizer, context: int, offset: int) -> list[int]:
    """A text, a sentence, and the beginning of the text again."""
    texts = map(_document, _QUOTED) if name == QUOTE else map(inspect.getsource, _MODULES)
    between = tokenizer.encode(_ORDER if name == QUOTE else _SECOND_VERSION)
    copied = int(context * _COPIED)
    first = _excerpt(name, tokenizer, texts, context - copied - len(between), offset)
    again = first if name == QUOTE else tokenizer.encode(tokenizer.decode(first).replace(*_RENAMED))
    return [*first, *between, *again[:copied]]


def _excerpt(name: str, tokenizer: Tokenizer, texts: Iterable[str], length: int, offset: int) -> list[int]:
    """`length` tokens of `texts` end to end; each `offset` starts half of that later."""
    start, tokens = offset * length // 2, list[int]()
    for text in texts:
        if len(tokens) < start + length:
            tokens += tokenizer.encode(text)
    if len(tokens) < start + length:
        raise ValueError(f"{name} has {len(tokens)} tokens, too few for {length} from {start} on")
    return tokens[start : start + length]


def _document(name: str) -> str:
    path = Path(name)
    return (path if path.is_file() else document_path(name)).read_text(encoding="utf-8", errors="replace")
