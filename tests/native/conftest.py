"""Each test runs with every variant of the kernels that this processor runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from native_cases import BUILT, variants

from triforce.native import Kernels


@pytest.fixture(params=variants())
def native(request: pytest.FixtureRequest) -> Iterator[Kernels]:
    assert BUILT
    yield Kernels(BUILT, request.param)
    Kernels(BUILT)  # the choice is the library's: back to the best
