"""Where generations go: text as it comes, or one JSON object at the end of each. Knows nothing of engines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from triforce.cli.telling import tell
from triforce.completion import Generation, Timings

if TYPE_CHECKING:
    from triforce.stream import Stream


class Output:
    """Prints `num` generations, one after the other. Nothing is lost or printed twice, whenever one ends.

    Where there are several, a line with its number stands before each text, and "index" in each JSON object.
    """

    def __init__(self, *, as_json: bool, stats: bool, num: int = 1) -> None:
        self._as_json = as_json
        self._stats = stats
        self._num = num
        self._index = -1
        self._stream: Stream | None = None
        self._num_shown = 0  # characters
        self._headed = True  # whether the text's number is printed

    @property
    def started(self) -> bool:
        """Whether there is a token to print."""
        return self._stream is not None and self._stream.generation().completion_tokens > 0

    def follow(self, stream: Stream, on_first: Callable[[], None]) -> None:
        """Draw `stream` to its end, showing its text; `on_first` is called when the first token is there.

        What came before is closed.
        """
        if self._stream is not None:
            self.close()
        self._stream, self._num_shown, self._headed = stream, 0, False
        self._index += 1
        first = True
        for completion in stream:
            if first:
                on_first()
                first = False
                self._head()
            if not self._as_json and completion.text:
                self._num_shown += len(completion.text)
                print(completion.text, end="", flush=True)

    def _head(self) -> None:
        due, self._headed = not self._headed and self._num > 1 and not self._as_json, True
        if due:
            print(f"--- {self._index + 1} of {self._num} ---", flush=True)

    def close(self, *, interrupted: bool = False) -> None:
        """Print what is left: the end of the text, or the JSON object, and then the statistics."""
        generation = self._stream.generation() if self._stream else _NOTHING
        self._head()
        if interrupted:
            generation = replace(generation, finish_reason="interrupted")
        if self._as_json:
            index = {"index": self._index} if self._num > 1 else {}
            print(json.dumps(index | generation.as_dict()), flush=True)
        elif generation.text:
            print(generation.text[self._num_shown :], flush=True)
        elif generation.completion_tokens == 1 and isinstance(generation.stop_reason, int):
            tell(f"the text ended at once, with token {generation.stop_reason}: {_OTHERWISE}")
        if self._stats and self._stream:
            from triforce.report import format_generation

            print(format_generation(generation), file=sys.stderr, flush=True)


_OTHERWISE = "try --chat for a question, --ignore-eos, or another prompt"
_NOTHING = Generation(
    text="",
    token_ids=[],
    prompt_tokens=0,
    completion_tokens=0,
    finish_reason="interrupted",
    timings=Timings(load_seconds=0.0, prefill_seconds=0.0, prefill_tokens=0, decode_seconds=0.0, decode_tokens=0),
    levels=[],
)
"""Interrupted before there was a stream."""
