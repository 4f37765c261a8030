"""Session files: what is saved is loaded; whatever is damaged or foreign is refused in one line."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from tiny_engine import byte_tokenizer, tiny_decoder, tiny_engine

from triforce.config import Decoding, SamplingParams
from triforce.engine import Engine
from triforce.errors import SessionError
from triforce.models.config import RopeScaling
from triforce.session_file import read_session

TEXT = "It was the best of times, it was the worst of times. " * 3


def test_all_of_a_session_comes_back(engine: Engine, saved: Path) -> None:
    loaded = engine.load_session(saved)
    assert loaded.text == TEXT
    assert loaded.notes == {"kept": ["é", 1]}
    fresh = engine.session(TEXT)
    fresh.prefill()
    assert loaded._cache.length == len(TEXT) - 1
    for ours, theirs in ((loaded._cache.keys, fresh._cache.keys), (loaded._cache.values, fresh._cache.values)):
        assert torch.equal(ours[:, :, : len(TEXT) - 1], theirs[:, :, : len(TEXT) - 1])
    assert torch.equal(loaded._cache.remembered(len(TEXT) - 1), fresh._cache.remembered(len(TEXT) - 1))


def test_it_continues_bit_for_bit_as_if_it_had_not_been_saved(engine: Engine, tmp_path: Path) -> None:
    decoding = Decoding(method="triforce", budget=64, chunk=4, sinks=8, recent=16, stride=8)
    sampling = SamplingParams(temperature=0.9, seed=5, max_new_tokens=40)
    session = engine.session(TEXT)
    session.generate(sampling, decoding)
    session.save(tmp_path / "saved")
    loaded = engine.load_session(tmp_path / "saved")
    ours, theirs = loaded.generate(sampling, decoding), session.generate(sampling, decoding)
    assert ours.token_ids == theirs.token_ids
    assert [replace(level, seconds=0) for level in ours.levels] == [
        replace(level, seconds=0) for level in theirs.levels
    ]
    assert torch.equal(loaded.logits(), session.logits())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8])
def test_rows_of_every_dtype_are_kept_exactly(dtype: torch.dtype, tmp_path: Path) -> None:
    engine = Engine(tiny_decoder(), byte_tokenizer(), cache_dtype=dtype)
    session = engine.session(TEXT)
    session.save(tmp_path / "saved")
    assert torch.equal(engine.load_session(tmp_path / "saved").logits(), session.logits())


@pytest.mark.parametrize("text", ["", "a", "ab"])
def test_short_sessions_are_saved_too(engine: Engine, tmp_path: Path, text: str) -> None:
    session = engine.session(text or None)
    session.save(tmp_path / "saved")
    loaded = engine.load_session(tmp_path / "saved")
    assert loaded.text == text
    loaded.append("cd")
    assert loaded.generate(SamplingParams(max_new_tokens=4)).completion_tokens == 4


def test_without_prefill_what_was_read_is_saved(engine: Engine, tmp_path: Path) -> None:
    session = engine.session(TEXT)
    session.prefill()
    session.append("And then?")
    session.save(tmp_path / "saved", prefill=False)
    loaded = engine.load_session(tmp_path / "saved")
    assert (loaded.text, loaded._cache.length) == (TEXT + "And then?", len(TEXT) - 1)


def test_other_programs_can_read_it(engine: Engine, saved: Path) -> None:
    with safe_open(saved, "pt") as file:
        assert set(file.keys()) == {"keys", "values", "page_sums", "queries", "tokens", "notes", "sha256"}
        assert file.metadata()["format"] == "triforce-session"
        assert file.get_tensor("tokens").tolist() == engine.load_session(saved).tokens
        keys = file.get_tensor("keys")
    assert torch.equal(keys[:, :, : len(TEXT) - 1], engine.load_session(saved)._cache.keys[:, :, : len(TEXT) - 1])


def test_saving_over_the_file_that_is_mapped_harms_neither(engine: Engine, saved: Path) -> None:
    first, second, third = (engine.load_session(saved) for _ in range(3))
    expected = third.logits()
    first.append("And then?")
    first.save(saved)
    assert torch.equal(second.logits(), expected)
    assert engine.load_session(saved).text == TEXT + "And then?"


# What a file must not be


def refusal(engine: Engine, path: Path, **options: bool) -> str:
    with pytest.raises(SessionError) as caught:
        engine.load_session(path, **options)
    message = str(caught.value)
    assert str(path) in message
    assert "\n" not in message
    return message


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_every_truncation_and_every_flipped_bit_is_refused(data: st.DataObject) -> None:
    engine, path, content = _whole_file()
    header = 8 + int.from_bytes(content[:8], "little")
    somewhere = st.one_of(st.integers(0, len(content) - 1), st.integers(0, 400), st.integers(header - 9, header + 9))
    at = data.draw(
        somewhere.map(lambda at: min(at, len(content) - 1)) | st.integers(len(content) - 900, len(content) - 1)
    )
    if data.draw(st.booleans()):
        damaged = content[:at]
    else:
        damaged = content[:at] + bytes([content[at] ^ 1 << data.draw(st.integers(0, 7))]) + content[at + 1 :]
    path.write_bytes(damaged)
    refusal(engine, path)


def test_every_byte_of_the_header_counts() -> None:
    engine, path, content = _whole_file()
    for at in range(0, 1200):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
        refusal(engine, path, verify=False)


def test_without_verification_only_the_rows_go_unchecked() -> None:
    engine, path, content = _whole_file()
    header = 8 + int.from_bytes(content[:8], "little")
    rows = header + read_session(_write(path, content))[1].planes[0].nbytes * 2
    for at in np.linspace(0, len(content) - 1, 200).astype(int).tolist():
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        if header <= at < rows:
            assert engine.load_session(path, verify=False).text == TEXT
        else:
            refusal(engine, path, verify=False)
    path.write_bytes(content + b"\0")
    assert "longer than it should be" in refusal(engine, path)


_kept: list[tuple[Engine, Path, bytes]] = []


def _whole_file() -> tuple[Engine, Path, bytes]:
    """An engine, a path to write to, and a good file's content; made once, for tests that hypothesis repeats."""
    if not _kept:
        engine = tiny_engine()
        path = Path(os.environ.get("TMPDIR", "/tmp"), f"triforce-test-{os.getpid()}.session")
        engine.session(TEXT).save(path)
        _kept.append((engine, path, path.read_bytes()))
    return _kept[0]


