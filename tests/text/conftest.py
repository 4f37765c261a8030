"""Saving tiny tokenisers as Hugging Face directories and as GGUF files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
from tiny_tokenizers import Vocabulary


@pytest.fixture
def save_directory(tmp_path: Path) -> Callable[..., Path]:
    """Save a backend with its settings as a Hugging Face directory."""

    def save(backend: tokenizers.Tokenizer, files: dict[str, str] | None = None, **config: Any) -> Path:
        directory = tmp_path / "model"
        directory.mkdir(exist_ok=True)
        backend.save(str(directory / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", **config}
        (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
        for name, content in (files or {}).items():
            (directory / name).write_text(content, encoding="utf-8")
        return directory

    return save


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Write a vocabulary with its settings as a GGUF file, with the model settings that transformers asks for."""

    def write(kind: str, pre: str | None, vocabulary: Vocabulary, **flags: Any) -> Path:
        tokens, types, merges, scores = vocabulary
        path = tmp_path / "tiny.gguf"
        writer = gguf.GGUFWriter(str(path), "llama")
        writer.add_block_count(1)
        writer.add_context_length(64)
        writer.add_embedding_length(8)
        writer.add_feed_forward_length(8)
        writer.add_head_count(1)
        writer.add_head_count_kv(1)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(len(tokens))
        writer.add_tokenizer_model(kind)
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        if merges is not None:
            writer.add_token_merges(merges)
        if scores is not None:
            writer.add_token_scores(scores)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        for name, value in flags.items():
            getattr(writer, name)(value)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write
