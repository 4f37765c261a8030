"""Ctrl-C around work whose end must not be lost: it raises, but not twice at once, and waits where it must."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from triforce.cli import interrupts
from triforce.cli.interrupts import Interrupts
from triforce.cli.session import KeptSession


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Ctrl-C raises, though a shell that runs the tests in the background has it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    signal.raise_signal(signal.SIGINT)


def pressed(work: Callable[[Interrupts], None]) -> bool:
    """Whether Ctrl-C leaves the block around `work`."""
    try:
        with Interrupts() as around:
            work(around)
    except KeyboardInterrupt:
        return True
    finally:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    return False


def raises() -> bool:
    try:
        press()
    except KeyboardInterrupt:
        return True
    return False


def test_it_raises_each_time_while_there_is_nothing_to_lose() -> None:
    found: list[bool] = []
    assert not pressed(lambda _: found.extend([raises(), raises()]))
    assert found == [True, True]


def test_guarded_it_raises_but_not_twice_at_once() -> None:
    found: list[bool] = []

    def work(around: Interrupts) -> None:
        around.guard()
        found.extend([raises(), raises(), raises()])

    assert pressed(work), "those that waited leave the block"
    assert found == [True, False, False]


def test_after_some_time_it_raises_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.9, 1.1])
    monkeypatch.setattr(interrupts.time, "monotonic", lambda: next(clock))
    found: list[bool] = []

    def work(around: Interrupts) -> None:
        around.guard()
        found.extend([raises(), raises(), raises()])

    pressed(work)
    assert found == [True, False, True]


def test_held_it_waits_for_the_end_of_the_block() -> None:
    done: list[str] = []

    def work(around: Interrupts) -> None:
        around.hold()
        press()
        done.append("all of it")

    assert pressed(work)
    assert done == ["all of it"]


def test_armed_again_what_waited_is_forgotten() -> None:
    found: list[bool] = []

    def work(around: Interrupts) -> None:
        around.hold()
        press()
        around.arm()
        found.append(raises())

    assert not pressed(work)
    assert found == [True]


def test_a_block_within_another_hands_it_back() -> None:
    found: list[bool] = []

    def pressed_within() -> bool:
        try:
            with Interrupts() as inner:
                inner.hold()
                press()
        except KeyboardInterrupt:
            return True
        return False

    def work(around: Interrupts) -> None:
        around.guard()
        found.append(pressed_within())
        around.hold()
        press()

    assert pressed(work)
    assert found == [True]


def test_where_it_is_ignored_it_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts():
            press()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_changes_nothing() -> None:
    def work() -> None:
        with Interrupts():
            found.append(signal.getsignal(signal.SIGINT) is signal.default_int_handler)

    found: list[bool] = []
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]


@pytest.mark.parametrize("moment", ["work", "hold", "save"])
def test_whenever_it_is_pressed_the_end_is_saved(moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the work, as the work ends, and while it is saved, twice each time."""
    kept, done = KeptSession(None), []

    def here(now: str) -> None:
        if now == moment:
            try:
                press()
            finally:
                press()

    def hold() -> None:
        here("hold")
        Interrupts.hold(kept._interrupts)

    def save() -> None:
        here("save")
        done.append("saved")

    kept._interrupts.guard()
    monkeypatch.setattr(kept, "hold", hold)
    monkeypatch.setattr(kept, "save", save)
    with pytest.raises(KeyboardInterrupt):
        kept.saving(lambda: here("work"))
    assert done == ["saved"]
