"""Engines in place of all models: one that says fixed words, and a small random one that chats."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from chatting import OPTIONS, Chat, chatting_engine
from fake_engine import FakeEngine, Install

import triforce
from triforce.cli import main
from triforce.engine import Engine


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine that every model name stands for."""
    engine = chatting_engine()
    monkeypatch.setattr(triforce, "load", lambda *_, **__: engine, raising=False)
    monkeypatch.setattr("triforce.pull.resolve_model", lambda name, _: Path(name))
    monkeypatch.setattr("triforce.pull.cached", Path)
    return engine


@pytest.fixture
def chat(engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Chat:
    """Runs `triforce chat` over lines; the answers, and what standard error says."""
    del engine  # every model name stands for it

    def run(*lines: str, options: tuple[str, ...] = ()) -> tuple[list[str], str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
        assert main(["chat", "any", *OPTIONS, *options]) == 0
        out, err = capsys.readouterr()
        return out.split("\n")[:-1], err

    return run


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts an engine in place of all models, which then need not exist."""

    def put(engine: FakeEngine) -> FakeEngine:
        monkeypatch.setattr(triforce, "load", engine.load, raising=False)
        monkeypatch.setattr("triforce.pull.resolve_model", lambda name, _: Path("models", name))
        monkeypatch.setattr("triforce.pull.cached", Path)
        return engine

    return put
