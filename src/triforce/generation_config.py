"""transformers' GenerationConfig and the keywords of its `generate`, read as our settings.

Fields that are not honoured are refused by name, unless they are at values that change nothing. Objects are read by
their attributes: nothing of transformers is imported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from triforce.checks import listed, whole
from triforce.config import MOST_TEXTS, MOST_TOKENS, SamplingParams
from triforce.errors import ModelError, UsageError, shown

NEW_TOKENS = 20  # without any limit: as transformers does
TOP_K = 50  # the default of `top_k` for sampling: as transformers does


class GenerationFields(TypedDict, total=False):
    """The honoured fields. None means unset; an `eos_token_id` of None means that nothing ends a text."""

    max_new_tokens: int | None
    max_length: int | None
    max_time: float | None
    stop_strings: str | Sequence[str] | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    bad_words_ids: Sequence[Sequence[int]] | None
    min_new_tokens: int | None
    min_length: int | None
    sequence_bias: Mapping[tuple[int, ...], float] | Sequence[tuple[Sequence[int], float]] | None
    num_return_sequences: int | None
    eos_token_id: int | Sequence[int] | None
    pad_token_id: int | None


_SAMPLING_ONLY: dict[str, tuple[object, ...]] = {
    "temperature": (0.0, 1.0),
    "top_k": (0, TOP_K),
    "top_p": (1.0,),
    "min_p": (0.0,),
    "typical_p": (1.0,),
}
"""Fields that need `do_sample`, with the values at which greedy decoding may have them."""

_NEUTRAL: dict[str, tuple[object, ...]] = {
    **dict.fromkeys(("num_beams", "num_beam_groups"), (1,)),
    **dict.fromkeys(("encoder_repetition_penalty", "length_penalty"), (1.0,)),
    **dict.fromkeys(("diversity_penalty", "penalty_alpha", "epsilon_cutoff", "eta_cutoff"), (0.0,)),
    "encoder_no_repeat_ngram_size": (0,),
    **dict.fromkeys(("early_stopping", "remove_invalid_values", "token_healing", "low_memory", "use_mtp"), (False,)),
    **dict.fromkeys(("output_attentions", "output_hidden_states", "output_scores", "output_logits"), (False,)),
    **dict.fromkeys(("return_dict_in_generate", "is_assistant", "synced_gpus", "trust_remote_code"), (False,)),
    "guidance_scale": (1.0,),
    "use_cache": (True,),
    "cache_implementation": ("dynamic",),
    "renormalize_logits": (True, False),  # laws always sum to 1
    "disable_compile": (True, False),  # nothing is compiled
    "num_assistant_tokens": (20,),
    "num_assistant_tokens_schedule": ("constant",),
    "assistant_confidence_threshold": (0.4,),
    "assistant_lookbehind": (10,),
    "target_lookbehind": (10,),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "generation_kwargs": ({},),
}
"""Fields that are not honoured, with the values besides None at which they change nothing."""

_REMEDIES = {
    "assistant_model": "give from_pretrained a draft=",
    "prompt_lookup_num_tokens": 'give decoding=triforce.Decoding(method="lookup")',
    "num_beams": "use 1, or draw several texts with num_return_sequences",
    "output_scores": "use model.engine.generate with SamplingParams(logprobs=...)",
    "output_logits": "use model.engine.generate with SamplingParams(logprobs=...)",
    "return_dict_in_generate": "use model.engine.generate, which returns a record",
    "inputs": "give input_ids",
    "inputs_embeds": "give input_ids",
}
_RECORDS = frozenset(("transformers_version", "bos_token_id"))  # say nothing about a generation


def model_defaults(directory: Path) -> dict[str, Any]:
    """The fields of a model directory's generation_config.json; none where there is no such file."""
    file = directory / "generation_config.json"
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise ModelError(f"{file}: damaged; download it again")
    return {name: value for name, value in content.items() if _says_something(name) and value is not None}


def explicit_fields(config: object) -> dict[str, Any]:
    """What was set in `config`: a GenerationConfig, or a mapping. Raises `UsageError` for anything else."""
    if config is None:
        return {}
    if isinstance(config, Mapping):
        return dict(config)
    if not hasattr(config, "max_new_tokens"):
        raise UsageError(f"generation_config is a {type(config).__name__}: give transformers' GenerationConfig")
    default = vars(type(config)())
    return {
        name: value
        for name, value in vars(config).items()
        if _says_something(name) and value is not None and not (name in default and _is_one_of(value, (default[name],)))
    }


