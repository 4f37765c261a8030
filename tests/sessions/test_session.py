"""Sessions: any history leaves what a fresh engine holds of the same tokens; forks and files share and lose nothing."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from tiny_engine import byte_tokenizer, tiny_decoder, tiny_engine

from triforce.caches import full
from triforce.caches.base import Segment
from triforce.completion import Generation
from triforce.config import Decoding, SamplingParams
from triforce.engine import Engine
from triforce.errors import PromptError, UsageError
from triforce.methods import METHODS
from triforce.models.config import RopeScaling
from triforce.models.decoder import Decoder
from triforce.session import Session

TEXT = "It was the best of times, it was the worst of times. " * 4  # 212 tokens
DECODER = tiny_decoder(max_position=768)


def decoding(method: str, stride: int = 8) -> Decoding:
    return Decoding(method, budget=64, chunk=4, sinks=8, recent=16, stride=stride, slots=48, gamma1=4, gamma2=6)


def fresh() -> Engine:
    """An engine that has read nothing."""
    return Engine(DECODER, byte_tokenizer())


def books(done: Generation) -> list[object]:
    """What the levels did, times left out."""
    return [replace(level, seconds=0.0) for level in done.levels]


@contextmanager
def fed_tokens(decoder: Decoder) -> Iterator[list[int]]:
    """How many tokens each pass of `decoder` over a full cache is fed."""
    counts: list[int] = []
    call = Decoder.__call__

    def counting(self: Decoder, tokens: torch.Tensor, segments: list[Segment]) -> torch.Tensor:
        if self is decoder and isinstance(segments[0].cache, full.FullCache):
            counts.append(len(tokens))
        return call(self, tokens, segments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Decoder, "__call__", counting)
        yield counts


class Sessions(RuleBasedStateMachine):
    """Random histories of several sessions over one engine, beside lists of the tokens that each should hold."""

    sessions = Bundle("sessions")
    prompts = st.builds(
        lambda text, start, length: (text * 8)[start : start + length],
        st.sampled_from([TEXT, "The cat sat on the mat. " * 8, bytes(range(32, 126)).decode()]),
        st.integers(0, 60),
        st.sampled_from([1, 2, 3, 20, 90, 200]),
    )
    controls = st.sampled_from([SamplingParams(), SamplingParams(temperature=0.8, top_p=0.95, seed=3)])

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(full, "_SPARE_QUERIES", 5)
        self.folder = tempfile.TemporaryDirectory()
        self.engine = fresh()
        self.held: list[tuple[Session, list[int]]] = []

    def teardown(self) -> None:
        try:
            for session, tokens in self.held:
                self.compare(session, tokens)
        finally:
            self.patch.undo()
            self.folder.cleanup()

    def compare(self, session: Session, tokens: list[int]) -> None:
        if tokens:
            torch.testing.assert_close(session.logits(), fresh().logits(tokens), atol=1e-4, rtol=1e-4)

    def tokens(self, session: Session) -> list[int]:
        return next(tokens for other, tokens in self.held if other is session)

    def add(self, session: Session, tokens: list[int]) -> Session:
        self.held.append((session, list(tokens)))
        return session

    @initialize(target=sessions, prompt=prompts)
    def begin(self, prompt: str) -> Session:
        return self.add(self.engine.session(prompt), self.engine.tokenizer.encode(prompt))

    @rule(session=sessions, prompt=prompts)
    def append(self, session: Session, prompt: str) -> None:
        if len(session) + len(prompt) <= 700:
            session.append(prompt)
            self.tokens(session).extend(self.engine.tokenizer.encode(prompt))

    @rule(session=sessions, method=st.sampled_from(list(METHODS)), sampling=controls, n=st.integers(1, 20))
    def generate(self, session: Session, method: str, sampling: SamplingParams, n: int) -> None:
        tokens, sampling = self.tokens(session), replace(sampling, max_new_tokens=n)
        if not tokens or len(tokens) + n > 768:
            return
        done, expected = (
            session.generate(sampling, decoding(method)),
            fresh().generate(tokens, sampling, decoding(method)),
        )
        assert done.token_ids == expected.token_ids
        assert books(done) == books(expected)
        if sampling.temperature == 0.0:
            assert done.token_ids == fresh().generate(tokens, sampling, Decoding("ar")).token_ids
        tokens.extend(done.token_ids)

    @rule(session=sessions, method=st.sampled_from(list(METHODS)), taken=st.integers(0, 9))
    def stream_and_leave(self, session: Session, method: str, taken: int) -> None:
        tokens = self.tokens(session)
        if tokens and len(tokens) + 12 <= 768:
            stream = session.stream(SamplingParams(max_new_tokens=12), decoding(method))
            tokens.extend([next(stream).token_id for _ in range(taken)])

    @rule(session=sessions, share=st.sampled_from([0.0, 0.3, 0.9, 0.97]))
    def rewind(self, session: Session, share: float) -> None:
        tokens = self.tokens(session)
        del tokens[int(share * len(tokens)) :]
        session.rewind(len(tokens))

    @rule(target=sessions, session=sessions)
    def fork(self, session: Session) -> Session:
        return self.add(session.fork(), self.tokens(session))

    @rule(target=sessions, session=sessions, verify=st.booleans(), prefill=st.booleans())
    def save_and_load(self, session: Session, verify: bool, prefill: bool) -> Session:
        path = Path(self.folder.name, str(len(self.held)))
        session.save(path, prefill=prefill)
        return self.add(self.engine.load_session(path, verify=verify), self.tokens(session))

    @rule(session=sessions)
    def look(self, session: Session) -> None:
        self.compare(session, self.tokens(session))

    @invariant()
    def tokens_are_as_they_should_be(self) -> None:
        for session, tokens in self.held:
            assert session.tokens == tokens


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=30, stateful_step_count=15, deadline=None)


# What is read, and what is not


def test_a_second_question_reads_only_itself() -> None:
    engine = tiny_engine()
    session = engine.session(TEXT)
    with fed_tokens(engine.target) as fed:
        session.generate(SamplingParams(max_new_tokens=5), decoding("ar"))
        assert sum(fed) == len(TEXT) + 4  # the last token stays pending
        fed.clear()
        session.append("And then?")
        done = session.generate(SamplingParams(max_new_tokens=1), decoding("ar"))
        assert sum(fed) == 1 + len("And then?")
    assert done.timings.prefill_tokens == len("And then?")


def test_another_question_over_the_same_text_reads_only_itself() -> None:
    engine = tiny_engine()
    session = engine.session(TEXT)
    session.prefill()
    with fed_tokens(engine.target) as fed:
        for question in ("Who?", "And where?"):
            branch = session.fork()
            branch.append(question)
            branch.generate(SamplingParams(max_new_tokens=1), decoding("triforce"))
            session.rewind(len(TEXT))
            session.append(question)
            session.generate(SamplingParams(max_new_tokens=1), decoding("triforce"))
        # The text's last token is pending in each branch, and was read with the first question in the session itself
        assert sum(fed) == 2 * (len("Who?") + len("And where?")) + 3


def test_a_loaded_session_reads_nothing_again(tmp_path: Path) -> None:
    engine = tiny_engine()
    engine.session(TEXT).save(tmp_path / "saved")
    other = tiny_engine()
    with fed_tokens(other.target) as fed:
        session = other.load_session(tmp_path / "saved")
        session.append("And then?")
        session.generate(SamplingParams(max_new_tokens=1), decoding("triforce"))
        assert sum(fed) == 1 + len("And then?")


def test_sessions_taking_turns_read_nothing_again() -> None:
    engine = tiny_engine()
    streams = [
        engine.session(TEXT[start:]).stream(SamplingParams(max_new_tokens=8), decoding("ar")) for start in (0, 9)
    ]
    for stream in streams:
        next(stream)
    with fed_tokens(engine.target) as fed:
        for _ in range(7):
            for stream in streams:
                next(stream)
        assert fed == [1] * 14


def test_remembering_more_queries_reads_a_few_rows_again_and_not_all() -> None:
    engine = tiny_engine()
    session = engine.session(TEXT * 2)
    session.generate(SamplingParams(max_new_tokens=4), decoding("triforce"))
    with fed_tokens(engine.target) as fed:
        done = session.generate(SamplingParams(max_new_tokens=4), decoding("triforce", stride=150))
        assert 0 < sum(fed) < 200
    expected = tiny_engine().generate(session.tokens[:-4], SamplingParams(max_new_tokens=4), decoding("triforce", 150))
    assert (done.token_ids, books(done)) == (expected.token_ids, books(expected))


# The rest of what a session offers


def test_tokens_belong_to_it_as_they_are_handed_out_and_until_it_is_changed() -> None:
    session = tiny_engine().session(TEXT)
    stream = session.stream(SamplingParams(max_new_tokens=20), decoding("triforce"))
    given = [next(stream).token_id for _ in range(3)]
    assert session.tokens[len(TEXT) :] == given
    fork = session.fork()
    given.append(next(stream).token_id)
    assert (len(fork), len(session)) == (len(TEXT) + 3, len(TEXT) + 4)
    session.append("!")
    next(stream)
    assert session.tokens == [*tiny_engine().tokenizer.encode(TEXT), *given, *session.engine.tokenizer.encode("!")]


def test_an_ended_stream_is_let_go_with_its_caches() -> None:
    session = tiny_engine().session(TEXT)
    session.generate(SamplingParams(max_new_tokens=3), decoding("triforce"))
    assert session._stream is None


def test_forks_keep_notes_of_their_own() -> None:
    session = tiny_engine().session(TEXT)
    session.notes["a"] = 1
    fork = session.fork()
    fork.notes["a"] = 2
    assert session.notes == {"a": 1}


def test_text_after_the_first_gets_no_start_token() -> None:
    asked: list[bool] = []

    class Asked:
        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            asked.append(add_special_tokens)
            return [1] * len(text)

    engine = tiny_engine()
    engine.tokenizer = Asked()  # type: ignore[assignment]
    session = engine.session("ab")
    session.append("c")
    session.append([5, 6])
    assert (session.tokens, asked) == ([1, 1, 1, 5, 6], [True, False])


def test_what_cannot_be_done_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    engine = tiny_engine()
    session = engine.session()
    with pytest.raises(PromptError, match="the session is empty: append some text first"):
        session.generate()
    with pytest.raises(PromptError, match="the session is empty"):
        session.logits()
    session.append(TEXT)
    for length, remedy in ((-1, "at least 0"), (len(TEXT) + 1, "at most 212")):
        with pytest.raises(UsageError, match=rf"the length to rewind to is {length}: use {remedy}"):
            session.rewind(length)
    with pytest.raises(PromptError, match="the prompt is empty"):
        session.append("")
    with pytest.raises(PromptError, match=r"a token id outside 0\.\.255"):
        session.append([256])
    with pytest.raises(PromptError, match="more than the 512 that the model allows"):
        session.stream(SamplingParams(max_new_tokens=400))
    with pytest.raises(UsageError, match="unknown method"):
        session.stream(SamplingParams(max_new_tokens=4), Decoding("magic"))
    assert session.text == TEXT
    session.append("x" * 400)
    for use in (session.prefill, session.fork, lambda: session.save(tmp_path / "saved")):
        with pytest.raises(PromptError, match="100 more than the 512"):
            use()
    assert not (tmp_path / "saved").exists()
    session.rewind(100)
    assert session.generate(SamplingParams(max_new_tokens=2), decoding("ar")).completion_tokens == 2


def test_rotation_that_depends_on_the_length_is_that_of_the_longest_context() -> None:
    decoder = tiny_decoder()
    decoder.config = decoder.config.with_rope_scaling(RopeScaling("dynamic", 4.0))
    engine = Engine(decoder, byte_tokenizer())
    session = engine.session(TEXT)
    session.generate(SamplingParams(max_new_tokens=3), decoding("ar"))
    longest = engine.logits(session.tokens)  # `logits` rotates for the given length
    assert not torch.allclose(session.logits(), longest, atol=1e-3)
    again = Engine(decoder, byte_tokenizer()).session(session.tokens)
    torch.testing.assert_close(session.logits(), again.logits(), atol=1e-4, rtol=1e-4)
