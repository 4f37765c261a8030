"""Token ids to text, one at a time, for reading along. Shows only what no later token can change."""

from __future__ import annotations

import codecs

from triforce.text.tokenizer import Tokenizer


class TextStream:
    """The text of a growing sequence of ids, at a constant cost per token.

    The pushes and the flush together equal `tokenizer.decode` of all ids. With `at_start` off the ids continue a text,
    and a first space is kept that `decode` would drop.
    """

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True, at_start: bool = True) -> None:
        self._pieces = tokenizer.pieces
        self._skip_special = skip_special
        self._at_start = at_start and self._pieces.drops_first_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that `token_id` settles; empty while a character is incomplete."""
        piece = self._pieces.piece(token_id, self._skip_special)
        if self._at_start and piece:
            self._at_start = False
            piece = piece.removeprefix(b" ")
        return self._utf8.decode(piece)

    @property
    def rest(self) -> str:
        """What `flush` would give now."""
        incomplete, _ = self._utf8.getstate()
        return incomplete.decode("utf-8", "replace")

    def flush(self) -> str:
        """What is left when no more tokens follow: the replacement character for an incomplete one."""
        return self._utf8.decode(b"", final=True)
