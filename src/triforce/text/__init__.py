"""Between text and token ids: tokenisers, streaming detokenisation, chat templates. Knows nothing of models."""

from triforce.text.chat import encode_chat, render_chat
from triforce.text.stream import TextStream
from triforce.text.tokenizer import Tokenizer, load_tokenizer

__all__ = ["TextStream", "Tokenizer", "encode_chat", "load_tokenizer", "render_chat"]
