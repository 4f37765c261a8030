"""Stop strings in a text that comes piece by piece. Knows nothing of tokens: characters in, settled characters out."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Finds the first of `stops`, and holds back what may become one.

    The one that ends first is found, the longest among those that end with the same character; so the result is a
    property of the text, however it was cut into pieces. `held` is the text that waits: the longest end of the text so
    far that is the beginning of a stop string.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would end every text"
        self._stops = tuple(stops)
        self._longest = max(map(len, stops), default=0)
        self.held = ""

    def push(self, text: str, armed: bool = True) -> tuple[str, str | None]:
        """The text that `text` settles, and the stop string that it completed, which is not part of that text.

        While not `armed`, stop strings that are completed are text like any other.
        """
        known, text = len(self.held), self.held + text
        found = self._first(text, known) if armed else None
        if found is not None:
            self.held = ""
            return text[: found[0]], found[1]
        settled = len(text) - self._forming(text)
        self.held = text[settled:]
        return text[:settled], None

    def _first(self, text: str, known: int) -> tuple[int, str] | None:
        """Where the first stop string that ends behind the `known` characters begins, and which one it is."""
        best: tuple[int, int, str] | None = None  # end, start, stop string
        for stop in self._stops:
            start = text.find(stop, max(known - len(stop) + 1, 0))
            if start >= 0 and (best is None or (start + len(stop), start) < best[:2]):
                best = start + len(stop), start, stop
        return best[1:] if best else None

    def _forming(self, text: str) -> int:
        """How many last characters of `text` are the beginning of a stop string, the most that are."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            end = text[-length:]
            if any(len(stop) > length and stop.startswith(end) for stop in self._stops):
                return length
        return 0
