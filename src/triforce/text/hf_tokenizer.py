"""The tokeniser of a Hugging Face directory: `tokenizer.json` and the settings beside it, read as transformers does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

from triforce.errors import ModelError
from triforce.text.tokenizer import Tokenizer


def tokenizer_from_directory(path: Path) -> Tokenizer:
    """The tokeniser in directory `path`. Raises `ModelError` when its files are missing or damaged."""
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ModelError(f"{path}: no tokenizer.json; save it with transformers' AutoTokenizer(...).save_pretrained")
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{file}: cannot be read ({_one_line(error)}); download it again") from None
    config = _read_json(path / "tokenizer_config.json")
    special = _special_tokens(config, _read_json(path / "special_tokens_map.json"))
    _add_tokens(backend, config, special)
    return Tokenizer(backend, special, _end_ids(path), _chat_template(path, config))


def _special_tokens(config: dict[str, Any], token_map: dict[str, Any]) -> dict[str, str]:
    """Role to spelling, for every `…_token`; each is a string or the fields of an added token."""
    # The map is the older file: it counts only where the settings do not list the added tokens themselves.
    values = {**token_map, **config} if "added_tokens_decoder" in config else {**config, **token_map}
    special = {role: _spelling(value) for role, value in values.items() if role.endswith("_token")}
    return {role: token for role, token in special.items() if token is not None}


def _spelling(value: Any) -> str | None:
    token = value.get("content") if isinstance(value, dict) else value
    return token if isinstance(token, str) else None


def _add_tokens(backend: tokenizers.Tokenizer, config: dict[str, Any], special: dict[str, str]) -> None:
    """Add what the settings name and `tokenizer.json` lacks, in the order of the ids."""
    present = {token.content for token in backend.get_added_tokens_decoder().values()}
    for _, fields in sorted((config.get("added_tokens_decoder") or {}).items(), key=lambda item: int(item[0])):
        if fields["content"] not in present:
            present.add(fields["content"])
            names = ("single_word", "lstrip", "rstrip", "normalized", "special")
            backend.add_tokens([AddedToken(fields["content"], **{name: bool(fields.get(name)) for name in names})])
    extra: list[Any] = []
    for key in ("additional_special_tokens", "extra_special_tokens"):
        listed = config.get(key) or []
        extra.extend(listed.values() if isinstance(listed, dict) else listed)
    for token in dict.fromkeys([*special.values(), *filter(None, map(_spelling, extra))]):
        if token not in present:
            backend.add_special_tokens([AddedToken(token, special=True, normalized=False)])


def _end_ids(path: Path) -> list[int]:
    """The ids at which the model's generation settings stop."""
    for name in ("generation_config.json", "config.json"):
        value = _read_json(path / name).get("eos_token_id")
        if value is not None:
            return [int(item) for item in (value if isinstance(value, list) else [value])]
    return []


def _chat_template(path: Path, config: dict[str, Any]) -> str | None:
    """The default chat template: from its own file, else from the settings (one text, or a list of named ones)."""
    file = path / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = {item["name"]: item["template"] for item in template}
    if isinstance(template, dict):
        template = template.get("default")
    return template if isinstance(template, str) else None


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelError(f"{path}: damaged ({_one_line(error)}); download it again") from None
    return content if isinstance(content, dict) else {}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
