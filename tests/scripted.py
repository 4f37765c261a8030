"""A stream over a target that says a fixed text and a drafter that guesses it in blocks of chosen sizes.

And the naive cut: what a stop must leave of a text, by reading it character by character.
"""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import Tensor

from triforce.completion import Completion, Generation
from triforce.config import Decoding, SamplingParams
from triforce.methods import METHODS
from triforce.sampling import Sampler, one_hot
from triforce.speculative import Draft
from triforce.statistics import LevelStats
from triforce.stream import Stream
from triforce.text.tokenizer import Tokenizer
from triforce.tokens import TokenIds

TEXT = "Grüße an 👩‍👧: 中文 🙂🙂, und so on and on.\n\nThe end 🎉"


def bpe_tokenizer() -> Tokenizer:
    """Byte-level, with merges that cut `TEXT` into words, parts of words and parts of characters."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=274,
        special_tokens=["<end>", "<pad>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator([TEXT, "and on and on, so the end", "🙂🎉👩‍👧"], trainer)
    return Tokenizer(backend, {"eos_token": "<end>"})


TOKENIZER = bpe_tokenizer()
IDS = TOKENIZER.encode(TEXT)
PROMPT: TokenIds = np.array([1, 2, 3], dtype=np.int32)


class ScriptedRunner:
    """Gives nearly all mass to the script's token at each position."""

    def __init__(self, script: Sequence[int], vocab_size: int) -> None:
        self.stats = LevelStats("target")
        self.script = script
        self.vocab_size = vocab_size
        self.model = SimpleNamespace(config=SimpleNamespace(vocab_size=vocab_size))
        self.cache = SimpleNamespace(sync=lambda _: 0, length=0)

    def logits(self, tokens: TokenIds, num_rows: int) -> Tensor:
        self.stats.passes += 1
        first = len(tokens) - num_rows + 1 - len(PROMPT)
        following = [self.script[i % len(self.script)] for i in range(first, first + num_rows)]
        return 50.0 * one_hot(torch.tensor(following), self.vocab_size)


class ScriptedDrafter:
    """Drafts the script, then one wrong token, so that verdicts have the `sizes` asked for, one after the other."""

    def __init__(self, runner: ScriptedRunner, sizes: Iterator[int]) -> None:
        self.stats = LevelStats("script")
        self._runner = runner
        self._sizes = sizes

    def propose(self, tokens: TokenIds, depth: int, sampler: Sampler) -> Draft | None:
        del sampler
        script, start = self._runner.script, len(tokens) - len(PROMPT)
        right = [script[i % len(script)] for i in range(start, start + next(self._sizes))]
        drafted = [*right[:-1], (right[-1] + 1) % self._runner.vocab_size][:depth]
        if not drafted:
            return None
        return Draft(drafted, one_hot(torch.tensor(drafted), self._runner.vocab_size), ["script"] * len(drafted))


def scripted_stream(tokenizer: Tokenizer, script: Sequence[int], sampling: SamplingParams, sizes: list[int]) -> Stream:
    """The stream of `script`, verified in blocks of `sizes`, the last of which is repeated."""
    runner = ScriptedRunner(script, 300)
    drafter = ScriptedDrafter(runner, itertools.chain(sizes, itertools.repeat(sizes[-1])))
    parts: Any = SimpleNamespace(
        target=runner,
        prefill=lambda *_: None,
        catch_up=lambda _: None,
        levels=[runner.stats],
        decoding=Decoding(method="scripted", gamma2=16),
    )
    METHODS["scripted"] = lambda _: drafter
    try:
        return Stream(parts, tokenizer, tokenizer.eos_token_ids, PROMPT, sampling)
    finally:
        del METHODS["scripted"]


@dataclass(frozen=True)
class NaiveCut:
    """What is left of a text: so many tokens, and the text of them that is shown."""

    num_tokens: int
    text: str
    finish_reason: str
    stop_reason: str | int | None


def naive_cut(tokenizer: Tokenizer, ids: Sequence[int], sampling: SamplingParams) -> NaiveCut:
    """The cut of the full sequence `ids`, found by looking at every token, and at every character of its text."""
    ends = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(tokenizer.eos_token_ids))
    seen = ""
    for num in range(1, len(ids) + 1):
        token, armed = ids[num - 1], num > sampling.min_new_tokens
        if armed and token in ends:
            shown = ids[: num if sampling.include_stop else num - 1]
            return NaiveCut(num, _whole(tokenizer, shown, final=True), "stop", token)
        text = _whole(tokenizer, ids[:num])
        for end in range(len(seen) + 1, len(text) + 1):
            found = [stop for stop in sampling.stop if armed and text[:end].endswith(stop)]
            if found:
                stop = max(found, key=len)
                return NaiveCut(num, text[: end if sampling.include_stop else end - len(stop)], "stop", stop)
        seen = text
        if num == sampling.max_new_tokens:
            break
    return NaiveCut(num, _whole(tokenizer, ids[:num], final=True), "length", None)


def _whole(tokenizer: Tokenizer, ids: Sequence[int], final: bool = False) -> str:
    """The text of `ids`, an incomplete character at its end left out, unless it is `final`."""
    data = b"".join(tokenizer.pieces.piece(token_id, skip_special=True) for token_id in ids)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, final)


def check_stream(stream: Stream, expected: NaiveCut, ids: Sequence[int]) -> tuple[list[Completion], Generation]:
    """Draws `stream` to its end: it must give `expected`, and never show what it would have to take back."""
    shown, completions = "", []
    for completion in stream:
        shown += completion.text
        completions.append(completion)
        assert expected.text.startswith(shown), (expected.text, shown)
        assert stream.generation().text.startswith(shown)
    done = stream.generation()
    assert (done.text, shown) == (expected.text, expected.text)
    assert done.token_ids == [completion.token_id for completion in completions] == list(ids[: expected.num_tokens])
    assert done.completion_tokens == done.timings.decode_tokens == expected.num_tokens
    assert (done.finish_reason, done.stop_reason) == (expected.finish_reason, expected.stop_reason)
    assert [completion.finish_reason for completion in completions[:-1]] == [None] * (expected.num_tokens - 1)
    assert (completions[-1].finish_reason, completions[-1].stop_reason) == (done.finish_reason, done.stop_reason)
    return completions, done
