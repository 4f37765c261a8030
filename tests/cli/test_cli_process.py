"""The command as a process: signals, pipes, bytes and what it imports. The engine behind it is a fake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import triforce
from triforce.cli.registry import COMMANDS

SCRIPT = str(Path(__file__).with_name("fake_engine.py"))
GENERATE = [sys.executable, SCRIPT, "generate", "Speak", "-m", "."]  # any directory will do


def start(command: list[str], **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment})


def interrupt(phase: str, *options: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a run that gets Ctrl-C in `phase`."""
    process = start([*GENERATE, *options], FAKE_PAUSE=phase, PYTHONIOENCODING="utf-8")
    assert process.stderr is not None
    assert process.stderr.readline().decode() == f"reached {phase}\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize(("phase", "text"), [("load", ""), ("prefill", ""), ("decode", "To be, \n")])
def test_ctrl_c_ends_cleanly_with_the_text_so_far(phase: str, text: str) -> None:
    assert interrupt(phase) == (130, text, "")


@pytest.mark.parametrize(("phase", "text"), [("load", ""), ("prefill", ""), ("decode", "To be, ")])
def test_ctrl_c_with_json_still_prints_the_object(phase: str, text: str) -> None:
    code, out, err = interrupt(phase, "--json")
    record = json.loads(out)
    assert (code, err) == (130, "")
    assert (record["text"], record["finish_reason"]) == (text, "interrupted")
    assert record["completion_tokens"] == len(record["token_ids"])


@pytest.mark.parametrize("options", [[], ["--json", "--stats"]])
def test_a_closed_pipe_ends_quietly(options: list[str]) -> None:
    process = start([*GENERATE, *options], FAKE_WORDS="20000")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(3)
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait(timeout=60) == 0
    assert err == b""


def test_bytes_that_are_no_utf8_are_named_by_their_place() -> None:
    run = subprocess.run([*GENERATE, "-f", "-"], input=b"caf\xe9", capture_output=True, check=False)
    assert (run.returncode, run.stdout) == (1, b"")
    assert run.stderr == (
        b"triforce: standard input is not UTF-8 at byte 3: convert it, as with iconv -f latin-1 -t utf-8\n"
    )


def test_help_and_version_import_nothing_heavy() -> None:
    program = f"""
import contextlib, io, sys
from triforce.cli import main
for words in ([], *([name] for name in {list(COMMANDS)})):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()) as out:
        main([*words, "--help"])
    assert "usage: triforce" in out.getvalue(), words
main(["version"])
main(["generate", "--unknown"])
for command in (["generate", "Speak"], ["chat"]):
    for option in ("--method", "--policy", "--dtype", "--cache-dtype"):
        assert main([*command, option, "magic"]) == 1
heavy = {{"torch", "numpy", "rich", "tokenizers", "huggingface_hub", "jinja2"}} & set(sys.modules)
assert not heavy, heavy
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"triforce {triforce.__version__}\n"


def test_it_runs_as_a_module_too() -> None:
    run = subprocess.run([sys.executable, "-m", "triforce", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"triforce {triforce.__version__}\n"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere PyTorch brings another OpenMP")
@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, "active 10000 200"),
        ({"GOMP_SPINCOUNT": "7", "KMP_BLOCKTIME": "0"}, "active 7 0"),
        ({"OMP_WAIT_POLICY": "passive"}, "passive None None"),
    ],
)
def test_waiting_threads_spin_briefly_unless_the_environment_says_otherwise(
    environment: dict[str, str], expected: str
) -> None:
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
    code = f"import os, triforce.cli; triforce.cli.main(['version']); print(*map(os.environ.get, {names}))"
    plain = {name: value for name, value in os.environ.items() if name not in names}
    output = subprocess.run(
        [sys.executable, "-c", code], env=plain | environment, capture_output=True, text=True, check=True
    )
    assert output.stdout.splitlines()[-1] == expected


def test_once_the_command_is_over_ctrl_c_disturbs_nothing() -> None:
    program = """
import os, signal, triforce.cli
signal.signal(signal.SIGINT, signal.default_int_handler)
triforce.cli.main = lambda: 7
code = triforce.cli.process()
os.kill(os.getpid(), signal.SIGINT)
print(code)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (0, b"7\n", b"")
