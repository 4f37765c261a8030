"""Reads a `ModelConfig` from config.json and generation_config.json, in the layouts of transformers 4 and 5."""

from __future__ import annotations

from pathlib import Path

from triforce.models.config import ModelConfig, RopeScaling
from triforce.models.entries import Entries, read_json
from triforce.models.family import Family, Switch
from triforce.models.registry import FAMILIES


def config_from_directory(directory: Path) -> tuple[ModelConfig, Family]:
    """The architecture described in `directory`. Raises `ModelError` when it is absent, damaged or not supported."""
    entries = read_json(directory / "config.json")
    family = _family(entries)
    _refuse_unsupported(entries)
    num_heads = entries.integer("num_attention_heads")
    hidden_size = entries.integer("hidden_size")
    num_kv_heads = entries.integer("num_key_value_heads", family.defaults.get("num_key_value_heads", num_heads))
    head_dim = entries.integer("head_dim", family.defaults.get("head_dim", hidden_size // num_heads))
    if num_heads % num_kv_heads or head_dim % 2:
        shape = f"{num_heads} heads, {num_kv_heads} KV heads of dimension {head_dim}"
        raise entries.error(f"{shape} do not fit together", "correct it")
    original, longest, theta, scaling = _rope(entries, family)
    return ModelConfig(
        family=family.name,
        vocab_size=entries.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=entries.integer("intermediate_size"),
        num_layers=entries.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        norm_eps=entries.number("rms_norm_eps", 1e-6),
        rope_theta=theta,
        rope_scaling=scaling,
        max_position=longest,
        original_max_position=original,
        tied_embeddings=entries.flag("tie_word_embeddings"),
        qkv_bias=_switch(entries, family.qkv_bias),
        output_bias=_switch(entries, family.output_bias),
        mlp_bias=_switch(entries, family.mlp_bias),
        qk_norm=family.qk_norm,
        sliding_window=_sliding_window(entries, family),
        eos_token_ids=_eos_token_ids(entries, directory),
    ), family


def _family(entries: Entries) -> Family:
    name = entries.raw("model_type")
    for family in FAMILIES:
        if family.name == name:
            return family
    known = ", ".join(family.name for family in FAMILIES)
    raise entries.error(f"model_type {name!r} is not supported", f"use a model of type {known}")


def _refuse_unsupported(entries: Entries) -> None:
    activation = entries.raw("hidden_act", "silu")
    if activation != "silu":
        raise entries.error(f"hidden_act {activation!r} is not supported", "use a model with silu")
    if entries.raw("quantization_config") is not None:
        method = entries.section("quantization_config").raw("quant_method", "unknown")
        remedy = "use the unquantised checkpoint or a GGUF file"
        raise entries.error(f"weights quantised by {method} are not supported", remedy)


def _switch(entries: Entries, switch: Switch) -> bool:
    return entries.flag(switch) if isinstance(switch, str) else switch


def _sliding_window(entries: Entries, family: Family) -> int | None:
    if family.slides:
        if "sliding_window" in entries:
            return entries.optional_integer("sliding_window")
        return family.defaults.get("sliding_window")
    if entries.flag("use_sliding_window") or "sliding_attention" in str(entries.raw("layer_types")):
        raise entries.error(
            "sliding windows in some layers are not supported", "use a model with use_sliding_window false"
        )
    return None


def _eos_token_ids(entries: Entries, directory: Path) -> tuple[int, ...]:
    """Those of generation_config.json, then those of config.json: chat models often list more in the former."""
    path = directory / "generation_config.json"
    listed = read_json(path).ids("eos_token_id") if path.exists() else ()
    return tuple(dict.fromkeys(listed + entries.ids("eos_token_id")))


def _rope(entries: Entries, family: Family) -> tuple[int, int, float, RopeScaling | None]:
    """Original context, longest context, base and scaling."""
    rope = entries.section("rope_scaling" if entries.raw("rope_scaling") else "rope_parameters")
    longest = entries.integer("max_position_embeddings", family.defaults["max_position_embeddings"])
    theta = rope.optional_number("rope_theta") or entries.number("rope_theta", 10000.0)
    if rope.number("partial_rotary_factor", entries.number("partial_rotary_factor", 1.0)) != 1.0:
        raise entries.error("partial rotary embedding is not supported", "use a model that rotates whole heads")
    if any(isinstance(rope.raw(key), dict) for key in rope):
        raise entries.error("RoPE that differs between layers is not supported", "use a model with one RoPE for all")
    kind = rope.raw("rope_type", rope.raw("type", "default"))
    if kind == "default":
        return longest, longest, theta, None
    if kind in ("linear", "dynamic"):
        factor = rope.number("factor")
        return longest, int(longest * factor), theta, RopeScaling(kind, factor)
    if kind not in ("llama3", "yarn"):
        known = "default, linear, dynamic, yarn, llama3"
        raise entries.error(f"RoPE scaling {kind!r} is not supported", f"use a model with one of {known}")
    original = entries.optional_integer("original_max_position_embeddings") or rope.integer(
        "original_max_position_embeddings", longest
    )
    factor = rope.number("factor", longest / original if kind == "yarn" else None)
    if kind == "llama3":
        return original, longest, theta, _llama3(rope, factor)
    return original, max(longest, int(original * factor)), theta, _yarn(rope, factor)


def _llama3(rope: Entries, factor: float) -> RopeScaling:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if low >= high:
        raise rope.error(f"low_freq_factor {low:g} is not below high_freq_factor {high:g}", "correct it")
    return RopeScaling("llama3", factor, low_freq_factor=low, high_freq_factor=high)


def _yarn(rope: Entries, factor: float) -> RopeScaling:
    return RopeScaling(
        "yarn",
        factor,
        attention_factor=rope.optional_number("attention_factor"),
        mscale=rope.optional_number("mscale"),
        mscale_all_dim=rope.optional_number("mscale_all_dim"),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
    )
