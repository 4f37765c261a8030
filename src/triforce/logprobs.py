"""Log-probabilities of emitted tokens and of their likeliest alternatives. Knows nothing of how tokens were chosen."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from triforce.completion import TokenLogprob, TokenLogprobs
from triforce.text.pieces import Pieces


def token_logprobs(logits: Tensor, tokens: Sequence[int], num_top: int, pieces: Pieces) -> list[TokenLogprobs]:
    """One record per token, from the raw `logits` [len(tokens), vocab] at its place, with `num_top` alternatives."""
    rows = torch.log_softmax(logits.float(), -1)
    chosen = rows.gather(-1, torch.tensor(tokens, device=rows.device)[:, None])[:, 0].tolist()
    best = rows.topk(min(num_top, rows.shape[-1]), -1)
    tops = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [
        TokenLogprobs(
            token,
            _text(pieces, token),
            logprob,
            tuple(TokenLogprob(other, _text(pieces, other), value) for other, value in zip(*top, strict=True)),
        )
        for token, logprob, top in zip(tokens, chosen, tops, strict=True)
    ]


def _text(pieces: Pieces, token_id: int) -> str:
    return pieces.piece(token_id, skip_special=False).decode("utf-8", "replace")