def merged(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The model's `own` fields, overridden by those `given`. Raises `UsageError` for one that cannot be honoured."""
    for name, value in [*own.items(), *given.items()]:
        if name in GenerationFields.__annotations__ or value is None or name in _RECORDS:
            continue
        if not _is_one_of(value, _NEUTRAL.get(name, ())):
            remedy = _REMEDIES.get(name, "leave it out")
            raise UsageError(f"{name} is {shown(value)}, which TriForceModel.generate does not honour: {remedy}")
    fields = {**own, **given}
    if not isinstance(fields.get("do_sample"), (bool, type(None))):
        raise UsageError(f"do_sample is {shown(fields['do_sample'])}: use True or False")
    if fields.get("pad_token_id") is not None:
        fields["pad_token_id"] = whole("pad_token_id", fields["pad_token_id"], 0, MOST_TOKENS)
    if not fields.get("do_sample"):
        for name, neutral in _SAMPLING_ONLY.items():
            value = given.get(name)
            if value is not None and not _is_one_of(value, neutral):
                raise UsageError(f"{name} is {shown(value)}, but nothing is drawn: add do_sample=True")
    return fields


def sampling_params(fields: Mapping[str, Any], prompt_tokens: int, seed: int | None) -> SamplingParams:
    """The merged `fields` as ours, for prompts of `prompt_tokens`. Raises `UsageError` when out of range."""
    ends = end_ids(fields)
    most = _new_tokens(fields, prompt_tokens)
    do_sample = fields.get("do_sample")
    return SamplingParams(
        temperature=_or(fields.get("temperature"), 1.0) if do_sample else 0.0,
        top_p=_or(fields.get("top_p"), 1.0) if do_sample else 1.0,
        top_k=_or(fields.get("top_k"), TOP_K) if do_sample else 0,
        min_p=_or(fields.get("min_p"), 0.0) if do_sample else 0.0,
        typical_p=_or(fields.get("typical_p"), 1.0) if do_sample else 1.0,
        repetition_penalty=_or(fields.get("repetition_penalty"), 1.0),
        no_repeat_ngram_size=_or(fields.get("no_repeat_ngram_size"), 0),
        bad_words=_or(fields.get("bad_words_ids"), ()),
        logit_bias=_biases(fields.get("sequence_bias")),
        min_new_tokens=_least(fields, prompt_tokens, most),
        seed=seed,
        max_new_tokens=most,
        stop=_or(fields.get("stop_strings"), ()),
        stop_token_ids=_or(ends, ()),
        ignore_eos="eos_token_id" in fields,
        max_seconds=fields.get("max_time"),
    )


def _is_one_of(value: object, others: Iterable[object]) -> bool:
    """By equality, where that is a plain answer: arrays equal nothing here."""
    try:
        return any(bool(value == other) for other in others)
    except (ValueError, TypeError, RuntimeError):
        return False


def num_texts(fields: Mapping[str, Any]) -> int:
    """How many texts follow each prompt. Raises `UsageError`."""
    return whole("num_return_sequences", _or(fields.get("num_return_sequences"), 1), 1, MOST_TEXTS)


def end_ids(fields: Mapping[str, Any]) -> list[int] | None:
    """The ids of `eos_token_id`, one or several, also as a tensor; None where it is unset."""
    value = fields.get("eos_token_id")
    if value is None:
        return None
    ids = value.tolist() if hasattr(value, "tolist") else value
    return list(ids) if isinstance(ids, (list, tuple)) else [ids]


def _new_tokens(fields: Mapping[str, Any], prompt_tokens: int) -> Any:
    """`max_new_tokens` before `max_length`, which counts the prompt too."""
    if fields.get("max_new_tokens") is not None:
        return fields["max_new_tokens"]
    longest = fields.get("max_length")
    if longest is None:
        return NEW_TOKENS
    longest = whole("max_length", longest, 1, MOST_TOKENS)
    if longest <= prompt_tokens:
        raise UsageError(f"max_length is {longest}, and the prompt has {prompt_tokens} tokens: use max_new_tokens")
    return longest - prompt_tokens


def _least(fields: Mapping[str, Any], prompt_tokens: int, most: Any) -> Any:
    """`min_new_tokens` before `min_length`, which counts the prompt too."""
    if fields.get("min_new_tokens") is not None or fields.get("min_length") is None:
        return _or(fields.get("min_new_tokens"), 0)
    shortest = whole("min_length", fields["min_length"], 0, MOST_TOKENS)
    least = max(shortest - prompt_tokens, 0)
    if isinstance(most, int) and least > most:
        longest = prompt_tokens + most
        raise UsageError(f"min_length is {shortest}, but the text has at most {longest} tokens: lower it")
    return least


def _biases(given: Any) -> list[tuple[Any, Any]]:
    """`sequence_bias` where all sequences are single tokens, whose logits it is added to."""
    pairs = list(given.items()) if isinstance(given, Mapping) else listed("sequence_bias", _or(given, ()))
    for pair in pairs:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], (list, tuple)):
            raise UsageError(f"sequence_bias has {shown(pair)}: map sequences of ids to numbers, as in {{(42,): -5.0}}")
        if len(pair[0]) != 1:
            raise UsageError(
                f"sequence_bias has {shown(pair[0])}, and TriForceModel.generate honours single tokens: "
                "give transformers' SequenceBiasLogitsProcessor in logits_processor"
            )
    return [(ids[0], bias) for ids, bias in pairs]


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _says_something(name: str) -> bool:
    return not name.startswith("_") and name not in _RECORDS
