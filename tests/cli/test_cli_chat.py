"""`triforce chat` over a small random model: lines in, answers out, and nothing lost."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from chatting import ASKED, OPTIONS, Chat, answers

import triforce.stream
from triforce.cli import main
from triforce.engine import Engine
from triforce.errors import UsageError


def test_it_answers_line_by_line_and_remembers(engine: Engine, chat: Chat) -> None:
    assert chat("Who?", "", "And then?") == (answers(engine, "Who?", "And then?"), "")


def test_a_document_and_a_system_message_come_first(engine: Engine, chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "act").write_text("Act I\n")
    out, _ = chat("Who?", "And?", options=("-f", str(tmp_path / "act"), "--system", "Be brief."))
    assert out == answers(engine, "Act I\n\nWho?", "And?", before="s:Be brief.\n")


def test_rewind_and_clear_take_questions_back(engine: Engine, chat: Chat) -> None:
    one, other = answers(engine, "Who?"), answers(engine, "Who?", "Where?")
    out, err = chat("Who?", "When?", "/rewind", "Where?", "/clear", "Who?")
    assert out == [*answers(engine, "Who?", "When?"), *other[len(one) :], *one]
    assert "tokens are left" in err


def test_a_chat_is_saved_loaded_and_gone_on_with(engine: Engine, chat: Chat, tmp_path: Path) -> None:
    file = str(tmp_path / "saved")
    first, err = chat("Who?", f"/save {file}")
    assert f"triforce: saved {len(engine.load_session(file)):,} tokens in {file}" in err
    out, err = chat("Other?", f"/load {file}", "And then?", "/save")
    assert [*first, *out[len(answers(engine, "Other?")) :]] == answers(engine, "Who?", "And then?")
    assert f"triforce: loaded {len(ASKED) + 5} tokens from {file}; /save writes there from here on" in err
    out, _ = chat("Where?", options=("--session", file))
    assert [*answers(engine, "Who?", "And then?"), *out] == answers(engine, "Who?", "And then?", "Where?")
    out, _ = chat("/rewind", "/rewind", "/rewind", "Who?", options=("--session", file))
    assert out == first


def test_mistakes_are_told_and_end_nothing(engine: Engine, chat: Chat, tmp_path: Path) -> None:
    out, err = chat(
        "/what", "/save", "/load", "/load absent", "/rewind", "Who?", f"/save {tmp_path}", "x" * 600, "/stats"
    )
    assert out == answers(engine, "Who?")
    for line in (
        "unknown command /what: see /help",
        "/save needs the name of a file",
        "/load needs the name of a file",
        "absent: no such file; check the path",
        "there is no question to take back",
        f"cannot save {tmp_path} (it is a directory)",
        "more than the 512 that the model allows",
    ):
        assert line in err
    assert "8 read in" in err
    assert f"session  {len(ASKED) + 5} of 512 tokens" in err


def test_help_names_every_command_and_quit_ends_it(engine: Engine, chat: Chat) -> None:
    out, err = chat("/help", "//not a command", "/quit", "Who?")
    assert out == answers(engine, "/not a command")
    for command in ("/save", "/load", "/rewind", "/clear", "/stats", "/quit", "Ctrl-D", "Ctrl-C"):
        assert command in err


def test_a_model_without_a_template_is_refused_before_the_first_line(
    engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.tokenizer.chat_template = None
    assert main(["chat"]) == 1
    assert "no chat template" in capsys.readouterr().err


def test_bytes_that_are_no_utf8_end_it_and_keep_the_session(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Who?\n" + b"x" * 20000 + b"\xe9\n"), "utf-8"))
    assert main(["chat", *OPTIONS, "--session", str(tmp_path / "saved")]) == 1
    assert "standard input is not UTF-8" in capsys.readouterr().err
    assert engine.load_session(tmp_path / "saved").text.startswith("u:Who?")


def test_an_empty_conversation_takes_the_place_of_nothing(engine: Engine, chat: Chat, tmp_path: Path) -> None:
    file = tmp_path / "saved"
    first, _ = chat("Who?", options=("--session", str(file)))
    before = file.read_bytes()
    _, err = chat("/clear", "/save", options=("--session", str(file)))
    assert f"there is nothing to save in {file} yet: ask something first" in err
    assert f"nothing is left to save: {file} stays as it was" in err
    _, err = chat("x" * 600, f"/save {file}")
    assert f"there is nothing to save in {file} yet" in err
    assert file.read_bytes() == before
    assert first == answers(engine, "Who?")


def test_another_file_is_loaded_after_the_session_is_saved(engine: Engine, chat: Chat, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    chat("Where?", f"/save {other}")
    chat("Who?", f"/load {other}", "When?", options=("--session", str(one)))
    assert engine.load_session(one).text.startswith(ASKED)
    assert "When?" not in engine.load_session(one).text
    assert "When?" not in engine.load_session(other).text, "only /save writes it"
    kept = len(engine.load_session(one))
    for spelled in (one, one.parent / ".." / one.parent.name / "one"):
        chat("Who?", f"/load {spelled}", options=("--session", str(one)))
        assert len(engine.load_session(one)) == kept, "what was asked before it was loaded again is let go"


def test_a_document_taken_back_goes_before_the_next_question(engine: Engine, chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "act").write_text("Act I\n")
    out, _ = chat("Who?", "/rewind", "Where?", "And?", "/clear", "Why?", options=("-f", str(tmp_path / "act")))
    who, where, why = (f"Act I\n\n{question}" for question in ("Who?", "Where?", "Why?"))
    assert out == [*answers(engine, who), *answers(engine, where, "And?"), *answers(engine, why)]


def test_a_document_that_a_session_begins_with_is_not_added_again(engine: Engine, chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "act").write_text("Act I")
    saved = str(tmp_path / "saved")
    options = ("-f", str(tmp_path / "act"), "--session", saved)
    first, _ = chat("Who?", options=options)
    second, err = chat("And?", options=options)
    assert [*first, *second] == answers(engine, "Act I\n\nWho?", "And?")
    assert "is added" not in err
    third, err = chat("Where?", f"/load {saved}", "/rewind", "/rewind", "Who?", options=("-f", str(tmp_path / "act")))
    assert "the document goes before the next question" in err
    assert third[-len(first) :] == first


def test_a_file_that_is_no_session_is_not_replaced(engine: Engine, chat: Chat, tmp_path: Path) -> None:
    (tmp_path / "act").write_text("Act I")
    _, err = chat("Who?", f"/save {tmp_path / 'act'}")
    assert f"{tmp_path / 'act'} is no session file, and is not replaced: choose another name" in err
    assert (tmp_path / "act").read_text() == "Act I"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    _, err = chat(
        "Who?", f"/save {tmp_path / 'pipe'}", f"/save {tmp_path / ('x' * 300)}", f"/save {tmp_path / 'empty'}"
    )
    assert "(it is no regular file)" in err
    assert "name too long" in err
    assert len(engine.load_session(tmp_path / "empty")) == len(ASKED) + 5


def test_a_document_that_leaves_no_room_ends_it_at_once(
    engine: Engine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "long").write_text("x" * engine.context_length)
    assert main(["chat", *OPTIONS, "-f", str(tmp_path / "long")]) == 1
    assert "1 more than the 512 that the model allows" in capsys.readouterr().err
    assert main(["chat", *OPTIONS, "-f", "-"]) == 1
    assert "-f - reads standard input, which the questions come from: name a file" in capsys.readouterr().err


def test_a_document_is_asked_with_once_though_an_answer_fails(
    engine: Engine, chat: Chat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "act").write_text("Act I")
    step, failing = triforce.stream.step, iter([False, True])

    def fails_once(*given: Any) -> Any:
        if next(failing, False):
            raise UsageError("nothing may follow")
        return step(*given)

    monkeypatch.setattr("triforce.stream.step", fails_once)
    file = tmp_path / "saved"
    _, err = chat("Who?", "And?", options=("-f", str(tmp_path / "act"), "--session", str(file)))
    assert "nothing may follow" in err
    assert engine.load_session(file).text.count("Act I") == 1


def test_a_document_added_to_another_conversation_is_told(engine: Engine, chat: Chat, tmp_path: Path) -> None:
    document, file = tmp_path / "act", tmp_path / "saved"
    document.write_text("Act I")
    chat("Who?", options=("--session", str(file)))
    length = len(engine.load_session(file))
    _, err = chat("Who?", options=("-f", str(document), "--session", str(file)))
    assert f"{file} goes on: {document} is added to its {length} tokens (leave out -f to only ask)" in err
