"""Tokenisers from Hugging Face directories give the ids that transformers gives."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import CHATML, TEXTS, byte_level, smollm_cut
from tokenizers import processors
from transformers import AutoTokenizer

from triforce.errors import ModelError, PromptError
from triforce.text import load_tokenizer

SaveDirectory = Callable[..., Path]
ENDS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


def assert_same(directory: Path) -> None:
    ours, theirs = load_tokenizer(directory), AutoTokenizer.from_pretrained(directory)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids, skip_special=False) == theirs.decode(ids)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
    assert ours.vocabulary() == theirs.get_vocab()
    assert (ours.bos_token, ours.eos_token) == (theirs.bos_token, theirs.eos_token)


@pytest.mark.parametrize("cut", [None, smollm_cut()], ids=["gpt2", "smollm"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        ENDS,
        {**ENDS, "add_bos_token": True},
        {"bos_token": {"content": "<s>", "__type": "AddedToken"}, "eos_token": "</s>"},
        {**ENDS, "added_tokens_decoder": {"600": {"content": "<think>", "special": False, "normalized": False}}},
        {**ENDS, "additional_special_tokens": ["<tool>", "<|im_end|>"]},
    ],
    ids=["bare", "ends", "bos flag", "new tokens", "added tokens", "additional"],
)
def test_ids_and_text_equal_those_of_transformers(
    save_directory: SaveDirectory, cut: Any, config: dict[str, Any]
) -> None:
    assert_same(save_directory(byte_level(cut), **config))


def test_bos_of_the_post_processor_is_kept_when_the_settings_are_silent(save_directory: SaveDirectory) -> None:
    backend = byte_level()
    backend.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    directory = save_directory(backend, **ENDS)
    assert_same(directory)
    assert load_tokenizer(directory).encode("")[0] == 1
    assert load_tokenizer(directory).encode("", add_special_tokens=False) == []


def test_truncation_and_padding_saved_in_the_file_do_not_shorten_a_prompt(save_directory: SaveDirectory) -> None:
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    tokenizer = load_tokenizer(save_directory(backend, **ENDS))
    text = "The quick brown fox jumps over the lazy dog"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ends_come_from_the_special_tokens_map_when_the_settings_lack_them(save_directory: SaveDirectory) -> None:
    directory = save_directory(byte_level(), files={"special_tokens_map.json": json.dumps(ENDS)})
    assert_same(directory)
    assert load_tokenizer(directory).eos_token == "<|im_end|>"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, (2,)),
        ({"config.json": '{"eos_token_id": 0}'}, (2, 0)),
        ({"config.json": '{"eos_token_id": 0}', "generation_config.json": '{"eos_token_id": [2, 5]}'}, (2, 5)),
    ],
)
def test_generation_settings_add_their_ends(
    save_directory: SaveDirectory, files: dict[str, str], expected: tuple[int, ...]
) -> None:
    assert load_tokenizer(save_directory(byte_level(), files=files, **ENDS)).eos_token_ids == expected


@pytest.mark.parametrize(
    ("files", "config", "expected"),
    [
        ({}, {}, None),
        ({}, {"chat_template": CHATML}, CHATML),
        ({}, {"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}, "d"),
        ({"chat_template.jinja": "from the file"}, {"chat_template": "from the settings"}, "from the file"),
    ],
)
def test_chat_template_is_found_where_transformers_finds_it(
    save_directory: SaveDirectory, files: dict[str, str], config: dict[str, Any], expected: str | None
) -> None:
    directory = save_directory(byte_level(), files=files, **ENDS, **config)
    assert load_tokenizer(directory).chat_template == expected
    theirs = AutoTokenizer.from_pretrained(directory)
    if expected is not None:
        assert theirs.get_chat_template() == expected


def test_lone_surrogate_is_a_prompt_error(save_directory: SaveDirectory) -> None:
    tokenizer = load_tokenizer(save_directory(byte_level()))
    with pytest.raises(PromptError, match="lone surrogate at character 2"):
        tokenizer.encode("ab\ud800")


def test_ids_outside_the_vocabulary_decode_to_nothing(save_directory: SaveDirectory) -> None:
    tokenizer = load_tokenizer(save_directory(byte_level()))
    assert tokenizer.decode([*tokenizer.encode("dog"), 10**6, -1]) == "dog"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer.json", "{", "cannot be read"),
        ("tokenizer_config.json", "{", "damaged"),
    ],
)
def test_missing_or_damaged_files_are_one_clear_line(
    save_directory: SaveDirectory, name: str, content: str | None, message: str
) -> None:
    directory = save_directory(byte_level())
    if content is None:
        (directory / name).unlink()
    else:
        (directory / name).write_text(content)
    with pytest.raises(ModelError, match=message) as caught:
        load_tokenizer(directory)
    assert "\n" not in str(caught.value)


def test_missing_path_is_a_model_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file or directory"):
        load_tokenizer(tmp_path / "nowhere")


def test_importing_text_and_pull_loads_nothing_heavy() -> None:
    heavy = "{'torch', 'transformers', 'huggingface_hub', 'numpy'}"
    code = f"import sys, triforce.text, triforce.pull; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
