"""Grammar engines side by side: seconds to take in a vocabulary and to compile, microseconds per mask and roll-back.

    python benchmarks/grammar.py --vocabulary qwen.tiktoken

The vocabularies are SmolLM2's (49,152 tokens, fetched by `triforce pull`) and, if given, one in tiktoken's format (a
base64 token and its rank per line). llguidance is what the extra `grammar` installs; xgrammar is measured where it is
installed. The last line is JSON.
"""

from __future__ import annotations

import argparse
import base64
import importlib
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from triforce.pull import resolve_model
from triforce.text.tokenizer import load_tokenizer

import numpy as np

SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 80},
        "year": {"type": "integer", "minimum": 1500, "maximum": 2100},
        "genre": {"enum": ["tragedy", "comedy", "history"]},
        "persons": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "alive": {"type": "boolean"}},
                "required": ["name", "age", "alive"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["title", "year", "genre", "persons"],
    "additionalProperties": False,
}
DOCUMENT = {
    "title": "The Tragedy of Hamlet, Prince of Denmark",
    "year": 1601,
    "genre": "tragedy",
    "persons": [{"name": f'Person number {i}, "so called"', "age": 20 + i, "alive": i % 2 == 0} for i in range(6)],
}
EMAIL = r"[a-z0-9.]{1,20}@[a-z0-9]{1,20}\.(com|org|net) on [0-9]{4}-[0-9]{2}-[0-9]{2}"
CASES: list[tuple[str, str, str, str]] = [  # name, kind, grammar, a text that it accepts
    ("json schema", "json", json.dumps(SCHEMA), json.dumps(DOCUMENT)),
    ("any json object", "json", '{"type": "object"}', json.dumps(DOCUMENT)),
    ("regex", "regex", EMAIL, "a.person.of.note@example.org on 1999-12-31"),
]


class Engine(Protocol):
    """One library over one vocabulary."""

    def compile(self, kind: str, grammar: str) -> None: ...

    def mask(self) -> bool:
        """Compute the mask; whether it rules out anything."""
        ...

    def accept(self, token: int) -> bool: ...

    def rollback(self, num_tokens: int) -> None: ...


