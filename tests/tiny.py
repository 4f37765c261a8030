"""A random decoder small enough for thousands of passes, in float64 so that equality means 1e-9; random histories."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from triforce.attention.rope import Rope
from triforce.models.config import ModelConfig
from triforce.models.decoder import Decoder
from triforce.models.family import HUGGINGFACE_NAMES
from triforce.models.rope_scaling import build_rope
from triforce.models.weights import gather
from triforce.tokens import TokenIds, extend

VOCAB = 16
HEADS, KV_HEADS, DIM = 4, 2, 8


class TinyDecoder(Decoder):
    """The real decoder with random weights, whose logits stay in float64."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        source = RandomWeights(seed)
        super().__init__(config, gather(config, source, torch.device("cpu")))
        self._readout = source.read("readout", (config.hidden_size, config.vocab_size))

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self._readout

    @property
    def rope(self) -> Rope:
        return build_rope(self.config)


class RandomWeights:
    """A checkpoint of whatever is asked for: norms of ones, matrices strong enough for attention to matter."""

    names = HUGGINGFACE_NAMES

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def read(self, name: str, shape: tuple[int, ...]) -> Tensor:
        del name
        if len(shape) == 1:
            return torch.ones(shape, dtype=torch.float64)
        return torch.randn(shape, generator=self._generator, dtype=torch.float64) * 1.5 * shape[-1] ** -0.5


def tiny_decoder(
    num_layers: int = 2, sliding_window: int | None = None, vocab_size: int = VOCAB, seed: int = 0
) -> TinyDecoder:
    config = ModelConfig(
        family="llama",
        vocab_size=vocab_size,
        hidden_size=HEADS * DIM,
        intermediate_size=48,
        num_layers=num_layers,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_dim=DIM,
        norm_eps=1e-6,
        rope_theta=100.0,
        rope_scaling=None,
        max_position=4096,
        original_max_position=4096,
        tied_embeddings=False,
        sliding_window=sliding_window,
    )
    return TinyDecoder(config, seed)


def random_tokens(length: int, seed: int = 0) -> TokenIds:
    ids: TokenIds = torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).int().numpy()
    return ids


def assert_same(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-9, rtol=0)


@dataclass(frozen=True)
class Turn:
    """`dropped` tokens are taken back, `appended` come instead, `drafted` are tried and `accepted` of them kept."""

    dropped: int
    appended: list[int]
    drafted: list[int]
    accepted: int


@st.composite
def turns(draw: st.DrawFn, most_appended: int = 12) -> Turn:
    ids = st.integers(0, VOCAB - 1)
    dropped = draw(st.sampled_from([0, 0, 0, 0, 1, 3, 9, 30, 1000]))
    appended = draw(st.lists(ids, min_size=1, max_size=most_appended))
    drafted = draw(st.lists(ids, max_size=6))
    return Turn(dropped, appended, drafted, draw(st.integers(0, len(drafted))))


def play(tokens: TokenIds, turn: Turn, visit: Callable[[TokenIds], object]) -> TokenIds:
    """What a speculative decoder asks of a runner in one turn: `visit` sees each sequence to be read."""
    tokens = extend(tokens[: max(len(tokens) - turn.dropped, 1)], turn.appended)
    for n in range(len(turn.drafted) + 1):
        visit(extend(tokens, turn.drafted[:n]))
    accepted = extend(tokens, turn.drafted[: turn.accepted])
    return extend(accepted, [(int(accepted[-1]) + 1) % VOCAB])
