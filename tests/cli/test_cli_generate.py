"""`triforce generate` over a fake engine, in this process."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from fake_engine import WORDS, FakeEngine, FakeStream, Install, give_input

import triforce
from triforce.cli import main
from triforce.cli.parser import build_parser
from triforce.cli.registry import COMMANDS
from triforce.errors import ModelError
from triforce.pull import cached

TEXT = "".join(WORDS)


def test_text_goes_to_stdout_and_nothing_to_stderr(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(FakeEngine())
    assert main(["generate", "Speak"]) == 0
    assert capsys.readouterr() == (TEXT + "\n", "")


def test_text_is_streamed_as_it_comes(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(FakeEngine(error=AssertionError(), error_at=2))
    with pytest.raises(AssertionError):
        main(["generate", "Speak"])
    assert capsys.readouterr().out == "To be, \n"


def test_json_is_one_object_with_the_whole_record(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(FakeEngine())
    assert main(["generate", "Speak", "--json"]) == 0
    out, err = capsys.readouterr()
    record = json.loads(out)
    assert out.count("\n") == 1
    assert err == ""
    assert record["text"] == TEXT
    assert record["token_ids"] == list(range(len(WORDS)))
    assert (record["prompt_tokens"], record["completion_tokens"], record["finish_reason"]) == (4, 6, "length")
    assert record["timings"]["prefill_tokens_per_second"] == 12.0
    assert record["timings"]["decode_tokens_per_second"] == 3.0
    assert {"load_seconds", "prefill_seconds", "decode_seconds"} <= set(record["timings"])
    assert record["levels"][1] == {"name": "sparse", "passes": 6, "drafted": 8, "accepted": 6, "seconds": 0.5}


def test_several_texts_are_told_apart(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    engine = install(FakeEngine())
    assert main(["generate", "Speak", "-N", "2", "--stats"]) == 0
    out, err = capsys.readouterr()
    assert out == f"--- 1 of 2 ---\n{TEXT}\n--- 2 of 2 ---\n{TEXT}\n"
    install(FakeEngine(()))  # as where time runs out while the prompt is read
    assert main(["generate", "Speak", "-N", "2"]) == 0
    assert capsys.readouterr().out == "--- 1 of 2 ---\n--- 2 of 2 ---\n"
    assert err.count("3 read in 0.25 s") == 2
    assert engine.call["n"] == 2


def test_several_texts_are_one_json_object_per_line(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(FakeEngine())
    assert main(["generate", "Speak", "-N", "2", "--json"]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["index"] for record in records] == [0, 1]
    assert [record["text"] for record in records] == [TEXT, TEXT]


def test_an_error_in_a_later_text_keeps_those_before(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    engine = install(FakeEngine())

    class Breaking(FakeEngine):
        def streams(self, *args: Any, **settings: Any) -> Iterator[FakeStream]:
            yield from engine.streams(*args, **settings)
            engine.error, engine.error_at = ModelError("the model broke"), 2
            yield from engine.streams(*args, **settings)

    install(Breaking())
    assert main(["generate", "Speak", "-N", "2", "--json"]) == 1
    out, err = capsys.readouterr()
    records = [json.loads(line) for line in out.splitlines()]
    assert (records[0]["text"], records[0]["finish_reason"]) == (TEXT, "length")
    assert (records[-1]["text"], records[-1]["finish_reason"]) == ("To be, ", "interrupted")
    assert err == "triforce: the model broke\n"


def test_stats_go_to_stderr(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(FakeEngine())
    assert main(["generate", "Speak", "--stats"]) == 0
    out, err = capsys.readouterr()
    assert out == TEXT + "\n"
    assert "3 read in 0.25 s (12.0/s)" in err
    assert "sparse         6        8         6  75.0%     0.50" in err


def test_every_option_reaches_the_engine(install: Install) -> None:
    engine = install(FakeEngine())
    sampling = "-n 7 --temperature 0.5 --top-p 0.9 --top-k 40 --min-p 0.1 --seed 3"
    decoding = "--method draft --budget 512 --gamma1 2 --gamma2 3 --policy recent"
    model = "-m large --draft small --dtype float32 --cache-dtype bfloat16 --device cpu --rope-scaling yarn:2 --chat"
    stops = "--stop THE --stop END --stop-id 5 --stop-id 6 --ignore-eos --include-stop --max-seconds 2.5 --logprobs 3"
    words = [*sampling.split(), *decoding.split(), *model.split(), *stops.split(), "--json"]
    assert main(["generate", "Speak", *words]) == 0
    assert engine.call == {
        "model": "models/large",
        "draft": "models/small",
        "dtype": "float32",
        "cache_dtype": "bfloat16",
        "device": "cpu",
        "rope_scaling": "yarn:2",
        "prompt": "Speak",
        "chat": True,
        "n": 1,
        "sampling": triforce.SamplingParams(
            0.5,
            0.9,
            40,
            0.1,
            3,
            7,
            stop=("THE", "END"),
            stop_token_ids=(5, 6),
            ignore_eos=True,
            include_stop=True,
            max_seconds=2.5,
            logprobs=3,
        ),
        "decoding": triforce.Decoding("draft", gamma1=2, gamma2=3, budget=512, policy="recent"),
    }


def test_every_control_reaches_the_engine(install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine = install(FakeEngine())
    monkeypatch.chdir(tmp_path)
    Path("rules_of_mine.py").write_text("def calm(token_ids, logits):\n    return logits\n")
    controls = (
        "--typical-p 0.9 --repetition-penalty 1.2 --presence-penalty 0.5 --frequency-penalty -0.1 --no-repeat-ngram 3 "
        "--logit-bias 7=-2.5 --logit-bias 9=1 --bad-word damn --bad-word blast --min-new-tokens 4 "
        "--processor rules_of_mine:calm"
    )
    assert main(["generate", "Speak", *controls.split()]) == 0
    sampling = engine.call["sampling"]
    assert sampling == triforce.SamplingParams(
        typical_p=0.9,
        repetition_penalty=1.2,
        presence_penalty=0.5,
        frequency_penalty=-0.1,
        no_repeat_ngram_size=3,
        logit_bias={7: -2.5, 9: 1.0},
        bad_words=["damn", "blast"],
        min_new_tokens=4,
        processors=sampling.processors,
    )
    assert [processor.__name__ for processor in sampling.processors] == ["calm"]


@pytest.mark.parametrize(
    ("arguments", "settings"),
    [
        (["--json-schema", '{"type": "null"}'], {"json_schema": '{"type": "null"}'}),
        (["--json-schema", "schema.json"], {"json_schema": ' {"type": "boolean"}'}),
        (["--regex", "a+b"], {"regex": "a+b"}),
        (["--choice", "yes", "--choice", "no way"], {"choice": ("yes", "no way")}),
        (["--grammar", "sums.lark"], {"grammar": 'start: "1+1"'}),
    ],
)
def test_a_form_is_given_in_place_or_as_a_file(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], settings: dict[str, str]
) -> None:
    engine = install(FakeEngine())
    monkeypatch.chdir(tmp_path)
    Path("schema.json").write_text(' {"type": "boolean"}')
    Path("sums.lark").write_text('start: "1+1"')
    assert main(["generate", "Speak", *arguments]) == 0
    assert engine.call["sampling"] == triforce.SamplingParams(**settings)  # type: ignore[arg-type]


def test_every_control_has_an_option() -> None:
    parser = build_parser(COMMANDS)
    arguments = vars(parser.parse_args(["generate", "Speak"]))
    spelt = {"no_repeat_ngram_size": "no_repeat_ngram", "bad_words": "bad_word", "processors": "processor"}
    spelt |= {"stop_token_ids": "stop_id", "criteria": "stop"}  # functions have no flag
    for field in fields(triforce.SamplingParams):
        assert spelt.get(field.name, field.name) in arguments, field.name


def test_without_options_the_defaults_are_those_of_the_library(install: Install) -> None:
    engine = install(FakeEngine())
    assert main(["generate", "Speak"]) == 0
    assert engine.call["sampling"] == triforce.SamplingParams()
    assert engine.call["decoding"] == triforce.Decoding()
    assert engine.call["model"] == "models/smollm2"


@pytest.mark.parametrize(
    ("arguments", "stdin", "prompt"),
    [
        (["-f", "FILE"], b"", "Act I\r\nScène\n"),
        (["-f", "FILE", "Who?"], b"", "Act I\r\nScène\n\nWho?"),
        (["-f", "-"], b"piped\n", "piped\n"),
        (["-"], b"piped", "piped"),
        ([], b"piped", "piped"),
        (["-f", "FILE", "-"], b"Who?", "Act I\r\nScène\n\nWho?"),
        (["-f", "-", "Who?"], "\ufeffpiped".encode(), "piped\n\nWho?"),
        (["given"], b"left alone", "given"),
    ],
)
def test_the_prompt_is_put_together_from_file_argument_and_stdin(
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    stdin: bytes,
    prompt: str,
) -> None:
    engine = install(FakeEngine())
    file = tmp_path / "act.txt"
    file.write_bytes("Act I\r\nScène\n".encode())
    give_input(monkeypatch, stdin)
    assert main(["generate", *[str(file) if word == "FILE" else word for word in arguments]]) == 0
    assert engine.call["prompt"] == prompt


def test_an_error_on_the_way_loses_no_text(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(FakeEngine(error=ModelError("the model broke:\n buy a new one"), error_at=3))
    assert main(["generate", "Speak"]) == 1
    assert capsys.readouterr() == ("To be, or \n", "triforce: the model broke: buy a new one\n")
    assert main(["generate", "Speak", "--json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert (record["text"], record["finish_reason"]) == ("To be, or ", "interrupted")


def test_a_refused_prompt_prints_no_json(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(FakeEngine(error=ModelError("too long: shorten it"), error_at=0))
    assert main(["generate", "Speak", "--json", "--stats"]) == 1
    assert capsys.readouterr() == ("", "triforce: too long: shorten it\n")


def test_a_character_the_terminal_lacks_does_not_end_the_text(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(FakeEngine())
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["generate", "Speak"]) == 0
    assert raw.getvalue().decode().strip() == TEXT.replace("é", "?")


def test_a_text_that_ends_at_once_is_explained(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(FakeEngine(("",), finish="stop", stop_reason=2))
    assert main(["generate", "Speak"]) == 0
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "the text ended at once, with token 2: try --chat" in err
    assert main(["generate", "Speak", "--json"]) == 0
    assert capsys.readouterr().err == ""
    install(FakeEngine(("",), finish="stop", stop_reason="To"))  # a stop string was asked for
    assert main(["generate", "Speak"]) == 0
    assert capsys.readouterr().err == ""


def test_a_model_that_drafts_for_itself_is_announced(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(FakeEngine())
    assert main(["generate", "Speak", "--method", "draft"]) == 0
    assert "no --draft is given: the model drafts from its own last 256 tokens" in capsys.readouterr().err
    assert main(["generate", "Speak", "--method", "draft", "--draft", "."]) == 0
    assert capsys.readouterr().err == ""


def test_a_download_without_a_terminal_is_one_line(
    install: Install, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install(FakeEngine())
    monkeypatch.setenv("TRIFORCE_CACHE", str(tmp_path))
    monkeypatch.setattr("triforce.pull.cached", cached)
    assert main(["generate", "Speak", "-m", "smollm2"]) == 0
    assert re.fullmatch(r"triforce: downloading smollm2, \d+ MB\n", capsys.readouterr().err)


def test_an_extended_context_is_announced(install: Install, capsys: pytest.CaptureFixture[str]) -> None:
    install(FakeEngine())
    assert main(["generate", "Speak", "--rope-scaling", "yarn:2"]) == 0
    assert "triforce: yarn:2 makes the context 16,384 tokens" in capsys.readouterr().err
