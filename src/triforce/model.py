"""The engine in the shape that transformers users know: `from_pretrained` and `generate` on tensors of ids.

Takes transformers' own objects (configs, streamers, stopping criteria, processors) by what they do, and imports none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from triforce.checks import chosen
from triforce.config import SEEDS, Decoding, SamplingParams
from triforce.controls.processors import refuse_counting
from triforce.engine import Engine, load
from triforce.errors import UsageError, shown
from triforce.generation_config import (
    GenerationFields,
    end_ids,
    explicit_fields,
    merged,
    model_defaults,
    num_texts,
    sampling_params,
)
from triforce.tokens import TokenIds

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Streamer(Protocol):
    """As transformers' streamers: `put` gets the prompt's ids and then each new id, `end` says that all are there."""

    def put(self, value: Tensor) -> object: ...

    def end(self) -> object: ...


StoppingCriterion = Callable[[Tensor, Any], Any]
"""Called with ids [1, length] and scores (None) after every token; true, or an all-true tensor, ends the text."""


class TriForceModel:
    """A target model with its drafter: `generate` is transformers' own call, and gives what plain decoding gives.

    `generation_config` are the settings that calls start from, `decoding` is how to decode. For one thread.
    """

    def __init__(self, engine: Engine, decoding: Decoding | None = None, generation_config: object = None) -> None:
        self.engine = engine
        self.decoding = chosen("decoding", decoding, Decoding)
        self.generation_config = explicit_fields(generation_config)

    @classmethod
    def from_pretrained(
        cls,
        target: str | os.PathLike[str],
        *,
        draft: str | os.PathLike[str] | None = None,
        dtype: str | torch.dtype = "auto",
        cache_dtype: str | torch.dtype = "auto",
        device: str | torch.device = "auto",
        rope_scaling: str | None = None,
        decoding: Decoding | None = None,
    ) -> TriForceModel:
        """The model called `target`, as `triforce.load` finds it, with the defaults of its generation_config.json.

        The other arguments and the errors are those of `triforce.load`; dtypes and devices may be PyTorch's.
        """
        from triforce.pull import resolve_model

        path = resolve_model(target)
        engine = load(path, draft=draft, dtype=dtype, cache_dtype=cache_dtype, device=device, rope_scaling=rope_scaling)
        return cls(engine, decoding, model_defaults(path))

    @property
    def device(self) -> torch.device:
        """Where the target is; ids may be anywhere."""
        return self.engine.target.device

    def generate(
        self,
        input_ids: Tensor,
        generation_config: object = None,
        logits_processor: Sequence[Callable[..., Any]] | None = None,
        stopping_criteria: StoppingCriterion | Iterable[StoppingCriterion] | None = None,
        *,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        streamer: Streamer | None = None,
        tokenizer: object = None,
        seed: int | None = None,
        decoding: Decoding | None = None,
        **fields: Unpack[GenerationFields],
    ) -> Tensor:
        """Ids [batch * num_return_sequences, length] on the device of `input_ids` [batch, prompt]: prompts and new ids.

        `fields` are those of a GenerationConfig and override it, as in transformers. Rows are generated one after the
        other; prompts are padded on the left (`attention_mask` is 0 there), the output on the right. Without a `seed`,
        one comes from PyTorch's generator, so that `torch.manual_seed` repeats a call. `tokenizer` is not needed: stop
        strings are found by the model's own. Raises `UsageError` for what cannot be honoured, `PromptError` for
        prompts that are empty or too long.
        """
        del tokenizer
        if token_type_ids is not None and not (isinstance(token_type_ids, Tensor) and not token_type_ids.any()):
            raise UsageError("token_type_ids are not all 0: the model knows one kind of text, leave them out")
        settings = merged(self.generation_config, {**explicit_fields(generation_config), **fields})
        prompts = _Prompts(input_ids, attention_mask, settings)
        num = num_texts(settings)
        _check_streamer(streamer, len(prompts.rows) * num)
        if seed is None and settings.get("do_sample"):
            seed = int(torch.randint(SEEDS - 1, ()))
        sampling = sampling_params(settings, input_ids.shape[1], seed)
        own = _for_each_row(
            sampling,
            prompts,
            num,
            _functions("stopping_criteria", stopping_criteria),
            _functions("logits_processor", logits_processor),
        )
        decoding = self.decoding if decoding is None else decoding
        with _shown_by(streamer, input_ids) as put:
            texts = [
                padding + row + ids
                for padding, row, params in zip(prompts.padding, prompts.rows, own, strict=True)
                for ids in self._continuations(row, num, params, decoding, put)
            ]
        return _padded(texts, self._pad_token_id(settings), input_ids.device)

    def _continuations(
        self, row: list[int], num: int, sampling: SamplingParams, decoding: Decoding, put: Callable[[int], object]
    ) -> Iterator[list[int]]:
        """The new ids of `num` texts after one prompt; each goes through `put` as it is verified."""
        for stream in self.engine.streams(row, num, sampling, decoding):
            for completion in stream:
                put(completion.token_id)
            yield stream.generation().token_ids

    def _pad_token_id(self, settings: Mapping[str, Any]) -> int:
        """The setting, else the first end token."""
        if settings.get("pad_token_id") is not None:
            return int(settings["pad_token_id"])
        ends = end_ids(settings) or self.engine.end_token_ids
        return ends[0] if ends else 0


class _Prompts:
    """The `rows` of a batch without their left `padding`. Raises `UsageError` for a batch of another form."""

    def __init__(self, input_ids: Tensor, attention_mask: Tensor | None, settings: Mapping[str, Any]) -> None:
        if not isinstance(input_ids, Tensor) or input_ids.dim() != 2 or input_ids.is_floating_point():
            raise UsageError("input_ids are no integer tensor [batch, length]: use return_tensors='pt'")
        if len(input_ids) == 0:
            raise UsageError("input_ids hold no prompt: give at least one row")
        if attention_mask is None:
            attention_mask = _guessed_mask(input_ids, settings)
        if not isinstance(attention_mask, Tensor) or attention_mask.shape != input_ids.shape:
            shapes = f"{list(getattr(attention_mask, 'shape', ()))} and {list(input_ids.shape)}"
            raise UsageError(f"attention_mask and input_ids have shapes {shapes}: give them the same")
        self.padding: list[list[int]] = []
        self.rows: list[list[int]] = []
        for ids, mask in zip(input_ids.tolist(), attention_mask.bool().tolist(), strict=True):
            start = mask.index(True) if True in mask else len(mask)
            if not all(mask[start:]):
                raise UsageError("attention_mask is 0 behind a 1: pad on the left (tokenizer.padding_side = 'left')")
            self.padding.append(ids[:start])
            self.rows.append(ids[start:])


def _guessed_mask(input_ids: Tensor, settings: Mapping[str, Any]) -> Tensor:
    """Without a mask, padding is known by its id, where that cannot be a token that ends a text."""
    pad = settings.get("pad_token_id")
    if pad is None or pad in (end_ids(settings) or []):
        return torch.ones_like(input_ids)
    return input_ids.ne(pad)


def _for_each_row(
    sampling: SamplingParams,
    prompts: _Prompts,
    num: int,
    criteria: list[StoppingCriterion],
    processors: list[Callable[..., Any]],
) -> list[SamplingParams]:
    """`sampling` for each prompt: seeds that no other text has, and what looks at the padded row."""
    refuse_counting(processors)
    return [
        replace(
            sampling.seeded(index * num),
            criteria=[_criterion(criterion, padding) for criterion in criteria],
            processors=[_processor(processor, padding) for processor in processors],
        )
        for index, padding in enumerate(prompts.padding)
    ]


def _check_streamer(streamer: Streamer | None, num_texts: int) -> None:
    if streamer is None:
        return
    if not (callable(getattr(streamer, "put", None)) and callable(getattr(streamer, "end", None))):
        raise UsageError(f"streamer is {shown(streamer)}: give an object with put and end, as transformers' streamers")
    if num_texts != 1:
        raise UsageError("a streamer shows one text: give one prompt and num_return_sequences=1, or no streamer")


@contextmanager
def _shown_by(streamer: Streamer | None, input_ids: Tensor) -> Iterator[Callable[[int], object]]:
    """What shows each new id by `streamer`, which has got the prompt; it is ended after an error too."""
    if streamer is None:
        yield lambda _: None
        return
    try:
        streamer.put(input_ids.cpu())
        yield lambda token_id: streamer.put(torch.tensor([token_id]))
    finally:
        streamer.end()  # so that nobody waits for more


def _criterion(criterion: StoppingCriterion, padding: list[int]) -> Callable[[TokenIds], bool]:
    """A criterion of transformers as one of ours: it sees its padded row, and no scores."""
    left = torch.tensor(padding, dtype=torch.long)

    def ends(tokens: TokenIds) -> bool:
        ids = torch.cat((left, torch.tensor(tokens, dtype=torch.long)))[None]
        verdict = criterion(ids, None)
        return bool(verdict.all()) if isinstance(verdict, Tensor) else bool(verdict)

    ends.__name__ = type(criterion).__name__
    return ends


def _processor(processor: Callable[..., Any], padding: list[int]) -> Callable[..., Any]:
    """A processor of transformers, told by the names of the arguments, that sees its padded row."""
    left = torch.tensor(padding, dtype=torch.long)[None]

    def process(input_ids: Tensor, scores: Tensor) -> object:
        return processor(torch.cat((left, input_ids), 1), scores)

    process.__name__ = type(processor).__name__
    return process


def _functions(name: str, given: object) -> list[Callable[..., Any]]:
    """One function or several; transformers' lists of them can be called themselves, but are lists."""
    functions: list[Any] = [] if given is None else list(given) if isinstance(given, Iterable) else [given]
    for function in functions:
        if not callable(function) or isinstance(function, type):
            raise UsageError(f"{name} has {shown(function)}: give functions, or transformers' objects")
    return functions


def _padded(texts: list[list[int]], pad_token_id: int, device: torch.device) -> Tensor:
    longest = max(map(len, texts))
    return torch.tensor([ids + [pad_token_id] * (longest - len(ids)) for ids in texts], device=device)
