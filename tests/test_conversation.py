"""Conversations: each turn reads only itself, whatever the template does, and can be taken back, saved and gone on."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_engine import byte_tokenizer, tiny_decoder

from triforce.config import Decoding, SamplingParams
from triforce.conversation import Conversation
from triforce.engine import Engine
from triforce.errors import ModelError, PromptError, SessionError
from triforce.text.chat import encode_chat
from triforce.text.tokenizer import Tokenizer

TURNS = "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '|\n' }}{% endfor %}"
ASK = "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
PLAIN = TURNS + ASK
STRIPPING = PLAIN.replace("m.content", "m.content | trim")
# Past answers are shown without their first three characters, as templates do with reasoning
FORGETFUL = PLAIN.replace("m.content", "(m.content[3:] if m.role == 'assistant' and not loop.last else m.content)")
AR, SHORT = Decoding("ar"), SamplingParams(max_new_tokens=9)


def engine_with(template: str | None, eos: str | None = None, max_position: int = 512) -> Engine:
    base = byte_tokenizer()
    special = {} if eos is None else {"eos_token": eos}
    tokenizer = Tokenizer(base._backend, special, chat_template=template)
    return Engine(tiny_decoder(max_position=max_position), tokenizer)


def ask(conversation: Conversation, question: str, sampling: SamplingParams = SHORT) -> int:
    """Ask and hear it out; how many tokens were read before the answer, the pending one counted."""
    stream = conversation.ask(question, sampling, AR)
    for _ in stream:
        pass
    return stream.generation().timings.prefill_tokens + 1


def test_each_turn_reads_only_itself_and_follows_the_template() -> None:
    engine = engine_with(PLAIN)
    conversation = Conversation(engine.session())
    assert ask(conversation, "Who?") == len("<user>Who?|\n<assistant>")
    before = len(conversation.session)
    read = ask(conversation, "And then?")
    assert read == 1 + len("|\n<user>And then?|\n<assistant>")  # the answer's last token was pending
    assert len(conversation.session) == before + len("|\n<user>And then?|\n<assistant>") + 9
    *asked, answer = conversation.messages
    text = engine.tokenizer.decode(encode_chat(engine.tokenizer, asked)) + answer["content"]
    assert conversation.session.text == text
    assert [message["role"] for message in conversation.messages] == ["user", "assistant"] * 2


def test_the_ids_of_an_answer_stay_as_they_were_drawn() -> None:
    engine = engine_with(PLAIN)
    conversation = Conversation(engine.session())
    ask(conversation, "Who?")
    first = conversation.session.tokens
    # bytes that are no UTF-8 are spelled U+FFFD, which is encoded as three other bytes
    broken = [*first[:-9], *[engine.tokenizer.vocabulary()["ÿ"]] * 9]
    conversation.session.replace(broken)
    assert conversation.messages[-1]["content"] == "\ufffd" * 9
    ask(conversation, "And then?")
    assert conversation.session.tokens[: len(broken)] == broken


def test_a_template_that_strips_answers_lets_them_stand() -> None:
    engine = engine_with(STRIPPING)
    conversation = Conversation(engine.session())
    ask(conversation, "Who?")
    kept = [*conversation.session.tokens[:-2], *engine.tokenizer.encode(" \n")]
    conversation.session.replace(kept)
    assert ask(conversation, "And then?") <= 3 + len("|\n<user>And then?|\n<assistant>")
    assert conversation.session.tokens[: len(kept)] == kept


def test_a_template_that_rewrites_answers_has_its_way_and_can_be_taken_back() -> None:
    engine = engine_with(FORGETFUL)
    conversation = Conversation(engine.session("Before. "))
    ask(conversation, "Who?")
    before = conversation.session.tokens
    ask(conversation, "And then?")
    expected = encode_chat(engine.tokenizer, conversation.messages[:-1])
    assert conversation.session.tokens[:-9] == [*engine.tokenizer.encode("Before. "), *expected]
    conversation.rewind()
    assert conversation.session.tokens == before


@pytest.mark.parametrize("template", [PLAIN, PLAIN.replace("'|\n'", "'\n'")], ids=["writes it", "does not write it"])
def test_an_end_token_is_the_templates_to_write(template: str) -> None:
    engine = engine_with(template, eos="|")
    conversation = Conversation(engine.session())
    ask(conversation, "Who?")
    answered = conversation.session.tokens
    conversation.session.append("|")
    assert "|" not in conversation.messages[-1]["content"][9:]
    ask(conversation, "And then?")
    closing = template.partition("m.content + '")[2].partition("'")[0].replace("\\n", "\n")
    turn = engine.tokenizer.encode(f"{closing}<user>And then?{closing}<assistant>")
    assert conversation.session.tokens[:-9] == [*answered, *turn]


def test_it_follows_a_text_that_was_read_before() -> None:
    engine = engine_with(PLAIN)
    conversation = Conversation(engine.session("A long book. "))
    ask(conversation, "Who?")
    ask(conversation, "And then?")
    assert conversation.session.text.startswith("A long book. <user>Who?|\n<assistant>")
    conversation.clear()
    assert conversation.session.text == "A long book. "
    assert conversation.messages == []
    with pytest.raises(PromptError, match="there is no question to take back"):
        conversation.rewind()


def test_a_turn_that_is_taken_back_leaves_no_trace() -> None:
    engine = engine_with(PLAIN)
    conversation, other = Conversation(engine.session()), Conversation(engine.session())
    for each in (conversation, other):
        ask(each, "Who?")
    ask(conversation, "And then?")
    conversation.rewind()
    assert conversation.messages == other.messages
    for each in (conversation, other):
        ask(each, "Where?")
    assert conversation.session.tokens == other.session.tokens
    assert conversation.messages == other.messages


def test_an_answer_that_was_stopped_counts_as_far_as_it_came() -> None:
    conversation = Conversation(engine_with(PLAIN).session())
    stream = conversation.ask("Who?", SHORT, AR)
    said = next(stream).text + next(stream).text
    assert conversation.messages[-1]["content"][: len(said)] == said
    ask(conversation, "And then?")
    assert (
        len(conversation.session) == len("<user>Who?|\n<assistant>") + 2 + len("|\n<user>And then?|\n<assistant>") + 9
    )


def test_a_saved_or_forked_one_goes_on_where_it_was(tmp_path: Path) -> None:
    engine = engine_with(PLAIN)
    conversation = Conversation(engine.session(), system="Be brief.")
    ask(conversation, "Who?")
    ask(conversation, "And then?")
    fork = Conversation(conversation.session.fork())
    conversation.session.save(tmp_path / "saved")
    loaded = Conversation(engine.load_session(tmp_path / "saved"), system="Ignored.")
    for each in (fork, loaded, conversation):
        each.rewind()
        assert ask(each, "Where?") <= 1 + len("|\n<user>Where?|\n<assistant>")
    assert fork.session.tokens == loaded.session.tokens == conversation.session.tokens
    assert fork.messages == loaded.messages == conversation.messages
    assert loaded.messages[0] == {"role": "system", "content": "Be brief."}


def test_an_answer_ends_with_the_context_at_the_latest() -> None:
    conversation = Conversation(engine_with(PLAIN, max_position=64).session())
    ask(conversation, "Who?", SamplingParams(max_new_tokens=300))
    assert len(conversation.session) == 64
    before, messages = conversation.session.tokens, conversation.messages
    with pytest.raises(PromptError, match="more than the 64 that the model allows"):
        ask(conversation, "And then?")
    assert (conversation.session.tokens, conversation.messages) == (before, messages)


def test_without_a_template_or_with_other_notes_it_is_refused() -> None:
    session = engine_with(None).session()
    with pytest.raises(ModelError, match="no chat template"):
        Conversation(session).ask("Who?")
    assert (session.tokens, session.notes) == ([], {})
    session.notes["conversation"] = {"turns": [{"question": "Who?"}]}
    with pytest.raises(SessionError, match="hold no conversation: use another session file"):
        Conversation(session)
