"""Messages to a prompt by the model's own chat template, rendered as transformers renders it.

A template is a stranger's program: it runs only in jinja2's immutable sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from triforce.errors import ModelError, PromptError, shown
from triforce.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import jinja2

Message = Mapping[str, Any]  # {"role": …, "content": …}


def render_chat(tokenizer: Tokenizer, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
    """The prompt that the model was trained to see for `messages`.

    Raises `ModelError` when the model has no usable template, `PromptError` when the template refuses the messages.
    """
    if tokenizer.chat_template is None:
        raise ModelError(
            "this model has no chat template; use an instruct model, or give a plain prompt without --chat"
        )
    if not messages:
        raise PromptError("a chat needs at least one message; add one with role and content")
    for message in messages:
        if not isinstance(message, Mapping):
            raise PromptError(f"a chat has the message {shown(message)}: give mappings with role and content")
    import jinja2

    template = _compile(tokenizer.chat_template)
    # An absent key and None are the same to every API, but a template would print "None".
    plain = [{key: value for key, value in message.items() if value is not None} for message in messages]
    try:
        return template.render(
            messages=plain,
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **tokenizer.special_tokens,
        )
    except jinja2.exceptions.SecurityError as error:
        raise ModelError(f"the chat template does what the sandbox forbids ({error}); use another model") from None
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, ArithmeticError) as error:
        reason = " ".join(str(error).split())
        raise PromptError(
            f"the chat template refuses these messages: {reason}; check their roles, order and content"
        ) from None


def encode_chat(tokenizer: Tokenizer, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
    """The ids of `render_chat`; no BOS is added, because templates write their own. Raises as `render_chat` does."""
    return tokenizer.encode(render_chat(tokenizer, messages, add_generation_prompt), add_special_tokens=False)


@lru_cache(maxsize=8)
def _compile(source: str) -> jinja2.Template:
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks the model's own turns for training; here it only prints its body."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda layout: datetime.now().strftime(layout)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ModelError(f"the chat template is damaged ({error}); download the model again") from None


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Without the HTML escapes of jinja2's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    import jinja2

    raise jinja2.TemplateError(message)