@pytest.fixture(scope="module", autouse=True)
def _clean_up() -> Iterator[None]:
    yield
    for _, path, _ in _kept:
        path.unlink(missing_ok=True)
    _kept.clear()


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "is not a session file, or its first bytes are damaged"),
        (b"abc", "is not a session file"),
        (b"\xff" * 5000, "is not a session file"),
        (b"Once upon a time, there was a text. " * 400, "is not a session file"),
        ((2).to_bytes(8, "little") + b"{}", "is not a session file: give one that a session was saved in"),
        ((2).to_bytes(8, "little") + b"[]", "is not a session file"),
        ((10000).to_bytes(8, "little") + b"[" * 10000, "is not a session file"),
    ],
)
def test_other_files_are_told_from_damaged_ones(engine: Engine, tmp_path: Path, content: bytes, says: str) -> None:
    assert says in refusal(engine, _write(tmp_path / "other", content))


def test_a_missing_file_and_a_directory_are_named(engine: Engine, tmp_path: Path) -> None:
    assert "no such file" in refusal(engine, tmp_path / "absent")
    assert "is a directory: give a session file" in refusal(engine, tmp_path)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (lambda: tiny_engine(max_position=1024), None),
        (lambda: tiny_engine(eos_token_ids=(3,)), None),
        (
            lambda: Engine(tiny_decoder(seed=1), byte_tokenizer()),
            r"by another model \(llama, 2 layers.*; other weights or",
        ),
        (
            lambda: Engine(tiny_decoder(), byte_tokenizer(), cache_dtype=torch.int8),
            "keeps rows in float32 and this engine in int8: load the model with cache dtype float32",
        ),
        (
            lambda: Engine(tiny_decoder(), byte_tokenizer(), cache_dtype=torch.float16),
            "load the model with cache dtype float32",
        ),
        (lambda: Engine(_stretched(), byte_tokenizer()), "with another rope scaling: use that one"),
    ],
    ids=["longer context", "other ends", "other weights", "rows of 8 bits", "other dtype of rows", "other rotation"],
)
def test_a_session_of_another_model_or_setting_is_refused(
    saved: Path, other: Callable[[], Engine], says: str | None
) -> None:
    if says is None:
        assert other().load_session(saved).text == TEXT
    else:
        with pytest.raises(SessionError, match=says):
            other().load_session(saved)


def _stretched():  # type: ignore[no-untyped-def]
    decoder = tiny_decoder()
    decoder.config = decoder.config.with_rope_scaling(RopeScaling("linear", 2.0))
    return decoder


def test_another_format_version_is_named(engine: Engine, saved: Path) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content.replace(b'"version": "1"', b'"version": "2"'))
    assert "has format version 2, this triforce reads 1: use the other" in refusal(engine, saved)
