"""`triforce doctor` prints what was measured, and a finding for each thing that is slow."""

from __future__ import annotations

import pytest

from triforce.cli import main
from triforce.cli.doctor import findings
from triforce.machine import Machine
from triforce.native import kernels


def machine(
    kernels: str | None = "avx2", attention_bandwidth: float = 20e9, one_thread: float = 80e9, busy: float = 0.1
) -> Machine:
    return Machine("A Processor", 2, "2.13.0", "AVX2", kernels, 25e9, 150e9, attention_bandwidth, one_thread, busy)


def test_it_prints_every_figure_and_a_finding(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triforce.machine.measure", machine)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for figure in ("A Processor", "avx2", "25.0 GB/s", "150 GFLOP/s", "20.0 GB/s", "* 6.0 operations per byte"):
        assert figure in out


def test_slow_attention_and_portable_kernels_are_found() -> None:
    assert "attention reads at 20% of the copy bandwidth" in findings(machine(attention_bandwidth=5e9))[0]
    assert "none of AVX2, AVX-512 or NEON" in findings(machine("portable"))[0]


def test_cores_that_others_use_are_found_with_their_remedy() -> None:
    assert [line for line in findings(machine()) if "--threads" in line] == []
    busy, shared = findings(machine(busy=1.5, one_thread=140e9))[:2]
    assert "the load of the last minute is 1.5 on 2 threads" in busy
    assert "2 threads multiply 1.1 times as fast as one" in shared
    assert "--threads" in busy and "--threads" in shared


def test_missing_kernels_are_found_with_their_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("triforce.native.library._built", list)
    assert "install a C compiler, then triforce again" in findings(machine(None))[0]


def test_the_command_line_says_once_what_is_lost_without_kernels(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fake_engine import FakeEngine

    kernels.cache_clear()
    monkeypatch.setenv("TRIFORCE_NATIVE", "0")
    monkeypatch.setattr("triforce.load", FakeEngine().load, raising=False)
    monkeypatch.setattr("triforce.cli.options.fetch_model", lambda name: name)
    assert main(["generate", "Speak"]) == 0
    assert capsys.readouterr().err.count("native kernels are turned off by TRIFORCE_NATIVE=0") == 1
    kernels.cache_clear()


def test_a_bad_number_of_threads_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--threads", "0"]) == 1
    assert "--threads is 0: use at least 1" in capsys.readouterr().err
