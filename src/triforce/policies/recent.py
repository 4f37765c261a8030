"""No retrieval: the latest chunks, which with the sinks is StreamingLLM's choice (arXiv 2309.17453)."""

from __future__ import annotations

import torch
from torch import Tensor


class Recent:
    """A later chunk scores higher."""

    def score(self, queries: Tensor, chunks: Tensor, means: Tensor) -> Tensor:
        del queries, chunks
        return torch.arange(means.shape[1], dtype=torch.float32, device=means.device).expand(means.shape[:2])
