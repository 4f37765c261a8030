"""A small random model with a chat template, and what `triforce chat` and --session make of it."""

from __future__ import annotations

from collections.abc import Callable

from tiny_engine import tiny_engine

import triforce
from triforce.config import SamplingParams
from triforce.engine import Engine
from triforce.text.tokenizer import Tokenizer

TEMPLATE = "{% for m in messages %}{{ m.role[0] + ':' + m.content + '\n' }}{% endfor %}{{ 'a:' }}"
OPTIONS = ["-n", "5", "--method", "ar"]
ASKED = "u:Who?\na:"  # by the template

Chat = Callable[..., tuple[list[str], str]]  # lines to answers, and what standard error says


def chatting_engine(max_position: int = 512) -> Engine:
    engine = tiny_engine(max_position=max_position)
    engine.tokenizer = Tokenizer(engine.tokenizer._backend, {}, chat_template=TEMPLATE)
    return engine


def said(engine: Engine, text: str, n: int = 5) -> str:
    """What the model says after `text`, as the command prints it."""
    fresh = Engine(engine.target, engine.tokenizer)
    return fresh.generate(text, SamplingParams(max_new_tokens=n), triforce.Decoding("ar")).text


def answers(engine: Engine, *questions: str, before: str = "", n: int = 5) -> list[str]:
    """What the model answers in turn, by the ids of what it said: its text need not encode to them again."""
    fresh, ids, found = Engine(engine.target, engine.tokenizer), engine.tokenizer.encode(before), []
    for question in questions:
        ids += engine.tokenizer.encode(f"u:{question}\na:")
        done = fresh.generate(ids, SamplingParams(max_new_tokens=n), triforce.Decoding("ar"))
        found.append(done.text)
        ids += done.token_ids + engine.tokenizer.encode("\n")
    return "\n".join(found).split("\n")
