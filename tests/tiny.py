"""A random decoder small enough for thousands of passes, in float64 so that equality means 1e-9; random histories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import silu

from triforce.attention.rope import Rope
from triforce.caches.base import Cache, CacheShape, Segment
from triforce.runner import ModelRunner
from triforce.tokens import TokenIds, extend

VOCAB = 16
HEADS, KV_HEADS, DIM, HIDDEN = 4, 2, 8, 32


class TinyDecoder:
    """All that a runner needs of a model: grouped attention by whatever cache it is given, and an MLP."""

    device = torch.device("cpu")

    def __init__(self, num_layers: int, sliding_window: int | None, vocab_size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)

        def matrix(rows: int, columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=generator, dtype=torch.float64) * 1.5 * rows**-0.5

        self.config = Sizes(vocab_size)
        self.cache_shape = CacheShape(num_layers, HEADS, KV_HEADS, DIM, sliding_window)
        self.rope = Rope(100.0 ** -(torch.arange(0, DIM, 2, dtype=torch.float64) / DIM))
        self._embedding = matrix(vocab_size, HIDDEN) * vocab_size**0.5
        self._layers = [
            (matrix(HIDDEN, (HEADS + 2 * KV_HEADS) * DIM), matrix(HEADS * DIM, HIDDEN), matrix(HIDDEN, HIDDEN))
            for _ in range(num_layers)
        ]
        self._readout = matrix(HIDDEN, vocab_size)

    def __call__(self, tokens: Tensor, segments: Sequence[Segment]) -> Tensor:
        (segment,), x = segments, self._embedding[tokens]
        for index, (qkv, output, mlp) in enumerate(self._layers):
            wanted = segment.wanted if index == len(self._layers) - 1 else len(x)
            q, k, v = (_norm(x) @ qkv).view(len(x), -1, DIM).split((HEADS, KV_HEADS, KV_HEADS), 1)
            attended = segment.cache.attend(index, q, k, v, wanted)
            x = x[len(x) - wanted :] + attended.flatten(1) @ output
            x = x + silu(_norm(x) @ mlp)
        return _norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden @ self._readout


@dataclass(frozen=True)
class Sizes:
    vocab_size: int


def _norm(x: Tensor) -> Tensor:
    return x / x.square().mean(-1, keepdim=True).sqrt()


def tiny_decoder(
    num_layers: int = 2, sliding_window: int | None = None, vocab_size: int = VOCAB, seed: int = 0
) -> TinyDecoder:
    return TinyDecoder(num_layers, sliding_window, vocab_size, seed)


def runner_over(name: str, decoder: TinyDecoder, cache: Cache) -> ModelRunner:
    return ModelRunner(name, decoder, cache)  # type: ignore[arg-type]  # it asks for no more than the above


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
