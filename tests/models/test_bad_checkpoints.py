"""Every kind of damaged or unsupported checkpoint ends in one clear line that names the file and the remedy."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from test_gguf import random_blocks, write_tensors
from tiny_models import saved, tiny_model, write_gguf

from triforce.errors import ModelError, UsageError
from triforce.models import load_model

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"


def message_of(path: str | Path, error: type[Exception] = ModelError, **options: str) -> str:
    with pytest.raises(error) as caught:
        load_model(path, device=options.pop("device", "cpu"), **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    assert "Error" not in message
    assert len(message) < 400
    return message


def configured(**changes: Any) -> Callable[[Path], None]:
    """Changes entries of config.json; None removes one."""

    def change(directory: Path) -> None:
        path = directory / "config.json"
        values = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))

    return change


def rewritten(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    """Changes the tensors of the weights."""

    def rewrite(directory: Path) -> None:
        tensors = {name: tensor.clone() for name, tensor in load_file(directory / WEIGHTS).items()}
        change(tensors)
        save_file(tensors, directory / WEIGHTS)

    return rewrite


def cut(name: str, keep: float) -> Callable[[Path], None]:
    def shorten(directory: Path) -> None:
        path = directory / name
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])

    return shorten


def wrote(name: str, content: bytes) -> Callable[[Path], None]:
    return lambda directory: (directory / name).write_bytes(content) and None


def renamed(old: str, new: str) -> Callable[[Path], None]:
    return lambda directory: (directory / old).rename(directory / new) and None


def indexed(weight_map: Any) -> Callable[[Path], None]:
    def index(directory: Path) -> None:
        (directory / WEIGHTS).rename(directory / "part.safetensors")
        (directory / INDEX).write_text(json.dumps({"weight_map": weight_map}))

    return index


EMBEDDING = "model.embed_tokens.weight"
BROKEN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no config": (lambda d: (d / "config.json").unlink(), r"config.json: no such file; give a complete"),
    "config not JSON": (wrote("config.json", b"{"), r"config.json: not valid JSON .*; download"),
    "config not text": (wrote("config.json", b"\xff\xfe\x00"), r"config.json: not valid JSON .*; download"),
    "config a list": (wrote("config.json", b"[1]"), r"config.json: not a JSON object; download"),
    "generation config not JSON": (wrote("generation_config.json", b"]"), r"generation_config.json: not valid JSON"),
    "other family": (
        configured(model_type="gpt2"),
        r"model_type 'gpt2' is not supported; use .* llama, mistral, qwen2",
    ),
    "no family": (configured(model_type=None), r"config.json: model_type None is not supported; use"),
    "other activation": (configured(hidden_act="gelu"), r"hidden_act 'gelu' is not supported; use"),
    "quantised": (configured(quantization_config={"quant_method": "gptq"}), r"quantised by gptq .*; use .* GGUF"),
    "unknown RoPE": (configured(rope_scaling={"rope_type": "longrope"}), r"RoPE scaling 'longrope' .*; use .* yarn"),
    "RoPE without factor": (configured(rope_scaling={"type": "linear"}), r"config.json: factor is missing; "),
    "RoPE by layer": (configured(rope_parameters={"full": {}}), r"RoPE that differs between layers .*; use"),
    "partial RoPE": (configured(partial_rotary_factor=0.5), r"partial rotary .*; use"),
    "windows in some layers": (configured(use_sliding_window=True), r"sliding windows in some .*; use .* false"),
    "size missing": (configured(hidden_size=None), r"config.json: hidden_size is missing; "),
    "size a word": (configured(num_hidden_layers="two"), r"num_hidden_layers is 'two', not a whole number from 1; "),
    "size zero": (configured(num_attention_heads=0), r"num_attention_heads is 0, not a whole number from 1; "),
    "heads that do not divide": (configured(num_key_value_heads=3), r"4 heads, 3 KV heads .* do not fit .*; "),
    "eos a word": (configured(eos_token_id="</s>"), r"eos_token_id is '</s>', not token ids; "),
    "flag a word": (configured(tie_word_embeddings="no"), r"tie_word_embeddings is 'no', neither true nor false; "),
    "vocabulary of another size": (
        configured(vocab_size=90),
        r"safetensors: tensor .* has shape \[96, 32\], .*\[90, 32\]; ",
    ),
    "no weights": (lambda d: (d / WEIGHTS).unlink(), r"neither model.safetensors nor .*; give a directory with"),
    "pickled weights": (
        renamed(WEIGHTS, "pytorch_model.bin"),
        r"pytorch_model.bin: pickled .* never loaded.*; save .* as safet",
    ),
    "weights cut short": (cut(WEIGHTS, 0.7), r"model.safetensors: damaged or cut short \(.*\); download"),
    "weights cut in the header": (cut(WEIGHTS, 0.01), r"model.safetensors: damaged or cut short \(.*\); download"),
    "weights empty": (wrote(WEIGHTS, b""), r"model.safetensors: damaged or cut short \(.*\); download"),
    "pointer for weights": (
        wrote(WEIGHTS, b"version https://git-lfs.github.com/spec/v1\n"),
        r"git-lfs pointer .*; fetch",
    ),
    "tensor missing": (rewritten(lambda t: t.pop(EMBEDDING)), r"model.safetensors: tensor model.embed_.* is missing; "),
    "tensor of integers": (
        rewritten(lambda t: t.update({EMBEDDING: t[EMBEDDING].int()})),
        r"has type I32, .*; use 16 or 32",
    ),
    "shard missing": (indexed({EMBEDDING: "gone.safetensors"}), r"gone.safetensors: no such file, though .*; download"),
    "tensor not indexed": (
        indexed({"x": "part.safetensors"}),
        r"index.json: tensor model.embed_.* is missing; download",
    ),
    "index without map": (indexed(None), r"index.json: weight_map does not name files .*; download"),
    "index out of the directory": (
        indexed({"x": "../part.safetensors"}),
        r"weight_map does not name files .*; download",
    ),
    "index map a list": (indexed(["x"]), r"index.json: weight_map is \['x'\], not an object; "),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_directory_gives_one_line(case: str, tmp_path: Path) -> None:
    spoil, expected = BROKEN[case]
    spoil(saved(tiny_model("qwen2"), tmp_path))
    assert_matches(expected, message_of(tmp_path), tmp_path)


def test_a_flag_that_only_qwen_has_does_not_trouble_mistral(tmp_path: Path) -> None:
    configured(sliding_window=5)(saved(tiny_model("mistral"), tmp_path))
    assert load_model(tmp_path, device="cpu").config.sliding_window == 5


def overwritten(at: int, content: bytes) -> Callable[[Path], None]:
    def overwrite(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at : at + len(content)] = content
        path.write_bytes(data)

    return overwrite


def shortened(keep: float) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)]) and None


BROKEN_GGUF: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.write_bytes(b""), r"cannot be read as GGUF \(.*\); check"),
    "another format": (overwritten(0, b"PK\x03\x04"), r"not a GGUF file; give a .gguf file or"),
    "old version": (overwritten(4, struct.pack("<I", 1)), r"GGUF version 1, versions 2 and 3 can be read; convert"),
    "other byte order": (overwritten(4, struct.pack(">I", 3)), r"GGUF version .*; convert"),
    "absurd counts": (overwritten(8, b"\xff" * 16), r"damaged or cut short \(.*\); download"),
    "absurd key length": (overwritten(24, b"\xff" * 8), r"damaged or cut short \(.*\); download"),
    "cut in the tensors": (shortened(0.9), r"damaged or cut short \(tensor .* ends at byte .*\); download"),
    "cut in the header": (shortened(0.02), r"damaged or cut short \(.*\); download"),
    "cut in the first bytes": (lambda path: path.write_bytes(b"GGUF\x03"), r"damaged or cut short \(.*\); download"),
}


@pytest.mark.parametrize("case", BROKEN_GGUF)
def test_a_broken_gguf_file_gives_one_line(case: str, tmp_path: Path) -> None:
    spoil, expected = BROKEN_GGUF[case]
    path = write_gguf(tiny_model("qwen2"), tmp_path / "model.gguf")
    spoil(path)
    assert_matches(expected, message_of(path), path)


def test_every_cut_of_a_gguf_header_is_noticed(tmp_path: Path) -> None:
    whole = write_gguf(tiny_model("qwen2"), tmp_path / "whole.gguf").read_bytes()
    path = tmp_path / "model.gguf"
    for length in range(1, 2000, 13):
        path.write_bytes(whole[:length])
        message_of(path)


METADATA: dict[str, tuple[dict[str, Any], str]] = {
    "size missing": ({"embedding_length": None}, r"embedding_length is missing; "),
    "size a word": ({"block_count": "two"}, r"block_count is 'two', not a whole number from 1; "),
    "another size": (
        {"feed_forward_length": 32},
        r"tensor blk.0.ffn_gate.weight has shape \[64, 32\], .* \[32, 32\]; ",
    ),
    "one layer too many": ({"block_count": 3}, r"tensor blk.2.* is missing; "),
    "layers that differ": ({"attention.head_count_kv": [2, 4]}, r"head_count_kv is \[2, 4\], not a whole number"),
    "experts": ({"expert_count": 8}, r"mixture of experts is not supported; use a dense"),
    "partial RoPE": ({"rope.dimension_count": 4}, r"4 rotated, .* do not fit together; use"),
    "unknown RoPE": ({"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, r"RoPE scaling 'longrope' .*; use"),
}


@pytest.mark.parametrize("case", METADATA)
def test_gguf_metadata_that_cannot_be_honoured_gives_one_line(case: str, tmp_path: Path) -> None:
    settings, expected = METADATA[case]
    path = write_gguf(tiny_model("qwen2"), tmp_path / "model.gguf", **settings)
    assert_matches(expected, message_of(path), path)


def test_an_unknown_gguf_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    assert_matches(r"architecture 'mamba' is not supported; use .* llama, qwen2, qwen3", message_of(path), path)


def test_an_unsupported_block_type_is_refused_by_name(tmp_path: Path) -> None:
    blocks = np.zeros((2, gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q2_K][1]), np.uint8)
    path = write_tensors(tmp_path / "model.gguf", {"blk.0.x": (blocks, "Q2_K")})
    assert_matches(r"tensor blk.0.x has type Q2_K, .* not supported; use one of F32, .* Q6_K", message_of(path), path)


def test_one_part_of_a_split_gguf_is_refused(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "a.gguf", {"x": (random_blocks("Q8_0", (2, 32)), "Q8_0")}, **{"split.count": 2})
    assert_matches(r"one part of several; join them", message_of(path), path)


def test_random_damage_to_a_gguf_header_never_shows_a_traceback(tmp_path: Path) -> None:
    whole = write_gguf(tiny_model("llama"), tmp_path / "whole.gguf").read_bytes()
    path, rng = tmp_path / "model.gguf", np.random.default_rng(3)
    messages = []
    for _ in range(200):
        data = bytearray(whole)
        data[rng.integers(2200)] = rng.integers(256)
        path.write_bytes(data)
        try:
            load_model(path, device="cpu")
        except ModelError as error:
            messages.append(str(error))
    assert len(messages) > 50
    assert all(message.isprintable() for message in messages)


@pytest.mark.parametrize("place", ["nowhere", "no/where", "model.gguf", "a/b/c", "org/name.gguf", "/no/model"])
def test_a_path_to_nothing_gives_one_line(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert_matches(r"no such file; check the path", message_of(place), place)


def test_a_file_that_is_no_gguf_gives_one_line(tmp_path: Path) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00{}      ")
    assert_matches(r"not a GGUF file; give a .gguf file or a directory", message_of(path), path)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"dtype": "int8"}, r"unknown dtype 'int8': use one of auto, float32, bfloat16, float16"),
        ({"device": "abacus"}, r"device 'abacus' is unknown: use auto, cpu, cuda"),
        ({"device": "cuda:99"}, r"device cuda:99 is not there .*: use auto or cpu"),
    ],
)
def test_an_unknown_dtype_or_device_gives_one_line(options: dict[str, str], expected: str, tmp_path: Path) -> None:
    assert_matches(expected, message_of(tmp_path, UsageError, **options), "")


def assert_matches(expected: str, message: str, path: str | Path) -> None:
    assert message.startswith(str(path)), message
    assert re.search(expected, message), message
