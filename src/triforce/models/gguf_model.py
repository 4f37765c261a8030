"""Loads a model from a GGUF file: its metadata as a `ModelConfig`, its matrices as filed or dequantised."""

from __future__ import annotations

import torch
from torch import Tensor

from triforce.errors import ModelError
from triforce.models.config import ModelConfig, RopeScaling
from triforce.models.decoder import Decoder
from triforce.models.entries import Entries
from triforce.models.family import GGUF_NAMES, Family
from triforce.models.gguf_file import GgufFile
from triforce.models.matrix import Filed
from triforce.models.registry import FAMILIES
from triforce.models.weights import Placement, gather

END_KEYS = tuple(f"tokenizer.ggml.{role}_token_id" for role in ("eos", "eot", "eom"))
DIVISORS = "rope_freqs.weight"


def load_gguf(file: GgufFile, placement: Placement, rope_scaling: RopeScaling | None = None) -> Decoder:
    """The model in `file`. Raises `ModelError` when anything in it is missing, damaged or not supported."""
    config, family = config_from_gguf(file)
    if rope_scaling is not None:
        config = config.with_rope_scaling(rope_scaling)
    return Decoder(config, gather(config, GgufSource(file, config, family), placement))


def config_from_gguf(file: GgufFile) -> tuple[ModelConfig, Family]:
    """The architecture described in the metadata. Raises `ModelError`."""
    family = _family(file)
    entries = _architecture_entries(file)
    if entries.raw("expert_count", 0):
        raise entries.error("a mixture of experts is not supported", "use a dense model")
    num_heads, hidden_size = entries.integer("attention.head_count"), entries.integer("embedding_length")
    num_kv_heads = entries.integer("attention.head_count_kv", num_heads)
    head_dim = entries.integer("attention.key_length", hidden_size // num_heads)
    rotary, v_dim = (
        entries.integer("rope.dimension_count", head_dim),
        entries.integer("attention.value_length", head_dim),
    )
    if num_heads % num_kv_heads or head_dim % 2 or head_dim != rotary or head_dim != v_dim:
        shape = (
            f"{num_heads} heads, {num_kv_heads} KV heads of dimension {head_dim}, {rotary} rotated, {v_dim} of values"
        )
        raise entries.error(f"{shape} do not fit together", "use a model that rotates whole heads")
    original, longest, scaling = _rope(entries, file)
    names = set(file.tensor_names)
    return ModelConfig(
        family=family.name,
        vocab_size=file.shape("token_embd.weight")[0],
        hidden_size=hidden_size,
        intermediate_size=entries.integer("feed_forward_length"),
        num_layers=entries.integer("block_count"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=entries.number("attention.layer_norm_rms_epsilon"),
        rope_theta=entries.number("rope.freq_base", 10000.0),
        rope_scaling=scaling,
        max_position=longest,
        original_max_position=original,
        tied_embeddings="output.weight" not in names,
        qkv_bias="blk.0.attn_q.bias" in names,
        output_bias="blk.0.attn_output.bias" in names,
        mlp_bias="blk.0.ffn_gate.bias" in names,
        qk_norm=family.qk_norm,
        sliding_window=entries.optional_integer("attention.sliding_window"),
        eos_token_ids=_eos_token_ids(file),
    ), family


class GgufSource:
    """The tensors of a GGUF file under GGUF's names, with the row order of Hugging Face's layout."""

    names = GGUF_NAMES

    def __init__(self, file: GgufFile, config: ModelConfig, family: Family) -> None:
        self._file = file
        self._config = config
        self._interleaved = family.interleaved_in_gguf

    def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Tensor `name` in `dtype`, on the CPU. Raises `ModelError`."""
        self._check(name, shape)
        return self._ordered(name, self._file.dequantised(name, dtype))

    def read_filed(self, name: str, shape: tuple[int, ...]) -> Filed:
        """The blocks of matrix `name`, rows in order. Raises `ModelError`."""
        self._check(name, shape)
        rows, kind = self._file.blocks(name)
        return Filed(self._ordered(name, rows), kind)

    def _check(self, name: str, shape: tuple[int, ...]) -> None:
        found = self._file.shape(name)
        if found != shape:
            problem = f"tensor {name} has shape {list(found)}, the metadata asks for {list(shape)}"
            raise ModelError(f"{self._file.path}: {problem}; download the GGUF file again")

    def _ordered(self, name: str, rows: Tensor) -> Tensor:
        if self._interleaved and name.rpartition(".")[0].endswith((".attn_q", ".attn_k")):
            return halves_from_pairs(rows, self._config.head_dim)
        return rows


def halves_from_pairs(rows: Tensor, head_dim: int) -> Tensor:
    """Undo llama.cpp's order of the rows [heads * head_dim, ...] of q and k, which pairs what RoPE rotates together."""
    pairs = rows.view(-1, head_dim // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)


def _family(file: GgufFile) -> Family:
    architecture = file.get("general.architecture")
    for family in FAMILIES:
        if family.gguf_architecture is not None and family.gguf_architecture == architecture:
            return family
    known = ", ".join(family.gguf_architecture for family in FAMILIES if family.gguf_architecture)
    raise ModelError(f"{file.path}: architecture {architecture!r:.80} is not supported; use a model of type {known}")


def _architecture_entries(file: GgufFile) -> Entries:
    """The entries under the architecture's prefix; a list of equal numbers, one per layer, reads as one number."""
    prefix = f"{file.get('general.architecture')}."
    values = {key.removeprefix(prefix): file.get(key) for key in file.keys if key.startswith(prefix)}
    for key, value in values.items():
        if isinstance(value, list) and value and value.count(value[0]) == len(value):
            values[key] = value[0]
    return Entries(values, file.path)


def _eos_token_ids(file: GgufFile) -> tuple[int, ...]:
    entries = Entries({key: file.get(key) for key in END_KEYS}, file.path)
    return tuple(dict.fromkeys(token for key in END_KEYS for token in entries.ids(key)))


def _rope(entries: Entries, file: GgufFile) -> tuple[int, int, RopeScaling | None]:
    """Original context, longest context and scaling."""
    longest = entries.integer("context_length")
    kind = entries.raw("rope.scaling.type", "none")
    factor = entries.number("rope.scaling.factor", 1.0)
    if DIVISORS in file.tensor_names:
        divisors = file.dequantised(DIVISORS, torch.float64)
        return longest, longest, RopeScaling("divisors", divisors=tuple(divisors.tolist()))
    if kind == "none" or factor == 1.0:
        return longest, longest, None
    original = entries.integer("rope.scaling.original_context_length", longest)
    if kind == "linear":
        return original, max(longest, int(original * factor)), RopeScaling("linear", factor)
    if kind == "yarn":
        return original, max(longest, int(original * factor)), _yarn(entries, factor)
    raise entries.error(f"RoPE scaling {kind!r} is not supported", "use a model with linear, yarn or no scaling")


def _yarn(entries: Entries, factor: float) -> RopeScaling:
    return RopeScaling(
        "yarn",
        factor,
        beta_fast=entries.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=entries.number("rope.scaling.yarn_beta_slow", 1.0),
    )
