"""Options for controls of what is drawn (penalties, words, forms), and the settings made from them."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from triforce.config import SamplingParams
from triforce.errors import UsageError


def add_control_arguments(parser: argparse.ArgumentParser) -> None:
    """Controls that look at what came before, and forms that the text must match."""
    _add_penalties(parser.add_argument_group("controls", "docs/sampling.md defines each of them."))
    _add_forms(parser.add_argument_group("form", "At most one; needs pip install 'llguidance>=1.9'."))


def _add_penalties(group: argparse._ArgumentGroup) -> None:
    off = SamplingParams()
    numbers: list[tuple[str, str, str]] = [
        ("--typical-p", "P", "draw from the most typical tokens of mass P; 1 is off"),
        ("--repetition-penalty", "X", "divide what prompt or text have said by X; 1 is off"),
        ("--presence-penalty", "X", "subtract X from what the new text has said"),
        ("--frequency-penalty", "X", "subtract X from it for every time it was said"),
    ]
    for flag, metavar, text in numbers:
        default = getattr(off, flag[2:].replace("-", "_"))
        group.add_argument(flag, type=float, default=default, metavar=metavar, help=text)
    group.add_argument(
        "--no-repeat-ngram", type=int, default=0, metavar="N", help="never say N tokens in a row that were said before"
    )
    group.add_argument(
        "--logit-bias", action="append", default=[], metavar="ID=X", help="add X to a token's logit; may be repeated"
    )
    group.add_argument("--bad-word", action="append", default=[], metavar="TEXT", help="never say it; may be repeated")
    group.add_argument("--min-new-tokens", type=int, default=0, metavar="N", help="do not end before N new tokens")
    group.add_argument(
        "--processor",
        action="append",
        default=[],
        metavar="MODULE:NAME",
        help="a function f(token_ids, logits) -> logits of an importable module; may be repeated",
    )


def _add_forms(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--json-schema", metavar="FILE_OR_JSON", help="a JSON text that this schema accepts")
    group.add_argument("--regex", metavar="PATTERN", help="a text that matches as a whole")
    group.add_argument("--choice", action="append", default=[], metavar="TEXT", help="one of these; to be repeated")
    group.add_argument("--grammar", metavar="FILE", help="a text of this grammar (Lark or GBNF)")


def with_controls(params: SamplingParams, args: argparse.Namespace) -> SamplingParams:
    """`params` with what `add_control_arguments` describes. Raises `UsageError`."""
    params = replace(
        params,
        typical_p=args.typical_p,
        repetition_penalty=args.repetition_penalty,
        presence_penalty=args.presence_penalty,
        frequency_penalty=args.frequency_penalty,
        no_repeat_ngram_size=args.no_repeat_ngram,
        logit_bias=[_bias(text) for text in args.logit_bias],
        bad_words=args.bad_word,
        min_new_tokens=args.min_new_tokens,
        processors=[_function(name) for name in args.processor],
        json_schema=_schema(args.json_schema),
        regex=args.regex,
        choice=tuple(args.choice),
        grammar=_read(args.grammar) if args.grammar is not None else None,
    )
    if params.structure is not None:
        from triforce.controls.guidance import check_structure

        check_structure(params)  # before a model is fetched
    return params


def _bias(text: str) -> tuple[int, float]:
    token, _, bias = text.partition("=")
    try:
        return int(token), float(bias)
    except ValueError:
        raise UsageError(f"--logit-bias is {text!r}: give a token id and a number, as in 42=-5") from None


def _function(name: str) -> Callable[..., Any]:
    """The function that MODULE:NAME names; modules of the current directory are found too."""
    module, _, attribute = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # whatever the module's own code raises
        raise UsageError(f"--processor {name} cannot be imported ({error}): give MODULE:NAME") from None
    return function


def _schema(given: str | None) -> str | None:
    """A schema is written as JSON, or is the name of a file that holds it."""
    if given is None or given.lstrip()[:1] in ("{", "[", '"') or given.strip() in ("true", "false"):
        return given
    return _read(given)


def _read(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"{name}: no such file; give a file that exists") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"{name} cannot be read ({reason}): give a text file in UTF-8") from None
