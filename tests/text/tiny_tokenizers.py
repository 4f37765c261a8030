"""Tiny tokenisers trained on a few lines, and texts to try them on."""

from __future__ import annotations

import json
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't care: it'll sleep.",
    "def step(draft, target):\n    return target.verify(draft)  # 128 rows, 4096 columns\n\n",
    "Naïve café, Ελληνικά, русский язык, 中文字符, 日本語テキスト, 한국어 🙂🙂 🏳️‍🌈",
    "In 1984, 12345 people paid 3.14 each;  spaces   in    runs\t\ttabs\r\n\r\nand lines.",
] * 3
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "",
    "The dog sleeps.",
    " leading and trailing ",
    "for i in range(10):\n\tprint(i, 12345, 3.1415, 1_000_000)\n\n\n# done",
    "naïve café 中文 日本語 Ελληνικά 🙂🏳️‍🌈 ½ Ⅷ ٣٤",
    "a  b   c    d\n\n\n   e\r\n\r\n\t\tf   ",
    "we'll DON'T I've 'S",
    "<|im_start|>user\nhi 42<|im_end|>\n<|endoftext|>  x",
    "\x00\x01\x7f\u200b\ufeff",
]


def byte_level(pre: Any = None) -> tokenizers.Tokenizer:
    """A byte-level BPE of 600 tokens, cut by `pre` (GPT-2's rule by default) before merging."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre or pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def smollm_cut() -> Any:
    """The pre-tokeniser of SmolLM2's own tokenizer.json."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])


Vocabulary = tuple[list[str], list[int], list[str] | None, list[float] | None]  # tokens, types, merges, scores


def byte_level_vocabulary(backend: tokenizers.Tokenizer) -> Vocabulary:
    """The parts of a byte-level backend that a GGUF file stores."""
    vocab = backend.get_vocab()
    tokens = sorted(vocab, key=vocab.__getitem__)
    types = [3 if token in SPECIAL else 1 for token in tokens]
    merges = [" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]
    return tokens, types, merges, None


def sentencepiece_vocabulary() -> Vocabulary:
    """A SentencePiece-style vocabulary: three controls, 256 bytes, then merged pieces by falling score."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.train_from_iterator(CORPUS[:2], trainers.BpeTrainer(vocab_size=220, show_progress=False))
    learned = json.loads(backend.to_str())["model"]
    merged = ["".join(pair) for pair in learned["merges"]]
    letters = [piece for piece in learned["vocab"] if piece not in set(merged)]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *merged, *letters]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(merged) + len(letters))]
    scores = [*[0.0] * 259, *(-float(rank) for rank in range(len(merged) + len(letters)))]
    return tokens, types, None, scores
