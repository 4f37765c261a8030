"""Models that are tables, sequences counted by the thousand, and the law that they must follow."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from triforce.sampling import Sampler
from triforce.speculative import Drafter, Runner, step
from triforce.statistics import LevelStats
from triforce.tokens import TokenIds, extend

LEAST_EXPECTED = 5.0  # cells of the χ² test that expect fewer counts are merged


class TableRunner:
    """A model whose logits depend on the last two tokens: `table` [vocab, vocab, vocab]."""

    def __init__(self, name: str, table: Tensor) -> None:
        self.stats = LevelStats(name)
        self.table = table

    def logits(self, tokens: TokenIds, num_rows: int) -> Tensor:
        self.stats.passes += 1
        last = torch.from_numpy(tokens[-num_rows:]).long() % len(self.table)
        before = torch.from_numpy(tokens[-num_rows - 1 : -1]).long() % len(self.table)
        return self.table[before, last]


def random_table(vocab_size: int, seed: int, spread: float = 1.5) -> Tensor:
    """Logits [vocab, vocab, vocab], normal with standard deviation `spread`."""
    generator = torch.Generator().manual_seed(seed)
    return spread * torch.randn(vocab_size, vocab_size, vocab_size, generator=generator)


def enumerate_law(runner: TableRunner, prefix: TokenIds, length: int, sampler: Sampler) -> dict[tuple[int, ...], float]:
    """The probability of every sequence of `length` tokens after `prefix`."""
    law = {}
    for sequence in itertools.product(range(runner.table.shape[-1]), repeat=length):
        tokens = extend(prefix, sequence)
        rows = sampler.laws(runner.logits(tokens[:-1], length), tokens[:-1]).double()
        law[sequence] = float(rows.gather(1, torch.tensor(sequence)[:, None]).prod())
    return law


def count_sequences(
    prefix: TokenIds, length: int, num_sequences: int, runner: Runner, drafter: Drafter, depth: int, sampler: Sampler
) -> Counter[tuple[int, ...]]:
    """How often each sequence came out when `step` was called until `length` tokens were there."""
    return count(prefix, length, num_sequences, lambda tokens: step(tokens, runner, drafter, depth, sampler).tokens)


def count(
    prefix: TokenIds, length: int, num_sequences: int, advance: Callable[[TokenIds], list[int]]
) -> Counter[tuple[int, ...]]:
    counts: Counter[tuple[int, ...]] = Counter()
    for _ in range(num_sequences):
        tokens = prefix
        while len(tokens) < len(prefix) + length and (more := advance(tokens)):
            tokens = extend(tokens, more)
        counts[tuple(tokens[len(prefix) : len(prefix) + length].tolist())] += 1
    return counts


def p_value(counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float]) -> float:
    """How probable counts at least this far from `law` are (χ²); 0 where an impossible sequence was seen."""
    total = sum(counts.values())
    if any(law.get(sequence, 0.0) == 0.0 for sequence in counts):
        return 0.0
    cells = sorted((mass * total, counts[sequence]) for sequence, mass in law.items() if mass > 0.0)
    expected, seen = [0.0], [0]
    for mass, number in cells:  # in order of expectation, so that the rare ones are merged with each other
        if expected[-1] >= LEAST_EXPECTED:
            expected.append(0.0)
            seen.append(0)
        expected[-1] += mass
        seen[-1] += number
    if len(expected) == 1:
        return 1.0
    statistic = float((((np.array(seen) - expected) ** 2) / expected).sum())
    return float(chi2.sf(statistic, len(expected) - 1))
