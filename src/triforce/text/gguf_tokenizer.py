"""The tokeniser inside a GGUF file's metadata, rebuilt as the original `tokenizer.json` splits and merges.

Two kinds: `gpt2` (byte-level BPE) and `llama` (SentencePiece BPE with byte fallback). Knows only the metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from triforce.errors import ModelError
from triforce.text.pieces import byte_alphabet
from triforce.text.tokenizer import Tokenizer

Metadata = Callable[..., Any]  # get(key, default)

_CONTROL, _USER_DEFINED = 3, 4

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_SPLITS = {
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "falcon3", "pixtral"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen"), _QWEN2),
}
_GPT2_LIKE = ("default", "gpt-2")
_SINGLE_DIGITS = ("smollm", "starcoder", "refact", "command-r")
_WHOLE_WORDS_FIRST = ("llama-bpe", "llama3", "llama-v3", "smaug-bpe", "pixtral")


def tokenizer_from_gguf(get: Metadata, name: str) -> Tokenizer:
    """The tokeniser in the metadata of the GGUF file called `name`.

    Raises `ModelError` for kinds it does not know, and for entries that do not fit each other.
    """
    try:
        return _tokenizer(get, name)
    except ModelError:
        raise
    except Exception as error:  # whatever the tokenizers library makes of lists of the wrong type or length
        reason = " ".join(str(error).split())
        raise ModelError(f"{name}: damaged tokenizer entries ({reason}); convert or download the file again") from None


def _tokenizer(get: Metadata, name: str) -> Tokenizer:
    kind, tokens = get("tokenizer.ggml.model", None), get("tokenizer.ggml.tokens", None)
    if not tokens:
        raise ModelError(f"{name}: holds no vocabulary; use a GGUF file with the tokenizer inside")
    if kind == "gpt2":
        backend = _byte_level(get, name, tokens)
    elif kind == "llama":
        backend = _sentencepiece(get, tokens)
    else:
        raise ModelError(f"{name}: tokenizer model {kind!r} is not supported; use a GGUF file with gpt2 or llama")
    special = _special_tokens(get, tokens)
    _add_tokens(backend, get, tokens)
    _add_ends(backend, get, special)
    ends = [get(f"tokenizer.ggml.{role}_token_id", None) for role in ("eos", "eot", "eom")]
    return Tokenizer(backend, special, [i for i in ends if i is not None], get("tokenizer.chat_template", None))


def _byte_level(get: Metadata, name: str, tokens: list[str]) -> tokenizers.Tokenizer:
    merges = get("tokenizer.ggml.merges", None)
    if merges is None:
        raise ModelError(f"{name}: a gpt2 vocabulary without merges; convert the model to GGUF again")
    pre = get("tokenizer.ggml.pre", "default")
    vocab = {token: i for i, token in enumerate(tokens)}
    pairs = [_pair(merge) for merge in merges]
    try:
        model = models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre in _WHOLE_WORDS_FIRST)
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{name}: merges do not fit the vocabulary ({error}); convert the model again") from None
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = _pre_tokenizer(pre, name)
    backend.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _pre_tokenizer(pre: str, name: str) -> pre_tokenizers.PreTokenizer:
    """How text is cut before merging. A wrong cut gives other ids without any error, so unknown kinds are refused."""
    if pre in _GPT2_LIKE:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre in _SINGLE_DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if pre in _SPLITS:
        split = pre_tokenizers.Split(Regex(_SPLITS[pre]), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    known = ", ".join([*_GPT2_LIKE, *_SINGLE_DIGITS, *_SPLITS])
    raise ModelError(f"{name}: pre-tokenizer {pre!r} is not supported (known: {known}); use the safetensors model")


def _sentencepiece(get: Metadata, tokens: list[str]) -> tokenizers.Tokenizer:
    vocab = {token: i for i, token in enumerate(tokens)}
    merges = get("tokenizer.ggml.merges", None)
    pairs = (
        _merges_by_score(vocab, tokens, get("tokenizer.ggml.scores", None)) if merges is None else map(_pair, merges)
    )
    unknown = get("tokenizer.ggml.unknown_token_id", None)
    model = models.BPE(
        vocab=vocab,
        merges=list(pairs),
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(model)
    prefix = bool(get("tokenizer.ggml.add_space_prefix", True))
    scheme = "first" if prefix else "never"
    backend.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme, split=False)
    steps: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        steps.append(decoders.Strip(content=" ", left=1))
    backend.decoder = decoders.Sequence(steps)
    return backend


def _merges_by_score(vocab: dict[str, int], tokens: list[str], scores: list[float] | None) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, the best score first: SentencePiece's rule as a merge list.

    The order among equal scores (longer left part, longer right part, then lower ids) is that of transformers.
    """
    if scores is None:
        raise ModelError("a llama vocabulary without scores or merges; convert the model to GGUF again")
    merges: list[tuple[float, int, int, str, str]] = []
    for token, score in zip(tokens, scores, strict=True):
        splits = ((token[:at], token[at:]) for at in range(1, len(token)))
        parts = [(left, right) for left, right in splits if left in vocab and right in vocab]
        parts.sort(key=lambda part: (vocab[part[0]], vocab[part[1]]))
        merges.extend((score, len(left), len(right), left, right) for left, right in parts)
    merges.sort(key=lambda merge: merge[:3], reverse=True)
    return [(left, right) for *_, left, right in merges]


def _special_tokens(get: Metadata, tokens: list[str]) -> dict[str, str]:
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {role: get(f"tokenizer.ggml.{key}_token_id", None) for role, key in keys.items()}
    return {role: tokens[i] for role, i in ids.items() if i is not None and 0 <= i < len(tokens)}


def _add_tokens(backend: tokenizers.Tokenizer, get: Metadata, tokens: list[str]) -> None:
    """Keep control and user-defined tokens whole wherever they stand in a text."""
    types = get("tokenizer.ggml.token_type", None) or []
    control = [token for token, kind in zip(tokens, types, strict=False) if kind == _CONTROL]
    user_defined = [token for token, kind in zip(tokens, types, strict=False) if kind == _USER_DEFINED]
    if get("tokenizer.ggml.model", None) == "gpt2":
        # A control token spelt outside the byte alphabet is a converter's mistake: no text can mean it.
        alphabet = byte_alphabet().keys()
        control = [token for token in control if set(token) <= alphabet]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in user_defined])


def _add_ends(backend: tokenizers.Tokenizer, get: Metadata, special: dict[str, str]) -> None:
    """BOS and EOS as the file says; files without the flag mean BOS for SentencePiece and for Llama 3's kind."""
    by_default = get("tokenizer.ggml.model", None) == "llama" or get("tokenizer.ggml.pre", "") in _WHOLE_WORDS_FIRST
    bos = special.get("bos_token") if get("tokenizer.ggml.add_bos_token", by_default) else None
    eos = special.get("eos_token") if get("tokenizer.ggml.add_eos_token", False) else None
    template = [token for token in (bos, "$A", eos) if token is not None]
    ids = [(token, backend.token_to_id(token)) for token in template if token != "$A"]
    backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=list(dict.fromkeys(ids)))
