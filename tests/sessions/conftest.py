"""A small random engine, and a session of it in a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_engine import tiny_engine

from triforce.engine import Engine

TEXT = "It was the best of times, it was the worst of times. " * 3


@pytest.fixture(scope="module")
def engine() -> Engine:
    return tiny_engine()


@pytest.fixture
def saved(engine: Engine, tmp_path: Path) -> Path:
    """A session in a file."""
    session = engine.session(TEXT)
    session.notes["kept"] = ["é", 1]
    session.save(tmp_path / "saved")
    return tmp_path / "saved"
