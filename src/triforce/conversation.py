"""A conversation over a session: turns through the model's chat template, of which only the new one is ever read.

What the model answered stays as the ids it drew: spelled and encoded again it might have others. Knows nothing of
terminals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from triforce.checks import chosen, require
from triforce.config import Decoding, SamplingParams
from triforce.errors import PromptError, SessionError, shown
from triforce.session import Session
from triforce.stream import Stream
from triforce.text.chat import encode_chat, render_chat

_KEY = "conversation"  # in the session's notes


@dataclass(frozen=True)
class Turn:
    """A question and its answer: the session had `start` tokens before it and `asked` with the question.

    `answer` is None while the session still holds it. `before` are the tokens before the question where the template
    did not let them stand.
    """

    question: str
    start: int
    asked: int
    answer: str | None = None
    before: list[int] | None = None

    def __post_init__(self) -> None:
        """Raises `TypeError` for what a foreign file may hold."""
        texts, lengths = (self.question, self.answer or ""), (self.start, self.asked)
        if not all(isinstance(text, str) for text in texts) or not all(isinstance(number, int) for number in lengths):
            raise TypeError(self)


class Conversation:
    """Questions and answers in `session`, which may hold a text already; the template's turns follow it.

    They are kept in the session's notes, so that a loaded or forked session goes on where it was. `system` is the
    system message of a conversation that has none yet. Raises `UsageError` when they are of other types, `SessionError`
    when the notes are not a conversation's.
    """

    def __init__(self, session: Session, system: str | None = None) -> None:
        require(isinstance(session, Session), f"session is {shown(session)}: give one that engine.session() makes")
        require(system is None or isinstance(system, str), f"system is {shown(system)}: give a text, or None")
        self.session = session
        kept: Any = session.notes.get(_KEY, {"system": None, "turns": []})
        try:
            self.system: str | None = kept["system"] or system
            if not isinstance(self.system, str | None):
                raise TypeError(self.system)
            self._turns = [Turn(**turn) for turn in kept["turns"]]
        except (KeyError, TypeError):
            raise SessionError("the session's notes hold no conversation: use another session file") from None

    @property
    def messages(self) -> list[dict[str, str]]:
        """All turns so far, the last answer as far as it has come."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self._turns:
            answer = self._spell(self._answer_ids(turn)) if turn.answer is None else turn.answer
            messages += [{"role": "user", "content": turn.question}, {"role": "assistant", "content": answer}]
        return messages

    def ask(
        self,
        question: str,
        sampling: SamplingParams | None = None,
        decoding: Decoding | None = None,
        *,
        on_prefill: Callable[[int, int], None] | None = None,
    ) -> Stream:
        """The answer to `question`, token by token; not drawn to its end, it counts as far as it came.

        It ends at the latest with the context that the model allows.

        Raises `PromptError` when there is no room for it, `ModelError` when the model has no chat template; the
        conversation is then as it was.
        """
        if not isinstance(question, str):
            raise PromptError(f"the question is {shown(question)}: give a text")
        sampling = chosen("sampling", sampling, SamplingParams)
        before, messages = self.session.tokens, self.messages
        ids, kept = self._continued(messages, question)
        room = self.session.engine.context_length - len(ids)
        if 0 < room < sampling.max_new_tokens:
            least = min(sampling.min_new_tokens, room)
            sampling = replace(sampling, max_new_tokens=room, min_new_tokens=least)
        turns = self._turns
        told = [*turns[:-1], replace(turns[-1], answer=messages[-1]["content"])] if turns else []
        try:
            self.session.replace(ids)
            stream = self.session.stream(sampling, decoding, on_prefill=on_prefill)
            self._turns = [*told, Turn(question, len(before), len(ids), before=None if kept else before)]
            self._note()
        except BaseException:  # an interruption too
            self._turns = turns
            self.session.replace(before)
            if _KEY in self.session.notes:
                self._note()
            raise
        return stream

    def rewind(self) -> None:
        """Take back the last question and its answer. Raises `PromptError` when there is none."""
        if not self._turns:
            raise PromptError("there is no question to take back")
        turn = self._turns[-1]
        self.session.replace(self.session.tokens[: turn.start] if turn.before is None else turn.before)
        self._turns = self._turns[:-1]
        self._note()

    def clear(self) -> None:
        """Take back all turns; a text before the first stays."""
        if self._turns:
            self.session.rewind(self._turns[0].start)
        self._turns = []
        self._note()

    def _continued(self, messages: list[dict[str, str]], question: str) -> tuple[list[int], bool]:
        """The tokens of the whole with `question` at its end, and whether those of the session stay as they are."""
        tokenizer, tokens = self.session.engine.tokenizer, self.session.tokens
        asked = [*messages, {"role": "user", "content": question}]
        if not self._turns:
            return [*tokens, *encode_chat(tokenizer, asked)], True
        whole = render_chat(tokenizer, asked)
        before, answer = render_chat(tokenizer, messages[:-1]), messages[-1]["content"]
        for said in (answer, answer.strip()):  # some templates strip it
            if whole.startswith(before + said):
                rest = tokenizer.encode(whole[len(before) + len(said) :], add_special_tokens=False)
                return [*self._unended(tokens), *rest], True
        # The template shows past answers in another way, as without their reasoning
        return [*tokens[: self._turns[0].start], *encode_chat(tokenizer, asked)], False

    def _answer_ids(self, turn: Turn) -> list[int]:
        return self._unended(self.session.tokens[turn.asked :])

    def _unended(self, tokens: list[int]) -> list[int]:
        """`tokens` without an end token in the last place: the template writes its own."""
        return tokens[:-1] if tokens and tokens[-1] in self.session.engine.end_token_ids else tokens

    def _spell(self, ids: list[int]) -> str:
        return self.session.engine.tokenizer.decode(ids)

    def _note(self) -> None:
        self.session.notes[_KEY] = {"system": self.system, "turns": [asdict(turn) for turn in self._turns]}
