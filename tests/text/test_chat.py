"""Chat templates render as in transformers, inside the sandbox."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_tokenizers import CHATML, byte_level
from tokenizers import processors
from transformers import AutoTokenizer

from triforce.errors import ModelError, PromptError
from triforce.text import Tokenizer, encode_chat, load_tokenizer, render_chat

SaveDirectory = Callable[..., Path]
ENDS = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
LLAMA3 = """{{- bos_token }}
{%- if tools is not none %}{{ "no tools were given" }}{% endif %}
{%- set loop_messages = messages %}
{%- for message in loop_messages %}
    {%- set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim %}
    {{- content + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
"""
MISTRAL = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}
{% endif %}
{% endfor %}"""
FEATURES = """{% set state = namespace(seen=0) %}
{% for message in messages %}
  {% if message.role == 'system' %}{% continue %}{% endif %}
  {% set state.seen = state.seen + 1 %}
  {{ message | tojson }} {{ message | tojson(indent=2) }} {{ strftime_now('%Y') }}
  {% generation %}{{ message.content }}{% endgeneration %}
  {% if message.name is defined %}named{% endif %}{% if loop.index == 3 %}{% break %}{% endif %}
{% endfor %}{{ state.seen }}{{ pad_token }}{{ tools }}{{ dict(a=1) }}"""
CHATS = [
    [{"role": "user", "content": "Hi <b>&'é中🙂"}],
    [{"role": "user", "content": " a "}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c\n"}],
    [{"role": "user", "content": "Hi", "name": None}],
]


@pytest.mark.parametrize(
    "template", [CHATML, LLAMA3, MISTRAL, FEATURES], ids=["chatml", "llama3", "mistral", "features"]
)
@pytest.mark.parametrize("messages", CHATS, ids=["one", "three", "none value"])
@pytest.mark.parametrize("prompt", [True, False])
def test_prompts_and_ids_equal_those_of_transformers(
    save_directory: SaveDirectory, template: str, messages: list[dict[str, Any]], prompt: bool
) -> None:
    backend = byte_level()
    backend.post_processor = processors.TemplateProcessing("<|im_start|> $A", None, [("<|im_start|>", 1)])
    directory = save_directory(backend, chat_template=template, **ENDS)
    ours, theirs = load_tokenizer(directory), AutoTokenizer.from_pretrained(directory)
    rendered = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    assert render_chat(ours, messages, prompt) == rendered
    ids = theirs.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=False)
    assert encode_chat(ours, messages, prompt) == ids


def test_no_second_bos_is_added(save_directory: SaveDirectory) -> None:
    backend = byte_level()
    backend.post_processor = processors.TemplateProcessing("<|im_start|> $A", None, [("<|im_start|>", 1)])
    tokenizer = load_tokenizer(save_directory(backend, chat_template="{{ bos_token }}x", **ENDS))
    assert tokenizer.encode("x")[0] == 1
    assert encode_chat(tokenizer, [{"role": "user", "content": ""}]) == tokenizer.encode("x")


def chatting(template: str | None) -> Tokenizer:
    return Tokenizer(byte_level(), ENDS, chat_template=template)


def test_exception_raised_by_a_template_is_one_clear_line() -> None:
    with pytest.raises(PromptError, match="roles must alternate") as caught:
        render_chat(chatting(MISTRAL), [{"role": "assistant", "content": "Hi"}])
    assert "\n" not in str(caught.value)


def test_missing_template_names_the_remedy() -> None:
    with pytest.raises(ModelError, match="no chat template; use an instruct model"):
        render_chat(chatting(None), CHATS[0])


def test_empty_chat_is_a_prompt_error() -> None:
    with pytest.raises(PromptError, match="at least one message"):
        render_chat(chatting(CHATML), [])


def test_message_without_content_is_a_prompt_error() -> None:
    with pytest.raises(PromptError, match="roles, order and content"):
        render_chat(chatting("{{ 'x' + messages[0]['content'].strip() }}"), [{"role": "user"}])


def test_damaged_template_is_a_model_error() -> None:
    with pytest.raises(ModelError, match="template is damaged"):
        render_chat(chatting("{% for %}"), CHATS[0])


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10000000) %}{% endfor %}",
    ],
)
def test_templates_cannot_leave_the_sandbox(template: str) -> None:
    with pytest.raises((ModelError, PromptError)):
        render_chat(chatting(template), CHATS[0])
