"""A small model as drafter, mostly over a streaming cache; also the target's own weights over one."""

from __future__ import annotations

import torch
from torch import Tensor

from triforce.sampling import Sampler
from triforce.speculative import Draft, Runner
from triforce.tokens import TokenIds, extend


class ModelDrafter:
    """Draws `depth` tokens one by one from the law of `runner`, stretched or cut to the target's `vocab_size`."""

    def __init__(self, runner: Runner, vocab_size: int) -> None:
        self.stats = runner.stats
        self._runner = runner
        self._vocab_size = vocab_size

    def propose(self, tokens: TokenIds, depth: int, sampler: Sampler) -> Draft | None:
        drafted: list[int] = []
        laws: list[Tensor] = []
        for _ in range(depth):
            read = extend(tokens, drafted)
            logits = _fit(self._runner.logits(read, 1), self._vocab_size)
            law = sampler.laws(logits, read)
            token = sampler.draw(law[0])
            if token is None:  # nothing may follow what was drafted
                break
            laws.append(law)
            drafted.append(token)
        return Draft(drafted, torch.cat(laws), [self.stats.name] * len(drafted)) if drafted else None


def _fit(logits: Tensor, vocab_size: int) -> Tensor:
    """Logits over the target's vocabulary: padding rows of the head are cut, ids the drafter lacks get no mass."""
    missing = vocab_size - logits.shape[-1]
    if missing <= 0:
        return logits[:, :vocab_size]
    return torch.nn.functional.pad(logits, (0, missing), value=float("-inf"))
