"""Grammars by llguidance (the extra `grammar`): the one file that imports it.

Turns a setting (JSON schema, regular expression, choice, grammar) into a matcher over a tokeniser's words. Knows
nothing of histories or logits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from triforce.config import SamplingParams
from triforce.controls.base import Words
from triforce.errors import UsageError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer
    from llguidance._lib import JsonCompileOptions

_JSON_FORM: JsonCompileOptions = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}  # as json.dumps writes it
_REMEDIES = {
    "json_schema": "correct it, or leave out what is not supported",
    "regex": "correct it (Rust's syntax: no look-around, no back-references)",
    "choice": "give other texts",
    "grammar": "correct it (Lark with a start rule, or GBNF with a root rule)",
}


class Grammars:
    """Matchers over one tokeniser's words, which are prepared once (some tenths of a second)."""

    def __init__(self, words: Words, end_token_ids: Sequence[int]) -> None:
        if not end_token_ids:
            raise UsageError(
                "this model has no token that ends a text, so a structured text could not end: use another"
            )
        self._usable = np.array([len(spelling) > 0 for spelling in words.spellings()])
        self._usable[[token for token in end_token_ids if token < len(self._usable)]] = False
        self._tokenizer = _tokenizer(_library("a structured text"), words, ~self._usable, end_token_ids[0])

    def matcher(self, params: SamplingParams) -> GuidanceMatcher:
        """A matcher at the start of the text. Raises `UsageError` for a setting that it cannot use."""
        name = params.structure
        assert name is not None
        matcher = _library(name).LLMatcher(self._tokenizer, _grammar(name, params, self._tokenizer), log_level=0)
        return GuidanceMatcher(name, matcher, self._usable)


class GuidanceMatcher:
    """`triforce.controls.grammar.Matcher` over llguidance's."""

    def __init__(self, name: str, matcher: LLMatcher, usable: npt.NDArray[np.bool_]) -> None:
        self._name = name
        self._matcher = matcher
        self._usable = usable
        self._bits = np.zeros(-(-len(usable) // 32), dtype=np.uint32)

    def consume(self, token: int) -> bool:
        if token < len(self._usable) and self._matcher.try_consume_tokens([token]) == 1:
            return True
        self._check()
        return False

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)
        self._check()

    def accepts_end(self) -> bool:
        return self._matcher.is_accepting()

    def allowed(self) -> npt.NDArray[np.bool_]:
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        self._check()
        bits = np.unpackbits(self._bits.view(np.uint8), count=len(self._usable), bitorder="little")
        allowed: npt.NDArray[np.bool_] = bits.view(np.bool_) & self._usable
        return allowed

    def forced(self) -> list[int]:
        forced = self._matcher.compute_ff_tokens()
        self._check()
        return forced

    def _check(self) -> None:
        """After an error, such as a limit of resources, the matcher would answer no more."""
        if not self._matcher.is_error():
            return
        reason = _reason(self._matcher.get_error())
        if reason == "NoExtensionBias":
            raise UsageError(f"{self._name} cannot be used (no text matches it): {_REMEDIES[self._name]}")
        raise UsageError(f"{self._name} is too complex ({reason}): simplify it, or ask for less of it")


def check_structure(params: SamplingParams) -> None:
    """Refuse a form that cannot be used before any model is there. Raises `UsageError`."""
    if params.structure is not None:
        _grammar(params.structure, params, None)


def _grammar(name: str, params: SamplingParams, tokenizer: LLTokenizer | None) -> str:
    """The setting `name` in llguidance's own form. Raises `UsageError` where it cannot be used."""
    library = _library(name)
    matcher: type[LLMatcher] = library.LLMatcher
    try:
        if name == "json_schema":
            assert isinstance(params.json_schema, str)
            grammar = matcher.grammar_from_json_schema(params.json_schema, defaults=_JSON_FORM)
        elif name == "regex":
            grammar = matcher.grammar_from_regex(params.regex or "")
        elif name == "choice":
            grammar = matcher.grammar_from_lark("start: TEXT\nTEXT: " + " | ".join(map(_quoted, params.choice)))
        else:
            grammar = str(library.grammar_from("grammar", params.grammar or ""))
    except ValueError as error:
        raise UsageError(f"{name} cannot be used ({_reason(str(error))}): {_REMEDIES[name]}") from None
    problem = matcher.validate_grammar(grammar, tokenizer)
    if problem and not problem.startswith("WARNING"):
        raise UsageError(f"{name} cannot be used ({_reason(problem)}): {_REMEDIES[name]}")
    return grammar


def _quoted(text: str) -> str:
    """`text` as Lark writes it: as JSON does, which leaves DEL as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _library(name: str) -> ModuleType:
    try:
        import llguidance
    except ImportError:
        raise UsageError(f"{name} needs llguidance: install it with pip install 'llguidance>=1.9'") from None
    return llguidance


def _tokenizer(library: ModuleType, words: Words, special: npt.NDArray[np.bool_], end: int) -> LLTokenizer:
    class Wrapped:
        """In the shape that llguidance asks for."""

        eos_token_id = end
        bos_token_id = None
        is_tokenizer_wrapper = True

        def __init__(self) -> None:
            self.tokens = list(words.spellings())
            self.special_token_ids = np.flatnonzero(special).tolist()

        def __call__(self, text: str) -> list[int]:
            return words.encode_within(text)

    tokenizer: LLTokenizer = library.LLTokenizer(Wrapped())
    return tokenizer


def _reason(message: str) -> str:
    """The telling line of an error message that may have many; where it says 3(7), it means a place."""
    lines = [line.strip() for line in message.strip().splitlines()] or ["no reason given"]
    telling = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    return re.sub(r"\b(\d+)\((\d+)\)", r"line \1, column \2", (telling or lines)[0][:150])
