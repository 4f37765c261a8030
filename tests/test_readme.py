"""The README does what it says: its Python runs, its command lines parse, its links and targets exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_engine import tiny_engine

import triforce
from triforce.cli.parser import build_parser
from triforce.cli.registry import COMMANDS

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/structure.md")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def commands(program: str) -> Iterator[list[str]]:
    """The words of each call of `program` in a shell block; a pipe or redirection ends it."""
    for line in "".join(blocks("sh")).splitlines():
        for part in re.split(r"[|>]", line):
            words = shlex.split(part, comments=True)
            if words[:1] == [program]:
                yield words[1:]


def test_every_python_block_runs_in_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(triforce, "load", lambda _: tiny_engine(max_position=4096), raising=False)
    monkeypatch.chdir(tmp_path)
    Path("book.txt").write_text("It was the best of times, it was the worst of times. " * 40, encoding="utf-8")
    namespace: dict[str, object] = {}
    assert len(blocks("python")) >= 2
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), namespace)
    out = capsys.readouterr().out
    assert "tokens per second" in out
    assert re.search(r"^sparse \d+ \d+ \d+$", out, re.MULTILINE)


def test_every_command_line_parses() -> None:
    parser = build_parser(COMMANDS)
    used = {parser.parse_args(words).command for words in commands("triforce")}
    assert {"generate", "pull", "info"} <= used


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
