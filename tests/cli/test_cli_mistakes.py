"""What a user of `triforce generate` gets wrong: one line with its remedy, before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_engine import FakeEngine, Install, give_input

from triforce.cli import main


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["", "-n", "3"], "the prompt is empty"),
        ([], "no prompt: give some text, a file with -f FILE, or -"),
        (["-", "-f", "-"], "asked for twice"),
        (["-f", "empty.txt", "-f", "latin.txt"], "-f is given twice: put the texts into one file"),
        (["-f", "absent.txt"], "absent.txt: no such file"),
        (["-f", "."], ". is a directory"),
        (["-f", "latin.txt"], "latin.txt is not UTF-8 at byte 3: convert it, as with iconv -f latin-1 -t utf-8 latin"),
        (["-f", "wide.txt"], "not UTF-8 at byte 0: convert it, as with iconv -f utf-16 -t utf-8 wide.txt"),
        (["-f", "empty.txt", "Who?"], "empty.txt is empty"),
        (["Speak", "-n", "0"], "-n is 0: ask for at least 1 token"),
        (["Speak", "-n", "x"], "argument -n/--max-new-tokens: invalid int value: 'x'; see triforce generate --help"),
        (["Speak", "--temperature", "-1"], "temperature is -1: use at least 0"),
        (["Speak", "--temperature", "nan"], "temperature is nan"),
        (["Speak", "--top-p", "0"], "top_p is 0.0"),
        (["Speak", "--top-k", "-1"], "top_k is -1"),
        (["Speak", "--min-p", "2"], "min_p is 2: use at most 1"),
        (["Speak", "--typical-p", "0"], "typical_p is 0.0"),
        (["Speak", "--repetition-penalty", "0"], "repetition_penalty is 0: use at least"),
        (["Speak", "--min-new-tokens", "9", "-n", "8"], "min_new_tokens is 9, more than max_new_tokens 8"),
        (["Speak", "--logit-bias", "the=3"], "--logit-bias is 'the=3': give a token id and a number, as in 42=-5"),
        (["Speak", "--logit-bias", "3"], "--logit-bias is '3': give a token id and a number"),
        (["Speak", "--bad-word", ""], "bad_words has an empty word: leave it out"),
        (["Speak", "--processor", "nosuch:f"], "--processor nosuch:f cannot be imported (No module named 'nosuch')"),
        (["Speak", "--processor", "json"], "--processor json cannot be imported"),
        (["Speak", "--json-schema", "absent.json"], "absent.json: no such file"),
        (["Speak", "--json-schema", "{"], "json_schema is not JSON"),
        (["Speak", "--json-schema", '{"type": "objct"}'], "json_schema cannot be used (Invalid type: objct): correct"),
        (["Speak", "--regex", "("], "regex cannot be used (unclosed group): correct it"),
        (["Speak", "--grammar", "."], ". cannot be read (Is a directory): give a text file"),
        (["Speak", "--grammar", "latin.txt"], "latin.txt cannot be read (not UTF-8): give a text file"),
        (["Speak", "--regex", "a", "--choice", "b"], "regex and choice are given: one call takes one of them"),
        (["Speak", "--budget", "8"], "budget is 8 rows"),
        (["Speak", "--gamma1", "0"], "gamma1 is 0"),
        (["Speak", "--gamma2", "0"], "gamma2 is 0"),
        (["Speak", "--threads", "0"], "--threads is 0"),
        (["Speak", "--method", "magic"], "unknown method 'magic': use one of ar, lookup, draft, retrieval, triforce"),
        (["Speak", "--policy", "magic"], "unknown policy 'magic': use one of"),
        (["Speak", "--dtype", "int8"], "unknown dtype 'int8': use one of auto, float32, bfloat16, float16"),
        (["Speak", "--cache-dtype", "int4"], "unknown cache dtype 'int4': use one of auto, float32, bfloat16, float16"),
        (["Speak", "--rope-scaling", "yarn:1e9"], "rope scaling 'yarn:1e9': use linear:FACTOR"),
        (["Speak", "--stop", ""], "a text of stop is '': give texts of at least one character"),
        (["Speak", "--stop-id", "x"], "argument --stop-id: invalid int value: 'x'; see triforce generate --help"),
        (["Speak", "--stop-id", "-1"], "an id of stop_token_ids is -1: use at least 0"),
        (["Speak", "--max-seconds", "0"], "max_seconds is 0.0: use a number above 0"),
        (["Speak", "--logprobs", "-1", "--json"], "logprobs is -1: use at least 0"),
        (["Speak", "--logprobs", "1"], "--logprobs is printed as JSON only: add --json"),
        (["Speak", "-N", "0"], "-N is 0: use at least 1"),
        (["Speak", "--seed"], "expected one argument; see triforce generate --help"),
        (["Speak", "--temp", "1"], "unknown argument --temp: see triforce generate --help"),
        (["Speak", "aloud"], "unknown argument aloud: see triforce generate --help"),
    ],
)
def test_a_mistake_is_one_line_with_its_remedy_before_anything_is_loaded(
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    says: str,
) -> None:
    engine = install(FakeEngine())
    monkeypatch.chdir(tmp_path)
    Path("latin.txt").write_bytes("café".encode("latin-1"))
    Path("wide.txt").write_bytes("café".encode("utf-16"))
    Path("empty.txt").touch()
    give_input(monkeypatch, b"", terminal=True)
    assert main(["generate", *arguments]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("triforce: ")
    assert err.count("\n") == 1
    assert says in err
    assert not engine.call


@pytest.mark.parametrize("model", ["nosuchmodel", "nosuch.gguf", "./nosuch/model.gguf"])
def test_an_unknown_model_is_one_line_with_its_remedy(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "Speak", "-m", model]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("triforce: ")
    assert err.count("\n") == 1
    assert model in err
    assert "smollm2" in err
