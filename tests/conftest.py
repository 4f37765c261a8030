"""Settings of the whole suite: one thread and no gradients, as the engine decodes; no waiting for the disk."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from triforce.native import kernels

settings.register_profile("suite", deadline=None, derandomize=True)
settings.load_profile("suite")


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _no_wait_for_the_disk() -> Iterator[None]:
    """Saving waits for the disk in processes of their own only, those that tests kill among them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture(params=["native", "pytorch"])
def each_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The test runs with the native kernels, and without them."""
    kernels.cache_clear()
    if request.param == "pytorch":
        monkeypatch.setenv("TRIFORCE_NATIVE", "0")
    elif kernels() is None:
        pytest.skip("native kernels are not built")
    yield request.param
    kernels.cache_clear()
