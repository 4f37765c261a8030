"""A runner sped up by a drafter is itself a drafter: the middle level of TriForce, and of hierarchies of any depth."""

from __future__ import annotations

import torch

from triforce.sampling import Sampler
from triforce.speculative import Draft, Drafter, Runner, step
from triforce.tokens import TokenIds, extend


class Cascade:
    """Drafts with `runner`, itself sped up by `drafter`, which proposes `inner_depth` tokens at a time.

    Every token it emits, accepted, corrected or bonus, follows the runner's law, so that law is the draft law. Steps
    go on until `depth` tokens are there; the last one drafts no more than is missing.
    """

    def __init__(self, runner: Runner, drafter: Drafter, inner_depth: int) -> None:
        self.stats = runner.stats
        self._runner = runner
        self._drafter = drafter
        self._inner_depth = inner_depth

    def propose(self, tokens: TokenIds, depth: int, sampler: Sampler) -> Draft | None:
        verdicts = []
        drafted = 0
        while drafted < depth:
            inner = min(self._inner_depth, depth - drafted - 1)
            verdict = step(tokens, self._runner, self._drafter, inner, sampler)
            if not verdict.tokens:  # nothing may follow what was drafted
                break
            tokens = extend(tokens, verdict.tokens)
            drafted += len(verdict.tokens)
            verdicts.append(verdict)
        if not verdicts:
            return None
        return Draft(
            tokens=[token for verdict in verdicts for token in verdict.tokens],
            laws=torch.cat([verdict.laws for verdict in verdicts]),
            levels=[level for verdict in verdicts for level in verdict.levels],
        )
