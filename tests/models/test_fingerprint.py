"""A fingerprint tells models apart by what rows depend on, and not by how weights are kept or how long texts may be."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_engine import RandomSource, tiny_decoder
from torch import Tensor

from triforce.models.config import RopeScaling
from triforce.models.fingerprint import fingerprint
from triforce.models.weights import Placement, gather
from triforce.native import kernels

CONFIG = tiny_decoder().config


class Tweaked(RandomSource):
    """The same weights but for one tensor, of which all are a little larger."""

    def __init__(self, name: str = "") -> None:
        super().__init__(0)
        self._name = name

    def read(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        weight = super().read(name, shape, dtype)
        return weight * 1.01 if self._name and self._name in name else weight


def taken(name: str = "", dtype: torch.dtype | None = torch.float32) -> str:
    return fingerprint(CONFIG, gather(CONFIG, Tweaked(name), Placement(torch.device("cpu"), dtype)))


@pytest.mark.parametrize(
    "name",
    [
        "embed_tokens",
        "1.self_attn.q_proj",
        "1.self_attn.v_proj",
        "0.self_attn.o_proj",
        "1.mlp.up_proj",
        "0.mlp.down_proj",
        "1.input_layernorm",
        "0.post_attention_layernorm",
        "model.norm",
    ],
)
def test_a_change_of_any_tensor_shows(name: str) -> None:
    assert taken() == taken()
    assert taken(name) != taken()


def test_native_kernels_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    with_them = taken()
    monkeypatch.setenv("TRIFORCE_NATIVE", "0")
    kernels.cache_clear()
    try:
        assert taken() == with_them
    finally:
        kernels.cache_clear()


def test_a_dtype_that_rounds_weights_shows() -> None:
    assert taken(dtype=torch.bfloat16) != taken()


def test_architecture_shows_and_lengths_and_ends_do_not() -> None:
    weights = gather(CONFIG, Tweaked(), Placement(torch.device("cpu"), torch.float32))
    longer = replace(CONFIG, max_position=9999, rope_scaling=RopeScaling("linear", 2.0), eos_token_ids=(3,))
    assert fingerprint(longer, weights) == fingerprint(CONFIG, weights)
    assert fingerprint(replace(CONFIG, sliding_window=7), weights) != fingerprint(CONFIG, weights)
    assert fingerprint(replace(CONFIG, norm_eps=1e-6), weights) != fingerprint(CONFIG, weights)
