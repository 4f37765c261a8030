"""Scaled RoPE: the frequencies, and the logits past the original context, are those of transformers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_cache import logits_of
from tiny_models import random_tokens, reference_logits, saved, tiny_model

from triforce.errors import UsageError
from triforce.models import ModelConfig, RopeScaling, build_rope, load_model
from triforce.models.config_json import config_from_directory

SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 2.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    "yarn, own attention factor": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.9},
    "yarn, mscale": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.3},
    "yarn, exact bounds": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
}
PAST = 100  # tokens, past the 64 positions of the tiny models


@pytest.mark.parametrize("family", ["llama", "qwen3"])
@pytest.mark.parametrize("case", SCALINGS)
def test_logits_past_the_original_context_equal_those_of_transformers(case: str, family: str, tmp_path: Path) -> None:
    model = tiny_model(family, {"rope_parameters": {"rope_theta": 5000.0, **SCALINGS[case]}, "head_dim": 16})
    decoder = load_model(saved(model, tmp_path), device="cpu")
    tokens = random_tokens(PAST)
    found = logits_of(decoder, tokens, context_length=PAST)
    torch.testing.assert_close(found, reference_logits(model, tokens), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", SCALINGS)
def test_the_old_layout_of_config_json_reads_the_same(case: str, tmp_path: Path) -> None:
    import json

    model = tiny_model("llama", {"rope_parameters": {"rope_theta": 5000.0, **SCALINGS[case]}})
    new, _ = config_from_directory(saved(model, tmp_path))
    values = json.loads((tmp_path / "config.json").read_text())
    rope = values.pop("rope_parameters")
    values["rope_theta"] = rope.pop("rope_theta")
    rope["type"] = rope.pop("rope_type")
    values["rope_scaling"] = rope
    (tmp_path / "config.json").write_text(json.dumps(values))
    old, _ = config_from_directory(tmp_path)
    assert old == new
    assert old.rope_scaling is not None


def test_the_longest_context_grows_by_the_factor_except_for_llama3(tmp_path: Path) -> None:
    longest = {}
    for case in ("linear", "dynamic", "yarn", "llama3"):
        model = tiny_model("llama", {"rope_parameters": {"rope_theta": 5000.0, **SCALINGS[case]}})
        longest[case] = config_from_directory(saved(model, tmp_path / case))[0].max_position
    assert longest == {"linear": 128, "dynamic": 128, "yarn": 128, "llama3": 64}


def test_dynamic_scaling_leaves_short_contexts_alone_and_slows_down_long_ones() -> None:
    config = a_config().with_rope_scaling(RopeScaling.parse("dynamic:4"))
    plain = build_rope(a_config()).inv_freq
    assert torch.equal(build_rope(config, 32).inv_freq, plain)
    assert build_rope(config, 200).inv_freq[-1] < build_rope(config, 100).inv_freq[-1] < plain[-1]
    assert torch.equal(build_rope(config).inv_freq, build_rope(config, config.max_position).inv_freq)


def test_yarn_asked_for_on_the_command_line_stretches_an_unscaled_model(tmp_path: Path) -> None:
    directory = saved(tiny_model("llama"), tmp_path)
    decoder = load_model(directory, device="cpu", rope_scaling=RopeScaling.parse("yarn:2"))
    assert decoder.config.max_position == 128
    assert decoder.config.original_max_position == 64
    assert build_rope(decoder.config).scale == pytest.approx(0.1 * math.log(2.0) + 1.0)
    scaled = tiny_model("llama", {"rope_parameters": {"rope_theta": 5000.0, "rope_type": "yarn", "factor": 2.0}})
    tokens = random_tokens(PAST)
    torch.testing.assert_close(logits_of(decoder, tokens), reference_logits(scaled, tokens), rtol=1e-3, atol=1e-3)


def test_none_takes_a_scaling_away_and_another_kind_is_refused() -> None:
    scaled = a_config().with_rope_scaling(RopeScaling("llama3", 8.0))
    plain = scaled.with_rope_scaling(RopeScaling.parse("none"))
    assert (plain.rope_scaling, plain.max_position) == (None, 64)
    with pytest.raises(UsageError, match="yarn:2: the model has a llama3 scaling of its own, leave the option out"):
        scaled.with_rope_scaling(RopeScaling.parse("yarn:2"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "yarn",
        "yarn:",
        "yarn:x",
        "yarn:0.5",
        "yarn:inf",
        "yarn:nan",
        "yarn:1e9",
        "linear:64.5",
        "llama3:8",
        "none:2",
    ],
)
def test_a_malformed_scaling_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        RopeScaling.parse(text)
    assert "yarn:FACTOR with a factor from 1 to 64, or none" in str(caught.value)
    assert "\n" not in str(caught.value)


def a_config() -> ModelConfig:
    return ModelConfig(
        family="llama",
        vocab_size=96,
        hidden_size=32,
        intermediate_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        norm_eps=1e-6,
        rope_theta=5000.0,
        rope_scaling=None,
        max_position=64,
        original_max_position=64,
        tied_embeddings=False,
    )
