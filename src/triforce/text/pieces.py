"""What each token contributes to the text, as bytes: the reading of a tokeniser's decoder that makes streaming exact.

Concatenating pieces and reading them as UTF-8 is the whole of decoding, so no window of ids has to be decoded again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import tokenizers

from triforce.errors import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def byte_alphabet() -> dict[str, int]:
    """The character that stands for each byte in byte-level vocabularies (GPT-2's table), read backwards."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


class Pieces:
    """The bytes of every token of one tokeniser. Raises `ModelError` when its decoder is of an unknown kind."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._byte_level: dict[str, int] | None = None
        self._byte_tokens = False
        self._replacements: list[tuple[str, str]] = []
        self._separator = ""
        self._cache: dict[int, bytes] = {}
        self.drops_first_space = False
        """Whether decoding drops one space at the start of a text."""
        self._special = {i for i, token in backend.get_added_tokens_decoder().items() if token.special}
        decoder = None if backend.decoder is None else json.loads(backend.decoder.__getstate__())
        self._read(decoder)

    def piece(self, token_id: int, skip_special: bool) -> bytes:
        """The bytes of one token: none for an id outside the vocabulary or a special token to be skipped."""
        if skip_special and token_id in self._special:
            return b""
        piece = self._cache.get(token_id)
        if piece is None:
            piece = self._cache[token_id] = self._spell(token_id)
        return piece

    def join(self, token_ids: Iterable[int], skip_special: bool) -> bytes:
        """The bytes of a whole text."""
        data = b"".join([self.piece(token_id, skip_special) for token_id in token_ids])
        return data[1:] if self.drops_first_space and data.startswith(b" ") else data

    def _spell(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            return b""
        if self._byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes([int(match[1], 16)])
        if self._byte_level is not None and all(char in self._byte_level for char in token):
            return bytes(self._byte_level[char] for char in token)
        for old, new in self._replacements:
            token = token.replace(old, new)
        return (self._separator + token).encode("utf-8", "replace")

    def _read(self, decoder: dict[str, Any] | None) -> None:
        """Translate the decoder's steps into the settings of `_spell`."""
        if decoder is None:  # words, which the library joins by spaces
            self._separator, self.drops_first_space = " ", True
            return
        match decoder:
            case {"type": "Sequence", "decoders": list(steps)}:
                for step in steps:
                    self._read(step)
            case {"type": "ByteLevel"}:
                self._byte_level = byte_alphabet()
            case {"type": "ByteFallback"}:
                self._byte_tokens = True
            case {"type": "Fuse"}:
                pass
            case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
                self._replacements.append((old, new))
            case {"type": "Strip", "content": " ", "start": int(start), "stop": 0} if start <= 1:
                self.drops_first_space = start == 1
            case {"type": "Metaspace", "replacement": str(mark)}:
                self._replacements.append((mark, " "))
                self.drops_first_space = decoder.get("prepend_scheme") != "never"
            case _:
                kind = decoder.get("type")
                raise ModelError(
                    f"the tokenizer's decoder {kind} is not supported; use a byte-level or SentencePiece BPE"
                )
