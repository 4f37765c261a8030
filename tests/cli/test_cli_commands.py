"""The smaller commands, and what holds for all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from triforce.cli import main
from triforce.cli.registry import COMMANDS
from triforce.methods import METHODS
from triforce.policies import POLICIES

CONFIG = {
    "model_type": "llama",
    "vocab_size": 100,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}


def test_without_a_command_the_commands_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert f"use one of {', '.join(COMMANDS)}" in capsys.readouterr().err


def test_a_wrong_command_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["genrate"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("triforce: ")
    assert err.count("\n") == 1


def test_help_names_every_method_and_policy(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["generate", "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    decoding = text[text.index("--method METHOD") :]
    missing = [name for name in (*METHODS, *POLICIES) if name not in decoding]
    assert not missing


def test_pull_without_a_name_lists_what_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIFORCE_CACHE", str(tmp_path))
    (tmp_path / "shakespeare").mkdir()
    assert main(["pull"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert " MB " in lines["smollm2"]
    assert " cached " in lines["shakespeare"]


def test_pull_prints_where_the_thing_lies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRIFORCE_CACHE", str(tmp_path))
    (tmp_path / "shakespeare").mkdir()
    assert main(["pull", "shakespeare"]) == 0
    assert capsys.readouterr() == (f"{tmp_path / 'shakespeare'}\n", "")


def test_pull_of_an_unknown_name_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pull", "nothing"]) == 1
    assert "smollm2" in capsys.readouterr().err


def test_info_reads_the_configuration_and_needs_no_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert main(["info", str(tmp_path)]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    attention, mlp, norms = 2 * 8 * 8 + 2 * 8 * 4, 3 * 8 * 16, 2 * 8
    assert lines["architecture"] == "llama"
    assert lines["parameters"] == f"{100 * 8 + 2 * (attention + mlp + norms) + 8:,}"
    assert lines["heads"] == "4, 2 of keys and values, dimension 2"
    assert lines["context"] == "64 tokens"
    assert "32 bytes per token in 16 bits, 64 in float32" in lines["KV"]
    assert lines["vocabulary"] == "100 tokens"


def test_info_of_what_is_no_model_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert err.startswith("triforce: ")
    assert err.count("\n") == 1
