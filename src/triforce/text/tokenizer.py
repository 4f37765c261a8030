"""One model's tokeniser, whichever file it came from. Knows nothing of models: ids in, text out, and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import tokenizers

from triforce.errors import ModelError, PromptError
from triforce.text.pieces import Pieces

_LINE_END = "\n"  # merges with nothing after it in vocabularies that begin a text with a space


class Tokenizer:
    """Text to ids and ids to text, as the model was trained.

    `special_tokens` maps roles (`bos_token`, `eos_token`, …) to their spelling; chat templates see all of them.
    Raises `ModelError` when the decoder of `backend` is of a kind that cannot be streamed.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str],
        eos_token_ids: Iterable[int] = (),
        chat_template: str | None = None,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.pieces = Pieces(backend)
        """The bytes of each token."""
        self.special_tokens = dict(special_tokens)
        self.chat_template = chat_template
        first = [] if self.eos_token is None else [backend.token_to_id(self.eos_token)]
        ids = [*first, *eos_token_ids]
        self.eos_token_ids: tuple[int, ...] = tuple(dict.fromkeys(i for i in ids if i is not None))
        """Ids that end a text; the tokeniser's own comes first. Empty when the model has none."""

    @property
    def bos_token(self) -> str | None:
        """The token that begins a text."""
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        """The token that ends a text."""
        return self.special_tokens.get("eos_token")

    @property
    def vocab_size(self) -> int:
        """The number of ids in use; a model may have a few more rows for padding."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def vocabulary(self) -> dict[str, int]:
        """Every token's spelling and id. Two models can speculate for each other when these agree."""
        return self._backend.get_vocab(with_added_tokens=True)

    def special_id(self, spelling: str) -> int | None:
        """The id of the special token of that `spelling`, None where there is none; no text shows such a token."""
        token_id = self._backend.token_to_id(spelling)
        return token_id if token_id is not None and not self.pieces.piece(token_id, skip_special=True) else None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The ids of `text`, with the BOS the model expects. Raises `PromptError` for invalid Unicode."""
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise PromptError(
                f"the text holds a lone surrogate at character {error.start}, which is no Unicode; save it as UTF-8"
            ) from None
        return self._backend.encode(text, add_special_tokens=add_special_tokens).ids

    def encode_within(self, text: str) -> list[int]:
        """The ids of `text` where it continues another: no BOS, and no space that begins only a whole text.

        Raises `PromptError` for invalid Unicode.
        """
        if not self.pieces.drops_first_space:
            return self.encode(text, add_special_tokens=False)
        before = self.encode(_LINE_END, add_special_tokens=False)
        ids = self.encode(_LINE_END + text, add_special_tokens=False)
        return ids[len(before) :] if ids[: len(before)] == before else self.encode(text, add_special_tokens=False)

    def spellings(self) -> list[bytes]:
        """What each id adds to a text, as bytes; empty for special tokens and for ids that are not in use."""
        last = max(self.vocabulary().values(), default=-1)
        return [self.pieces.piece(token_id, skip_special=True) for token_id in range(last + 1)]

    def decode(self, token_ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of `token_ids`; bytes that are no UTF-8 become U+FFFD, ids outside the vocabulary become nothing."""
        return self.pieces.join(token_ids, skip_special).decode("utf-8", "replace")


def load_tokenizer(path: str | Path) -> Tokenizer:
    """The tokeniser in a Hugging Face directory or in a GGUF file. Raises `ModelError` when there is none."""
    path = Path(path)
    if path.is_dir():
        from triforce.text.hf_tokenizer import tokenizer_from_directory

        return tokenizer_from_directory(path)
    if path.is_file():
        from triforce.models.gguf_file import GgufFile  # here, because it imports torch
        from triforce.text.gguf_tokenizer import tokenizer_from_gguf

        return tokenizer_from_gguf(GgufFile(path).get, path.name)
    raise ModelError(f"{path}: no such file or directory; give a model directory or a .gguf file")
