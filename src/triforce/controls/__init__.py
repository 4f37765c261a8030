"""Sampling controls that change logits by their history: one file each, and one line each in `CONTROLS`.

Knows which setting asks for which control; `triforce.sampling` applies them, at every level alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from triforce.config import SamplingParams
from triforce.controls.bad_words import BadWords, spell
from triforce.controls.base import Call, Control, Words
from triforce.controls.frequency_penalty import FrequencyPenalty
from triforce.controls.grammar import Grammar
from triforce.controls.guidance import Grammars
from triforce.controls.logit_bias import LogitBias
from triforce.controls.min_new_tokens import MinNewTokens
from triforce.controls.no_repeat_ngram import NoRepeatNgram
from triforce.controls.presence_penalty import PresencePenalty
from triforce.controls.processors import Processors
from triforce.controls.repetition_penalty import RepetitionPenalty

CONTROLS: dict[str, Callable[[SamplingParams, Call], Control]] = {
    "logit_bias": lambda params, call: LogitBias(params.logit_bias, call),
    "repetition_penalty": lambda params, call: RepetitionPenalty(params.repetition_penalty, call),
    "presence_penalty": lambda params, call: PresencePenalty(params.presence_penalty, call),
    "frequency_penalty": lambda params, call: FrequencyPenalty(params.frequency_penalty, call),
    "no_repeat_ngram_size": lambda params, _: NoRepeatNgram(params.no_repeat_ngram_size),
    "bad_words": lambda params, call: BadWords(params.bad_words, call),
    "min_new_tokens": lambda params, call: MinNewTokens(params.min_new_tokens, call),
    "processors": lambda params, _: Processors(params.processors),
}
"""By setting, in the order of application: transformers' order, presence and frequency following repetition as in vLLM.

What the text must match comes after all of them, so that no processor can let a forbidden token back in.
"""

_OFF = SamplingParams()


class ControlFactory:
    """Makes the controls of each call for one model."""

    def __init__(self, words: Words, vocab_size: int, end_token_ids: Iterable[int]) -> None:
        self._words = words
        self._vocab_size = vocab_size
        self._ends = tuple(token for token in end_token_ids if token < vocab_size)
        self._grammars: dict[tuple[int, ...], Grammars] = {}  # of the last two sets of ids that end a text

    def create(self, params: SamplingParams, prompt_tokens: int) -> list[Control]:
        """The controls that `params` asks for, none where it asks for none. Raises `UsageError`."""
        stops = tuple(token for token in params.stop_token_ids if token < self._vocab_size)
        own_ends = () if params.ignore_eos else self._ends
        call = Call(prompt_tokens, self._vocab_size, (*own_ends, *stops))
        params = spell(params, self._words)
        controls = [
            create(params, call) for name, create in CONTROLS.items() if getattr(params, name) != getattr(_OFF, name)
        ]
        if params.structure is not None:
            ends = own_ends or stops or self._ends  # a caller's id ends a form if nothing else can
            if ends not in self._grammars:
                self._grammars = dict([*self._grammars.items()][-1:])  # each has prepared a whole vocabulary
                self._grammars[ends] = Grammars(self._words, ends)
            controls.append(Grammar(params.structure, self._grammars[ends].matcher(params), prompt_tokens, ends))
        return controls


def grammar_of(controls: Sequence[Control]) -> Grammar | None:
    """The control that knows which tokens are forced."""
    return next((control for control in controls if isinstance(control, Grammar)), None)
