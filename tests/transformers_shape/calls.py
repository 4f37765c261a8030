"""Calls of `generate` that transformers and TriForceModel are to answer alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    NoRepeatNGramLogitsProcessor,
    PreTrainedTokenizerFast,
    SequenceBiasLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
)

END, PAD = 256, 257
PROMPT = "It was the best of times, it was the worst of times. " * 2


def new_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({byte: i for i, byte in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<end>",
        pad_token="<pad>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


class NeverLongerThan(StoppingCriteria):
    """A user's own criterion, which records what it saw."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.seen: list[int] = []

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        assert scores is None
        self.seen.append(input_ids.shape[1])
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.length)


class AwayFromTheLast(LogitsProcessor):
    """A user's own processor, which looks at the whole padded row."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        shift = torch.zeros_like(scores).scatter_(1, input_ids[:, -2:], -2.0)
        return scores + shift - 0.01 * input_ids.shape[1]


Settings = Callable[[Tensor, Any], dict[str, Any]]  # of the free text's ids, and the tokenizer
CASES: dict[str, Settings] = {
    "no settings": lambda *_: {},
    "max_new_tokens": lambda *_: {"max_new_tokens": 33},
    "max_length": lambda *_: {"max_length": 130},
    "a config": lambda *_: {"generation_config": GenerationConfig(max_new_tokens=12)},
    "a config overridden": lambda *_: {"generation_config": GenerationConfig(max_length=9), "max_new_tokens": 7},
    "greedy by name": lambda *_: {"do_sample": False, "num_beams": 1, "use_cache": True, "max_new_tokens": 5},
    "one end id": lambda ids, _: {"eos_token_id": int(ids[13]), "max_new_tokens": 40},
    "several end ids": lambda ids, _: {"eos_token_id": [int(ids[19]), int(ids[11])], "max_new_tokens": 40},
    "no end id": lambda *_: {"eos_token_id": None, "max_new_tokens": 40},
    "stop strings": lambda ids, tok: {
        "stop_strings": [tok.decode(ids[21:23]), "never"], "tokenizer": tok, "max_new_tokens": 40
    },
    "MaxLengthCriteria": lambda *_: {"stopping_criteria": [MaxLengthCriteria(121)], "max_new_tokens": 40},
    "EosTokenCriteria": lambda ids, _: {
        "stopping_criteria": StoppingCriteriaList([EosTokenCriteria(int(ids[17]))]), "max_new_tokens": 40
    },
    "StopStringCriteria": lambda ids, tok: {
        "stopping_criteria": StoppingCriteriaList([StopStringCriteria(tok, [tok.decode(ids[25:27])])]),
        "max_new_tokens": 40,
    },
    "MaxTimeCriteria": lambda *_: {"stopping_criteria": [MaxTimeCriteria(1e-9)], "max_new_tokens": 40},
    "an own criterion": lambda *_: {"stopping_criteria": [NeverLongerThan(124)], "max_new_tokens": 40},
    "repetition_penalty": lambda *_: {"repetition_penalty": 1.6, "max_new_tokens": 30},
    "no_repeat_ngram_size": lambda *_: {"no_repeat_ngram_size": 2, "max_new_tokens": 30},
    "bad_words_ids": lambda ids, _: {"bad_words_ids": [ids[2:4].tolist(), [int(ids[9])]], "max_new_tokens": 30},
    "min_new_tokens": lambda ids, _: {"eos_token_id": int(ids[7]), "min_new_tokens": 20, "max_new_tokens": 30},
    "min_length": lambda ids, _: {"eos_token_id": int(ids[7]), "min_length": 126, "max_new_tokens": 30},
    "a low min_length": lambda ids, _: {"eos_token_id": int(ids[7]), "min_length": 9, "max_new_tokens": 30},
    "both, the first more": lambda ids, _: {
        "eos_token_id": int(ids[7]), "min_new_tokens": 15, "min_length": 109, "max_new_tokens": 30
    },
    "both, the second more": lambda ids, _: {
        "eos_token_id": int(ids[7]), "min_new_tokens": 2, "min_length": 126, "max_new_tokens": 30
    },
    "sequence_bias": lambda ids, _: {
        "sequence_bias": {(int(ids[2]),): -4.0, (7,): 3.0}, "repetition_penalty": 1.2, "max_new_tokens": 30
    },
    "sequence_bias as a list": lambda ids, _: {
        "sequence_bias": [[[int(ids[2])], -4.0], [[7], 3.0]], "max_new_tokens": 30
    },
    "sequence_bias as a processor": lambda ids, _: {
        "logits_processor": [SequenceBiasLogitsProcessor({tuple(ids[2:4].tolist()): -30.0, (7,): 3.0})],
        "max_new_tokens": 30,
    },
    "logits_processor": lambda *_: {
        "logits_processor": LogitsProcessorList([NoRepeatNGramLogitsProcessor(3), AwayFromTheLast()]),
        "max_new_tokens": 30,
    },
    "several controls": lambda ids, _: {
        "generation_config": GenerationConfig(repetition_penalty=1.2, no_repeat_ngram_size=3, min_new_tokens=9),
        "eos_token_id": int(ids[4]),
        "logits_processor": [AwayFromTheLast()],
        "max_new_tokens": 30,
    },
}  # fmt: skip
