"""Stop strings: what is found depends on the text alone, and no more waits than must."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from triforce.text.stops import StopStrings

letters = st.text("ab", max_size=12)
stops = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


def first_stop(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the first stop string, by looking at every end and every beginning."""
    for end in range(1, len(text) + 1):
        for start in range(end):
            if text[start:end] in stops:
                return text[:start], text[start:end]
    return text, None


def pushed(stops: list[str], pieces: list[str]) -> tuple[str, str | None, str]:
    strings, shown = StopStrings(stops), ""
    for piece in pieces:
        settled, found = strings.push(piece)
        shown += settled
        if found is not None:
            return shown, found, strings.held
    return shown, None, strings.held


@settings(max_examples=500)
@given(pieces=st.lists(letters, max_size=6), stops=stops)
def test_pieces_give_what_the_whole_text_gives(pieces: list[str], stops: list[str]) -> None:
    shown, found, held = pushed(stops, pieces)
    assert (shown + held, found) == first_stop("".join(pieces), stops)


@settings(max_examples=500)
@given(pieces=st.lists(letters, max_size=6), stops=stops)
def test_no_more_waits_than_may_become_a_stop_string(pieces: list[str], stops: list[str]) -> None:
    shown, found, held = pushed(stops, pieces)
    if found is None:
        text = "".join(pieces)
        forming = [length for stop in stops for length in range(1, len(stop)) if text.endswith(stop[:length])]
        assert len(held) == max(forming, default=0)
        assert shown + held == text


def test_what_was_completed_while_not_armed_is_text() -> None:
    strings = StopStrings(["bc", "abcd"])
    assert strings.push("abc", armed=False) == ("", None)
    assert strings.push("x") == ("abcx", None)
    assert strings.push("ab", armed=False) == ("", None)
    assert strings.push("c") == ("a", "bc")
