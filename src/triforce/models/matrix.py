"""Weight matrices: dense ones multiplied by PyTorch, and filed ones, kept as they lie in the file, by native kernels.

A filed matrix is the dequantised one to the last product: each weight becomes a float32 on its way to the multiplier,
and no activation is quantised. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from triforce.native import NARROW, Kernels, floats

_WIDE_WEIGHTS = 1 << 21  # that are floats at a time
KINDS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}  # GGUF's numbers for plain formats


class Matrix(Protocol):
    """A linear layer with its bias, if any: [out, in]."""

    def apply(self, x: Tensor) -> Tensor:
        """[n, out] from `x` [n, in]."""
        ...

    def add_to(self, y: Tensor, x: Tensor) -> None:
        """Add what `apply` gives for `x` [n, in] to `y` [n, out], in place."""
        ...

    def rows(self, index: Tensor) -> Tensor:
        """The rows [n, in] at `index` [n]: the matrix as an embedding."""
        ...

    def sample(self, n: int) -> Tensor:
        """`n` rows [n, in] spread over the matrix, float32 on the CPU."""
        ...


class DenseMatrix:
    """A tensor [out, in] in the dtype of the computation."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._weight = weight
        self._bias = bias
        self._turned = weight.device.type == "cpu" and weight.dtype == torch.float32

    def apply(self, x: Tensor) -> Tensor:
        if not self._turned or len(x) > NARROW:
            return linear(x, self._weight, self._bias)
        y = self._product_turned(x)
        return y.contiguous() if self._bias is None else y + self._bias

    def add_to(self, y: Tensor, x: Tensor) -> None:
        if self._bias is not None:
            y += self._bias
        if not self._turned or len(x) > NARROW:
            y.addmm_(x, self._weight.t())
        else:
            y += self._product_turned(x)

    def rows(self, index: Tensor) -> Tensor:
        return embedding(index, self._weight)

    def sample(self, n: int) -> Tensor:
        return self._weight[_spread(len(self._weight), n).to(self._weight.device)].float().cpu()

    def _product_turned(self, x: Tensor) -> Tensor:
        """(W x^T)^T: for few tokens 1.3 to 2 times as fast on a CPU as x W^T, most so for an even number of them."""
        n = len(x)
        if n in (1, 3):
            x = torch.cat((x, x[:1]))
        return torch.mm(self._weight, x.t())[:, :n].t()


@dataclass(frozen=True)
class Filed:
    """Rows of weights [out, row_bytes] uint8 in GGUF's format `kind`."""

    weights: Tensor
    kind: int


class FiledMatrix:
    """Rows in one or several formats, one part after the other; computes in float32."""

    def __init__(self, kernels: Kernels, parts: Sequence[Filed], width: int, bias: Tensor | None = None) -> None:
        self._kernels = kernels
        self.parts = _joined(parts)
        self.width = width
        self.out = sum(len(part.weights) for part in parts)
        self.bias = bias

    def apply(self, x: Tensor) -> Tensor:
        y = floats(len(x), self.out)
        self._multiply(x, y, accumulate=False)
        return y

    def add_to(self, y: Tensor, x: Tensor) -> None:
        self._multiply(x, y, accumulate=True)

    def rows(self, index: Tensor) -> Tensor:
        (part,) = self.parts
        return self._kernels.dequantise(part.weights[index], part.kind, self.width)

    def sample(self, n: int) -> Tensor:
        rows, start, index = [], 0, _spread(self.out, n)
        for part in self.parts:
            end = start + len(part.weights)
            inside = part.weights[index[(index >= start) & (index < end)] - start]
            rows.append(self._kernels.dequantise(inside, part.kind, self.width))
            start = end
        return torch.cat(rows)

    def _multiply(self, x: Tensor, y: Tensor, accumulate: bool) -> None:
        x, start = x.contiguous(), 0
        multiply = self._wide if len(x) > NARROW else self._narrow
        for part in self.parts:
            end = start + len(part.weights)
            bias = self.bias[start:end] if self.bias is not None else None
            multiply(x, part, y[:, start:end], bias, accumulate)
            start = end

    def _narrow(self, x: Tensor, part: Filed, y: Tensor, bias: Tensor | None, accumulate: bool) -> None:
        self._kernels.linear(x, part.weights, part.kind, y, bias=bias, accumulate=accumulate)

    def _wide(self, x: Tensor, part: Filed, y: Tensor, bias: Tensor | None, accumulate: bool) -> None:
        """Products with some MB of floats at a time in place of the whole matrix: as fast (docs/log.md, section 24)."""
        step = max(_WIDE_WEIGHTS // self.width, 1)
        for start in range(0, len(part.weights), step):
            rows = slice(start, start + step)
            dense = self._kernels.dequantise(part.weights[rows], part.kind, self.width)
            y[:, rows].addmm_(x, dense.t(), beta=int(accumulate))
        if bias is not None:
            y += bias


def _spread(size: int, n: int) -> Tensor:
    """`n` indices below `size`, evenly spread from the first to the last."""
    return torch.arange(n) * (size - 1) // max(n - 1, 1)


def _joined(parts: Sequence[Filed]) -> list[Filed]:
    """Neighbours of one format become one part: fewer calls."""
    joined: list[Filed] = []
    for part in parts:
        if joined and joined[-1].kind == part.kind:
            joined[-1] = Filed(torch.cat((joined[-1].weights, part.weights)), part.kind)
        else:
            joined.append(part)
    return joined