class Guidance:
    """llguidance."""

    def __init__(self, tokens: list[bytes], end: int) -> None:
        import llguidance

        class Words:
            eos_token_id, bos_token_id = end, None
            is_tokenizer_wrapper = True

            def __init__(self) -> None:
                self.tokens = tokens
                self.special_token_ids = [end]

            def __call__(self, text: str) -> list[int]:
                return greedy(tokens_by_bytes, text.encode())

        tokens_by_bytes = {token: i for i, token in enumerate(tokens)}
        self._matcher_of = llguidance.LLMatcher
        self._tokenizer = llguidance.LLTokenizer(Words())  # type: ignore[arg-type]
        self._bits = np.zeros(-(-len(tokens) // 32), dtype=np.uint32)

    def compile(self, kind: str, grammar: str) -> None:
        spaces = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
        if kind == "json":
            text = self._matcher_of.grammar_from_json_schema(grammar, overrides=spaces)  # type: ignore[arg-type]
        else:
            text = self._matcher_of.grammar_from_regex(grammar)
        self._matcher = self._matcher_of(self._tokenizer, text)
        assert not self._matcher.is_error(), self._matcher.get_error()

    def mask(self) -> bool:
        self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        return bool(self._bits[0] != 0xFFFFFFFF)

    def accept(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))

    def rollback(self, num_tokens: int) -> None:
        assert self._matcher.rollback(num_tokens)


class XGrammar:
    """xgrammar."""

    def __init__(self, tokens: list[bytes], end: int) -> None:
        import xgrammar

        self._library = xgrammar
        info = xgrammar.TokenizerInfo(tokens, xgrammar.VocabType.RAW, stop_token_ids=[end])
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._bits = xgrammar.allocate_token_bitmask(1, info.vocab_size)

    def compile(self, kind: str, grammar: str) -> None:
        if kind == "json":
            compiled = self._compiler.compile_json_schema(grammar, any_whitespace=False, separators=(", ", ": "))
        else:
            compiled = self._compiler.compile_regex(grammar)
        self._matcher = self._library.GrammarMatcher(compiled)

    def mask(self) -> bool:
        return bool(self._matcher.fill_next_token_bitmask(self._bits))

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def rollback(self, num_tokens: int) -> None:
        self._matcher.rollback(num_tokens)


def greedy(ids: dict[bytes, int], text: bytes) -> list[int]:
    """Longest tokens first: not how the model was trained, but a path that any grammar of the text accepts."""
    out, at = [], 0
    while at < len(text):
        length = next(n for n in range(min(16, len(text) - at), 0, -1) if text[at : at + n] in ids)
        out.append(ids[text[at : at + length]])
        at += length
    return out


def timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(make: Callable[[list[bytes], int], Engine], tokens: list[bytes], end: int) -> Iterator[dict[str, Any]]:
    """One row per grammar: a walk along an accepted text, with a roll-back of six tokens after every sixth."""
    engines: list[Engine] = []
    setup = timed(lambda: engines.append(make(tokens, end)))
    engine, ids = engines[0], {token: i for i, token in enumerate(tokens) if i != end}
    for name, kind, grammar, text in CASES:
        compiled = timed(lambda kind=kind, grammar=grammar: engine.compile(kind, grammar))  # type: ignore[misc]
        masks, accepts, rollbacks = [], [], []
        path = greedy(ids, text.encode())
        for i, token in enumerate(path):
            masks.append(timed(engine.mask))
            accepts.append(timed(lambda token=token: engine.accept(token)))  # type: ignore[misc]
            if i % 6 == 5:
                rollbacks.append(timed(lambda: engine.rollback(6)))
                assert all(engine.accept(again) for again in path[i - 5 : i + 1])
        yield {
            "grammar": name,
            "tokens": len(path),
            "vocabulary_s": round(setup, 3),
            "compile_ms": round(1e3 * compiled, 2),
            "first_mask_us": round(1e6 * masks[0], 1),
            "mask_us_mean": round(1e6 * statistics.mean(masks), 1),
            "mask_us_median": round(1e6 * statistics.median(masks), 1),
            "mask_us_max": round(1e6 * max(masks), 1),
            "accept_us": round(1e6 * statistics.median(accepts), 1),
            "rollback_6_us": round(1e6 * statistics.median(rollbacks), 1) if rollbacks else None,
        }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=Path, help="another vocabulary, in tiktoken's format")
    args = parser.parse_args()
    tokenizer = load_tokenizer(resolve_model("smollm2"))
    vocabularies = {"smollm2": [tokenizer.pieces.piece(i, False) for i in range(tokenizer.vocab_size)]}
    if args.vocabulary:
        lines = args.vocabulary.read_bytes().splitlines()
        vocabularies[args.vocabulary.stem] = [*(base64.b64decode(line.split()[0]) for line in lines), b"<|end|>"]
    rows = []
    for library, make in (("llguidance", Guidance), ("xgrammar", XGrammar)):
        if importlib.util.find_spec(library) is None:
            print(f"{library} is not installed: left out", file=sys.stderr)
            continue
        importing = timed(lambda library=library: importlib.import_module(library))  # type: ignore[misc]
        print(f"{library}: import {importing:.2f} s", flush=True)
        for name, tokens in vocabularies.items():
            end = len(tokens) - 1 if name != "smollm2" else tokenizer.eos_token_ids[0]
            for row in measure(make, tokens, end):
                rows.append({"library": library, "vocabulary": name, "words": len(tokens), **row})
                print(" ".join(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
    print(json.dumps({"benchmark": "grammar", "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
