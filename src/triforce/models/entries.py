"""Typed reading of a checkpoint's settings, whatever file they came from. Every complaint names file and remedy."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from triforce.errors import ModelError


class Entries:
    """Settings by key. Absent and null are the same to every reader; each raises `ModelError` on a wrong value."""

    def __init__(self, values: Mapping[str, Any], path: Path) -> None:
        self._values = values
        self.path = path

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __contains__(self, key: object) -> bool:
        """Whether `key` is written at all, be it as null."""
        return key in self._values

    def raw(self, key: str, default: Any = None) -> Any:
        """The value as it stands."""
        value = self._values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number of at least 1."""
        value = self.optional_integer(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"{key} is missing", "download the model again or use a complete checkpoint")
        return value

    def optional_integer(self, key: str) -> int | None:
        """A whole number of at least 1, or None when absent."""
        value = self.raw(key)
        if value is None:
            return None
        whole = not isinstance(value, bool) and (isinstance(value, int) or (_is_real(value) and value == int(value)))
        if not whole or value < 1:
            raise self.error(f"{key} is {value!r}, not a whole number from 1", "correct it")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.optional_number(key)
        if value is None:
            value = default
        if value is None:
            raise self.error(f"{key} is missing", "download the model again or use a complete checkpoint")
        return value

    def optional_number(self, key: str) -> float | None:
        """A number above 0, or None when absent."""
        value = self.raw(key)
        if value is None:
            return None
        if isinstance(value, bool) or not _is_real(value) or value <= 0:
            raise self.error(f"{key} is {value!r}, not a number above 0", "correct it")
        return float(value)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false."""
        value = self.raw(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{key} is {value!r}, neither true nor false", "correct it")
        return value

    def ids(self, key: str) -> tuple[int, ...]:
        """One token id or a list of them; none when absent."""
        value = self.raw(key, [])
        listed = value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in listed):
            raise self.error(f"{key} is {value!r}, not token ids", "correct it")
        return tuple(listed)

    def section(self, key: str) -> Entries:
        """A nested object; empty when absent."""
        value = self.raw(key, {})
        if not isinstance(value, dict):
            raise self.error(f"{key} is {value!r}, not an object", "correct it")
        return Entries(value, self.path)

    def error(self, problem: str, remedy: str) -> ModelError:
        """The error to raise for `problem`, which may quote a value of any length."""
        return ModelError(f"{self.path}: {problem:.200}; {remedy}")


def read_json(path: Path) -> Entries:
    """The object in the JSON file `path`. Raises `ModelError`."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file; give a complete model directory") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror}); check the file") from None
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8 or not JSON
        reason = str(error).splitlines()[0]
        raise ModelError(f"{path}: not valid JSON ({reason}); download the model again") from None
    if not isinstance(values, dict):
        raise ModelError(f"{path}: not a JSON object; download the model again")
    return Entries(values, path)


def _is_real(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)
