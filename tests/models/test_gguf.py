"""GGUF: values of every supported block type, metadata, and models whose logits survive the conversion."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from plain_cache import logits_of
from tiny_models import paired_rows, random_tokens, reference_logits, tiny_model, write_gguf

from triforce.models import build_rope, load_model
from triforce.models.gguf_file import SUPPORTED_TYPES, GgufFile
from triforce.models.gguf_model import halves_from_pairs

QUANTISED = [name for name in SUPPORTED_TYPES if name not in ("F32", "F16", "BF16")]
HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2]}  # where a block's float16 scales are
HALVES |= {"Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def random_blocks(name: str, shape: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """Blocks of random bits with finite scales: [rows, bytes]."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    rng = np.random.default_rng(7)
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // block, size), dtype=np.uint8)
    for at in HALVES[name]:
        blocks[:, at : at + 2] = rng.normal(size=(len(blocks), 1)).astype(np.float16).view(np.uint8)
    return blocks.reshape(shape[0], -1)


def write_tensors(path: Path, tensors: dict[str, tuple[npt.NDArray[Any], str]], **metadata: Any) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    add = {str: writer.add_string, int: writer.add_uint64, float: writer.add_float64, bool: writer.add_bool}
    for key, value in metadata.items():
        add.get(type(value), writer.add_array)(key, value)
    for name, (values, kind) in tensors.items():
        writer.add_tensor(name, values, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("rows", [3, 1200])  # 1200 x 512 values are more than one thread's share
def test_blocks_of_every_type_decode_to_the_reference_values(name: str, rows: int, tmp_path: Path) -> None:
    blocks = random_blocks(name, (rows, 512))
    file = GgufFile(write_tensors(tmp_path / "model.gguf", {"x": (blocks, name)}))
    expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[name])
    assert file.shape("x") == (rows, 512)
    assert torch.equal(file.dequantised("x", torch.float32), torch.from_numpy(expected))
    assert torch.equal(file.dequantised("x", torch.bfloat16), torch.from_numpy(expected).bfloat16())


def test_a_known_q4_0_block_decodes_by_hand(tmp_path: Path) -> None:
    block = np.concatenate((np.array([0.5], np.float16).view(np.uint8), np.arange(16, dtype=np.uint8) * 17))
    file = GgufFile(write_tensors(tmp_path / "model.gguf", {"x": (block[None], "Q4_0")}))
    nibbles = torch.arange(16).repeat(2)  # low nibbles are the first half, high ones the second; here they are equal
    assert torch.equal(file.dequantised("x", torch.float32), ((nibbles - 8) * 0.5)[None])


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_unquantised_tensors_keep_their_values(dtype: type[np.floating[Any]], tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=(5, 7)).astype(dtype)
    kind = {np.float32: "F32", np.float16: "F16"}[dtype]  # type: ignore[index]
    file = GgufFile(write_tensors(tmp_path / "model.gguf", {"x": (values, kind), "y": (values[0], kind)}))
    assert torch.equal(file.dequantised("x", torch.float32), torch.from_numpy(values).float())
    assert torch.equal(file.dequantised("y", torch.float32), torch.from_numpy(values[0]).float())


def test_bfloat16_tensors_keep_their_values(tmp_path: Path) -> None:
    values = torch.randn(5, 8).bfloat16()
    raw = values.view(torch.int16).numpy().view(np.uint8)
    file = GgufFile(write_tensors(tmp_path / "model.gguf", {"x": (raw, "BF16")}))
    assert torch.equal(file.dequantised("x", torch.bfloat16), values)


def test_metadata_reads_back_as_python_values(tmp_path: Path) -> None:
    metadata: dict[str, Any] = {
        "a": "Ġword",
        "b": 7,
        "c": 0.5,
        "d": True,
        "e": ["", "ä", "x y"],
        "f": [1, -2],
        "g": [0.25],
    }
    file = GgufFile(write_tensors(tmp_path / "model.gguf", {}, **metadata))
    assert {key: file.get(key) for key in metadata} == metadata
    assert file.get("absent") is None
    assert file.get("absent", 3) == 3
    assert file.tensor_names == []


def test_a_vocabulary_of_150_000_tokens_is_read_within_a_second(tmp_path: Path) -> None:
    tokens = [f"token{i}" for i in range(150_000)]
    path = write_tensors(tmp_path / "model.gguf", {}, **{"tokenizer.ggml.tokens": tokens})
    start = time.process_time()
    assert GgufFile(path).get("tokenizer.ggml.tokens") == tokens
    assert time.process_time() - start < 1.0


def test_the_row_order_of_llama_cpp_is_undone() -> None:
    rows = torch.randn(4 * 6, 5)
    paired = paired_rows(rows, num_heads=4)
    assert not torch.equal(paired, rows)
    assert torch.equal(halves_from_pairs(paired, head_dim=6), rows)
    assert torch.equal(halves_from_pairs(paired[:, 0], head_dim=6), rows[:, 0])


MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"head_dim": 12}),
    "llama, biases": ("llama", {"attention_bias": True}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
}


@pytest.mark.parametrize("case", MODELS)
def test_a_converted_model_computes_what_transformers_computes(case: str, tmp_path: Path) -> None:
    model, tokens = tiny_model(*MODELS[case]), random_tokens(20)
    decoder = load_model(write_gguf(model, tmp_path / "model.gguf"), device="cpu")
    torch.testing.assert_close(logits_of(decoder, tokens), reference_logits(model, tokens), rtol=1e-4, atol=1e-4)
    assert decoder.config.eos_token_ids == (2,)
    assert decoder.config.tied_embeddings == model.config.tie_word_embeddings


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_scaling_in_the_metadata_is_that_of_transformers(kind: str, tmp_path: Path) -> None:
    model = tiny_model("llama", {"rope_parameters": {"rope_theta": 5000.0, "rope_type": kind, "factor": 2.0}})
    scaling = {"rope.scaling.type": kind, "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 64}
    decoder = load_model(write_gguf(model, tmp_path / "model.gguf", **scaling), device="cpu")
    tokens = random_tokens(100)
    torch.testing.assert_close(logits_of(decoder, tokens), reference_logits(model, tokens), rtol=1e-3, atol=1e-3)
    assert (decoder.config.original_max_position, decoder.config.max_position) == (64, 128)


def test_the_frequency_divisors_of_llama3_are_honoured(tmp_path: Path) -> None:
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope = {"rope_theta": 5000.0, "original_max_position_embeddings": 32, **llama3}
    model = tiny_model("llama", {"rope_parameters": rope, "head_dim": 16})
    plain = 5000.0 ** -(np.arange(0, 16, 2) / 16)
    divisors = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    decoder = load_model(write_gguf(model, tmp_path / "model.gguf", {"rope_freqs.weight": divisors}), device="cpu")
    tokens = random_tokens(60)
    torch.testing.assert_close(logits_of(decoder, tokens), reference_logits(model, tokens), rtol=1e-3, atol=1e-3)
    assert build_rope(decoder.config).scale == 1.0


def test_equal_sizes_listed_per_layer_read_as_one(tmp_path: Path) -> None:
    path = write_gguf(tiny_model("llama"), tmp_path / "model.gguf", **{"attention.head_count_kv": [2, 2]})
    assert load_model(path, device="cpu").config.num_kv_heads == 2
