"""README and docs do what they say: their Python runs, their command lines parse, their links and targets exist."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import tokenizers
from tiny_engine import tiny_engine
from transformers import PreTrainedTokenizerFast

import triforce
from triforce.cli import main
from triforce.cli.parser import build_parser
from triforce.cli.registry import COMMANDS
from triforce.engine import Engine

ROOT = Path(__file__).parent.parent
PAGES = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md") if path.name != "log.md")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", *PAGES)
ENDS = (0,)  # the form of a text can end only where the model knows an end


def blocks(language: str, document: str = "README.md") -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(program: str, document: str = "README.md") -> Iterator[list[str]]:
    """The words of each call of `program` in a shell block; a pipe or redirection ends it."""
    for line in "".join(blocks("sh", document)).splitlines():
        for part in re.split(r"[|>]", line):
            words = shlex.split(part, comments=True)
            if words[:1] == [program]:
                yield words[1:]


def talking_engine() -> Engine:
    """A tiny engine with a chat template."""
    engine = tiny_engine(ENDS, max_position=4096, special=ENDS)
    engine.tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant: "
    return engine


@pytest.fixture
def small_world(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A directory with a book, and a tiny engine and tokenizer under whatever name."""
    monkeypatch.setattr(triforce, "load", lambda *_, **__: talking_engine(), raising=False)
    monkeypatch.setattr("triforce.model.load", lambda *_, **__: tiny_engine(max_position=4096))
    monkeypatch.setattr("triforce.pull.resolve_model", lambda name: tmp_path / name)
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("It was the best of times, it was the worst of times. " * 40, encoding="utf-8")
    alphabet = {byte: i for i, byte in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}
    backend = tokenizers.Tokenizer(tokenizers.models.BPE(alphabet, []))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="!", padding_side="left")
    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: tokenizer)


def run_blocks(document: str) -> int:
    """Run the Python of `document` in order; returns how many blocks there were."""
    namespace: dict[str, object] = {}
    for block in blocks("python", document):
        exec(compile(block, document, "exec"), namespace)
    return len(blocks("python", document))


@pytest.mark.usefixtures("small_world")
def test_every_python_block_runs_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_blocks("README.md") >= 2
    out = capsys.readouterr().out
    assert "tokens per second" in out
    assert re.search(r"^sparse \d+ \d+ \d+$", out, re.MULTILINE)


def test_every_command_line_parses() -> None:
    parser = build_parser(COMMANDS)
    used = {parser.parse_args(words).command for words in commands("triforce")}
    assert {"generate", "pull", "info"} <= used


@pytest.mark.usefixtures("small_world")
@pytest.mark.parametrize("page", PAGES)
def test_every_python_block_of_a_page_runs_in_order(page: str) -> None:
    run_blocks(page)


@pytest.mark.usefixtures("small_world")
def test_the_examples_of_structured_output_print_what_they_ask_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_blocks("docs/structured.md") >= 2
    out = capsys.readouterr().out
    for line in (r"^1[567]\d\d$", r"^(yes|no)$", r"^\d{4}-\d{2}-\d{2}$"):
        assert re.search(line, out, re.MULTILINE), line


@pytest.mark.parametrize("page", PAGES)
def test_every_command_line_of_a_page_parses(page: str) -> None:
    parser = build_parser(COMMANDS)
    for words in commands("triforce", page):
        assert parser.parse_args(words).command


@pytest.mark.usefixtures("small_world")
def test_the_commands_of_sessions_run_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("triforce.pull.resolve_model", lambda name, _: Path(name))
    lines = list(commands("triforce", "docs/sessions.md"))
    for words in lines:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Who?\nWhy?\n/rewind\n/stats\n")))
        assert main([*words, "-n", "4"]) == 0, capsys.readouterr().err
    assert len(lines) == 6
    assert {path.name for path in Path().glob("*.session")} == {"book.session", "tale.session", "talk.session"}


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [word for words in commands("make") for word in words]
    assert {"demo", "test"} <= set(targets)
    missing = [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)]
    assert not missing


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    path = ROOT / document
    links = re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text(encoding="utf-8"))
    missing = [link for link in links if not (path.parent / link).exists()]
    assert not missing
