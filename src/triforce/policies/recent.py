"""No retrieval: the latest chunks, which with the sinks is StreamingLLM's choice (arXiv 2309.17453)."""

from __future__ import annotations

import torch
from torch import Tensor

from triforce.policies.base import Candidates


class Recent:
    """A later chunk scores higher."""

    def score(self, queries: Tensor, candidates: Candidates) -> Tensor:
        del queries
        means = candidates.means
        return torch.arange(means.shape[2], dtype=torch.float32, device=means.device).repeat(*means.shape[:2], 1)
