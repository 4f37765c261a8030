"""`triforce chat` and --session over a small random model: lines in, answers out, and nothing lost."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_engine import tiny_engine

import triforce
from triforce.cli import main
from triforce.config import SamplingParams
from triforce.engine import Engine
from triforce.text.tokenizer import Tokenizer

TEMPLATE = "{% for m in messages %}{{ m.role[0] + ':' + m.content + '\n' }}{% endfor %}{{ 'a:' }}"
OPTIONS = ["-n", "5", "--method", "ar"]
ASKED = "u:Who?\na:"  # by the template
SCRIPT = str(Path(__file__).with_name("slow_engine.py"))


def chatting_engine(max_position: int = 512) -> Engine:
    engine = tiny_engine(max_position=max_position)
    engine.tokenizer = Tokenizer(engine.tokenizer._backend, {}, chat_template=TEMPLATE)
    return engine


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """The engine that every model name stands for."""
    engine = chatting_engine()
    monkeypatch.setattr(triforce, "load", lambda *_, **__: engine, raising=False)
    monkeypatch.setattr("triforce.pull.resolve_model", lambda name, _: Path(name))
    return engine


Chat = Callable[..., tuple[list[str], str]]


@pytest.fixture
def chat(engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Chat:
    """Runs `triforce chat` over lines; the answers, and what standard error says."""
    del engine  # every model name stands for it

    def run(*lines: str, options: tuple[str, ...] = ()) -> tuple[list[str], str]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\n".join(lines).encode())))
        assert main(["chat", "any", *OPTIONS, *options]) == 0
        out, err = capsys.readouterr()
        return out.split("\n")[:-1], err

    return run


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
    assert f"triforce: loaded {len(ASKED) + 5} tokens from {file}" in err
    out, _ = chat("Where?", options=("--session", file))
    assert [*answers(engine, "Who?", "And then?"), *out] == answers(engine, "Who?", "And then?", "Where?")
    out, _ = chat("/rewind", "/rewind", "/rewind", "Who?", options=("--session", file))
    assert out == first


def test_mistakes_are_told_and_end_nothing(engine: Engine, chat: Chat, tmp_path: Path) -> None:
    out, err = chat(
        "/what", "/save", "/load", "/load absent", "/rewind", f"/save {tmp_path}", "x" * 600, "Who?", "/stats"
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


# triforce generate --session


def generate(*words: str, code: int = 0) -> None:
    assert main(["generate", *OPTIONS, *words]) == code


def test_generate_goes_on_with_a_session(
    engine: Engine, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"not read")))
    file = str(tmp_path / "saved")
    ids: list[int] = []
    for prompt in ("Once upon a time", " And then", ""):
        generate(*([prompt] if prompt else []), "--session", file, "--json")
        record = json.loads(capsys.readouterr().out)
        ids += engine.tokenizer.encode(prompt)
        fresh = Engine(engine.target, engine.tokenizer)
        expected = fresh.generate(ids, SamplingParams(max_new_tokens=5), triforce.Decoding("ar"))
        assert record["token_ids"] == expected.token_ids
        assert record["prompt_tokens"] == len(ids) == len(engine.load_session(file)) - 5
        assert record["timings"]["prefill_tokens"] <= len(prompt)
        ids += expected.token_ids
    assert len(engine.load_session(file)) == len("Once upon a time") + len(" And then") + 15


def test_generate_asks_in_turns_where_it_chats(
    engine: Engine, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for question in ("Who?", "And then?"):
        generate(question, "--chat", "--session", str(tmp_path / "saved"))
    assert capsys.readouterr().out.split("\n")[:-1] == answers(engine, "Who?", "And then?")


@pytest.mark.usefixtures("engine")
def test_what_a_session_or_a_chat_cannot_do_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    generate("Who?", "-N", "2", "--session", str(tmp_path / "saved"), code=1)
    assert "--session keeps one continuation: leave out -N" in capsys.readouterr().err
    assert main(["chat", "--logprobs", "2"]) == 1
    assert "--logprobs is not shown in a chat" in capsys.readouterr().err


@pytest.mark.usefixtures("engine")
def test_a_new_session_needs_a_prompt_and_a_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    generate("--session", str(tmp_path / "saved"), code=1)
    assert "the prompt is empty" in capsys.readouterr().err
    generate("Who?", "--session", str(tmp_path), code=1)
    assert f"{tmp_path} is a directory: name a file for the session" in capsys.readouterr().err
    generate("Who?", "--session", str(tmp_path / "absent" / "saved"), code=1)
    assert "absent: no such directory; make it" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("engine")
def test_a_prompt_that_does_not_fit_leaves_the_session_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "saved"
    generate("Once", "--session", str(file))
    before = file.read_bytes()
    generate("x" * 600, "--session", str(file), code=1)
    assert file.read_bytes() == before


def test_a_save_that_fails_still_prints_the_text(
    engine: Engine, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    generate("Once", "--session", str(tmp_path / "saved"), code=1)
    out, err = capsys.readouterr()
    assert out == said(engine, "Once") + "\n"
    assert err == (
        f"triforce: cannot save {tmp_path / 'saved'} (No space left on device): choose another file, or make room\n"
    )


# Ctrl-C, in processes of their own


def start(*words: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, SCRIPT, *words], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def wait_for(process: subprocess.Popen[str], what: str) -> None:
    assert process.stderr is not None
    while (line := process.stderr.readline()) != f"reached {what}\n":
        assert line, f"it ended before it reached {what}"


def test_ctrl_c_ends_an_answer_and_keeps_the_chat(tmp_path: Path) -> None:
    file = tmp_path / "saved"
    process = start("chat", "-n", "400", "--method", "ar", "--session", str(file))
    assert process.stdin is not None
    process.stdin.write("Who?\n")
    process.stdin.flush()
    wait_for(process, "token 3")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate("/stats\n", timeout=60)
    assert process.returncode == 0
    assert "interrupted" in err
    session = chatting_engine().load_session(file)
    assert len("u:Who?\na:") + 2 <= len(session) <= len("u:Who?\na:") + 5
    assert session.text == "u:Who?\na:" + out.removesuffix("\n")


@pytest.mark.parametrize("moment", ["prefill", "token 3"])
def test_ctrl_c_in_generate_saves_what_was_read_and_said(moment: str, tmp_path: Path) -> None:
    file = tmp_path / "saved"
    process = start("generate", "x" * 1500, "-n", "400", "--method", "ar", "--session", str(file))
    wait_for(process, moment)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    session = chatting_engine(4096).load_session(file)
    assert session.text == "x" * 1500 + out.removesuffix("\n")
    assert session._cache.length >= 512
