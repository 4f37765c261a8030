"""`triforce generate --session` over a small random model, and what Ctrl-C leaves of it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from chatting import ASKED, OPTIONS, answers, chatting_engine, said

import triforce
from triforce.cli import main
from triforce.config import SamplingParams
from triforce.engine import Engine

SCRIPT = str(Path(__file__).with_name("slow_engine.py"))


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
        f"triforce: cannot save {tmp_path / 'saved'} (No space left on device): choose another place, or make room\n"
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


@pytest.mark.parametrize("first", ["token 3", "save"])
def test_ctrl_c_while_it_saves_waits_for_the_file(first: str, tmp_path: Path) -> None:
    """However often it is pressed; what was there before is replaced by the whole."""
    file = tmp_path / "saved"
    process = start("generate", "x" * 30, "-n", "8", "--method", "ar", "--session", str(file))
    for moment in dict.fromkeys([first, "save"]):
        wait_for(process, moment)
        process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    said_so_far = out.removesuffix("\n")
    session = chatting_engine(4096).load_session(file)
    assert (process.returncode, err) == (130, f"triforce: saved {len(session)} tokens in {file}\n")
    assert session.text == "x" * 30 + said_so_far
    assert len(session) - 30 == 8 if first == "save" else 2 <= len(session) - 30 < 8


def test_ctrl_c_while_a_chat_saves_at_its_end_waits_for_the_file(tmp_path: Path) -> None:
    file = tmp_path / "saved"
    process = start("chat", "-n", "2", "--method", "ar", "--session", str(file))
    assert process.stdin is not None
    process.stdin.write("Who?\n")
    process.stdin.close()
    process.stdin = None
    wait_for(process, "save")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert chatting_engine().load_session(file).text.startswith(ASKED)


def test_ctrl_c_while_a_chat_saves_by_command_ends_neither(tmp_path: Path) -> None:
    file = tmp_path / "saved"
    process = start("chat", "-n", "2", "--method", "ar")
    assert process.stdin is not None
    process.stdin.write(f"Who?\n/save {file}\n")
    process.stdin.flush()
    wait_for(process, "save")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate("And?\n", timeout=60)
    assert process.returncode == 0
    assert f"saved {len(chatting_engine().load_session(file)):,} tokens in {file}" in err
    assert out.count("\n") >= 2, "the next question is answered"


@pytest.mark.usefixtures("engine")
def test_what_is_no_file_for_a_session_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    generate("Who?", "--session", "", code=1)
    assert "--session has an empty name" in capsys.readouterr().err
    os.mkfifo(tmp_path / "pipe")
    generate("Who?", "--session", str(tmp_path / "pipe"), code=1)
    assert f"{tmp_path / 'pipe'} is no regular file: name a file" in capsys.readouterr().err
    with pytest.raises(triforce.TriForceError, match="pipe is no regular file: give a session file"):
        chatting_engine().load_session(tmp_path / "pipe")


def test_a_prompt_that_is_refused_at_its_first_token_is_not_kept(tmp_path: Path, engine: Engine) -> None:
    file = tmp_path / "saved"
    generate("Once", "--session", str(file))
    before = file.read_bytes()
    for options in (["--chat"], []):
        generate("Q", *options, "--session", str(file), "--choice", "a", "--bad-word", "a", code=1)
    assert file.read_bytes() == before
    assert engine.load_session(file).text.startswith("Once")


def test_a_file_added_again_is_told(engine: Engine, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    document, file = tmp_path / "act", tmp_path / "saved"
    document.write_text("Act I")
    generate("-f", str(document), "Who?", "--session", str(file))
    length = len(engine.load_session(file))
    assert "is added" not in capsys.readouterr().err
    generate("-f", str(document), "Who?", "--session", str(file))
    assert f"{document} is added to its {length} tokens" in capsys.readouterr().err
