"""`TriForceModel` takes transformers' own objects and returns what transformers' `generate` returns."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from calls import CASES, END, PROMPT, NeverLongerThan, new_tokenizer
from torch import Tensor
from transformers import (
    GenerationConfig,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TextIteratorStreamer,
    TextStreamer,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

import triforce
from triforce.errors import UsageError
from triforce.generation_config import GenerationFields, explicit_fields, merged, sampling_params
from triforce.sampling import Sampler

LONGER = "Call me Ishmael. " * 9
pytestmark = pytest.mark.filterwarnings("ignore:Using the model-agnostic default")


@pytest.mark.parametrize("case", CASES)
def test_greedy_output_is_that_of_transformers(
    model: triforce.TriForceModel, reference: Any, tokenizer: Any, inputs: dict[str, Tensor], case: str
) -> None:
    free = reference.generate(**inputs, max_new_tokens=40, eos_token_id=None)[0, inputs["input_ids"].shape[1] :]
    settings = CASES[case]
    expected = reference.generate(**inputs, **settings(free, tokenizer))
    ours = model.generate(**inputs, **settings(free, tokenizer))
    assert ours.dtype == torch.long
    assert ours.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "case", ["max_new_tokens", "max_length", "several end ids", "an own criterion", "several controls"]
)
def test_a_batch_is_padded_as_transformers_pads_it(
    model: triforce.TriForceModel, reference: Any, tokenizer: Any, case: str
) -> None:
    batch = tokenizer([PROMPT[:40], LONGER[:90], PROMPT[:7]], return_tensors="pt", padding=True)
    free = reference.generate(**batch, max_new_tokens=40, eos_token_id=None)[0, 90:]
    settings = CASES[case]
    assert model.generate(**batch, **settings(free, tokenizer)).tolist() == (
        reference.generate(**batch, **settings(free, tokenizer)).tolist()
    )


def test_without_a_mask_the_pad_token_is_known(model: triforce.TriForceModel, reference: Any, tokenizer: Any) -> None:
    ids = tokenizer([PROMPT[:40], LONGER[:90]], return_tensors="pt", padding=True).input_ids
    ours = model.generate(ids, max_new_tokens=9)
    assert ours.tolist() == reference.generate(ids, max_new_tokens=9).tolist()


def test_criteria_see_every_length_in_order(model: triforce.TriForceModel, inputs: dict[str, Tensor]) -> None:
    criterion = NeverLongerThan(10_000)
    start = inputs["input_ids"].shape[1]
    model.generate(**inputs, max_new_tokens=30, eos_token_id=None, stopping_criteria=[criterion])
    assert criterion.seen == list(range(start + 1, start + 31))


@pytest.mark.parametrize("skip_prompt", [False, True])
def test_a_text_streamer_prints_what_it_prints_in_transformers(
    model: triforce.TriForceModel,
    reference: Any,
    tokenizer: Any,
    inputs: dict[str, Tensor],
    capsys: pytest.CaptureFixture[str],
    skip_prompt: bool,
) -> None:
    for who in (reference, model):
        who.generate(**inputs, max_new_tokens=30, streamer=TextStreamer(tokenizer, skip_prompt))
    first, second = capsys.readouterr().out.removesuffix("\n").split("\n") if skip_prompt else _halves(capsys)
    assert first == second != ""


def _halves(capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    out = capsys.readouterr().out
    return out[: len(out) // 2], out[len(out) // 2 :]


def test_an_iterating_streamer_is_read_in_another_thread(
    model: triforce.TriForceModel, tokenizer: Any, inputs: dict[str, Tensor]
) -> None:
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=20)
    arguments = {**inputs, "streamer": streamer, "max_new_tokens": 30}
    thread = threading.Thread(target=model.generate, kwargs=arguments)
    thread.start()
    text = "".join(streamer)
    thread.join(20)
    ours = model.generate(**inputs, max_new_tokens=30)
    assert text == tokenizer.decode(ours[0, inputs["input_ids"].shape[1] :])


def test_a_streamer_is_ended_by_an_error_too(
    model: triforce.TriForceModel, tokenizer: Any, inputs: dict[str, Tensor]
) -> None:
    def broken(*_: Any) -> bool:
        raise ZeroDivisionError

    streamer = TextIteratorStreamer(tokenizer, timeout=1)
    with pytest.raises(ZeroDivisionError):
        model.generate(**inputs, max_new_tokens=30, streamer=streamer, stopping_criteria=[broken])
    assert "".join(streamer).startswith(PROMPT[:20])


def test_sampling_is_repeated_by_torchs_seed_and_by_ours(
    model: triforce.TriForceModel, inputs: dict[str, Tensor]
) -> None:
    def drawn(**settings: Any) -> list[list[int]]:
        ids: list[list[int]] = model.generate(**inputs, do_sample=True, max_new_tokens=20, **settings).tolist()
        return ids

    torch.manual_seed(1)
    first, second = drawn(), drawn()
    torch.manual_seed(1)
    assert drawn() == first != second
    assert drawn(seed=3) == drawn(seed=3) != first


@pytest.mark.parametrize(
    ("settings", "warpers"),
    [
        ({}, [TopKLogitsWarper(50)]),
        ({"temperature": 0.5, "top_k": 0}, [TemperatureLogitsWarper(0.5)]),
        (
            {"temperature": 1.7, "top_k": 7, "top_p": 0.8},
            [TemperatureLogitsWarper(1.7), TopKLogitsWarper(7), TopPLogitsWarper(0.8)],
        ),
        ({"top_p": 0.6}, [TopKLogitsWarper(50), TopPLogitsWarper(0.6)]),
        ({"min_p": 0.1, "top_k": 0, "temperature": 1.3}, [TemperatureLogitsWarper(1.3), MinPLogitsWarper(0.1)]),
        ({"typical_p": 0.7}, [TopKLogitsWarper(50), TypicalLogitsWarper(0.7)]),
    ],
)  # fmt: skip
def test_the_law_that_is_drawn_from_is_that_of_transformers(settings: dict[str, Any], warpers: list[Any]) -> None:
    logits = 3 * torch.randn(20, 258, generator=torch.Generator().manual_seed(0))
    config = GenerationConfig(do_sample=True, **settings)
    sampler = Sampler(sampling_params(merged({}, explicit_fields(config)), 1, None))
    expected = logits.clone()
    for warper in warpers:
        expected = warper(torch.zeros(20, 1, dtype=torch.long), expected)
    torch.testing.assert_close(sampler.laws(logits, np.zeros(len(logits), dtype=np.int32)), expected.softmax(-1))


def test_several_sequences_per_row_are_those_of_their_own_seeds(model: triforce.TriForceModel, tokenizer: Any) -> None:
    batch = tokenizer([PROMPT[:40], LONGER[:90]], return_tensors="pt", padding=True)
    settings = {"do_sample": True, "max_new_tokens": 12, "eos_token_id": None}
    many = model.generate(**batch, **settings, num_return_sequences=3, seed=10)
    assert many.shape == (6, 102)
    assert len({tuple(row) for row in many.tolist()}) == 6
    for row in range(2):
        one = {name: value[row : row + 1] for name, value in batch.items()}
        for i in range(3):
            alone = model.generate(**one, **settings, seed=10 + 3 * row + i)
            assert alone[0].tolist() == many[3 * row + i].tolist()


def test_the_models_own_generation_config_is_where_calls_start(
    directory: Path, tmp_path: Path, inputs: dict[str, Tensor]
) -> None:
    for file in directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    GenerationConfig(max_new_tokens=6, eos_token_id=END, do_sample=True, top_k=1).save_pretrained(tmp_path)
    model = triforce.TriForceModel.from_pretrained(str(tmp_path), dtype="float32")
    start = inputs["input_ids"].shape[1]
    assert model.generate(**inputs).shape == (1, start + 6)
    assert model.generate(**inputs, max_new_tokens=4, do_sample=False).shape == (1, start + 4)
    assert model.generate(**inputs, generation_config=GenerationConfig(max_new_tokens=3)).shape == (1, start + 3)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"num_beams": 4}, "num_beams is 4, which .* does not honour: use 1, or draw several texts with num_return"),
        ({"generation_config": GenerationConfig(num_beams=2)}, "num_beams is 2, which"),
        ({"generation_config": GenerationConfig(guidance_scale=1.5)}, "guidance_scale is 1.5, which"),
        ({"generation_config": GenerationConfig(epsilon_cutoff=0.1)}, "epsilon_cutoff is 0.1, which"),
        ({"typical_p": 0.5}, "typical_p is 0.5, but nothing is drawn: add do_sample=True"),
        ({"min_new_tokens": 30, "max_new_tokens": 9}, "min_new_tokens is 30, more than max_new_tokens 9: lower it"),
        ({"generation_config": 3}, "generation_config is a int: give transformers' GenerationConfig"),
        ({"assistant_model": object()}, "assistant_model is .*: give from_pretrained a draft="),
        ({"return_dict_in_generate": True}, "return_dict_in_generate is True, which .* use model.engine.generate"),
        ({"use_cache": False}, "use_cache is False, which"),
        ({"position_ids": torch.zeros(1, 4)}, "position_ids is tensor.*: leave it out"),
        ({"temperature": 0.7}, "temperature is 0.7, but nothing is drawn: add do_sample=True"),
        ({"generation_config": GenerationConfig(top_p=0.5)}, "top_p is 0.5, but nothing is drawn: add do_sample=True"),
        ({"do_sample": True, "top_p": 1.5}, "top_p is 1.5: use at most 1"),
        ({"do_sample": "yes"}, "do_sample is 'yes': use True or False"),
        ({"max_length": 5}, "max_length is 5, and the prompt has 106 tokens: use max_new_tokens"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0: use at least 1"),
        ({"num_return_sequences": 0}, "num_return_sequences is 0: use at least 1"),
        ({"num_return_sequences": "2", "seed": 1}, "num_return_sequences is '2': use a whole number"),
        ({"min_length": 300, "max_new_tokens": 9}, "min_length is 300, but the text has at most 115 tokens: lower it"),
        ({"min_length": 1.5}, "min_length is 1.5: use a whole number"),
        ({"sequence_bias": {(1, 2): 3.0}}, r"sequence_bias has \(1, 2\), .*SequenceBiasLogitsProcessor in"),
        ({"sequence_bias": {1: 3.0}}, r"sequence_bias has \(1, 3.0\): map sequences of ids to numbers"),
        ({"sequence_bias": 3}, "sequence_bias is 3: use a list"),
        ({"decoding": {"method": "ar"}}, r"decoding is .*: give triforce.Decoding"),
        ({"attention_mask": torch.ones(1, 3)}, r"have shapes \[1, 3\] and \[1, 106\]: give them the same"),
        ({"attention_mask": (torch.arange(106) < 9)[None]}, "attention_mask is 0 behind a 1: pad on the left"),
        ({"token_type_ids": torch.ones(1, 106)}, "token_type_ids are not all 0"),
        ({"num_return_sequences": 2, "streamer": TextStreamer(new_tokenizer())}, "a streamer shows one text"),
        ({"input_ids": [1, 2, 3]}, r"input_ids are no integer tensor \[batch, length\]: use return_tensors"),
        ({"input_ids": torch.ones(1, 3)}, "input_ids are no integer tensor"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_by_name_in_one_line(
    model: triforce.TriForceModel, inputs: dict[str, Tensor], settings: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UsageError, match=expected) as caught:
        model.generate(**{"input_ids": inputs["input_ids"], **settings})
    assert "\n" not in str(caught.value)


def test_every_field_of_a_config_is_honoured_or_refused() -> None:
    """A field that transformers adds later is refused as long as we do not know it."""
    assert merged({}, explicit_fields(GenerationConfig())) == {}
    names = [name for name in vars(GenerationConfig()) if not name.startswith("_")]
    honoured = [*GenerationFields.__annotations__, "bos_token_id", "transformers_version"]
    for name in {*names, "a_field_of_tomorrow"} - set(honoured):
        config = GenerationConfig()
        setattr(config, name, "odd")
        with pytest.raises(UsageError, match=f"^{name} is 'odd', which TriForceModel.generate does not honour: "):
            merged({}, explicit_fields(config))
