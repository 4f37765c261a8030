"""What an argument must be: one function per kind, which raises `UsageError` with name, value and remedy.

Bounds are inclusive. Knows no particular setting.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any, TypeVar

from triforce.errors import UsageError, shown

Kind = TypeVar("Kind")


def require(condition: bool, message: str) -> None:
    """`message` is the mistake unless `condition` holds."""
    if not condition:
        raise UsageError(message)


def whole(name: str, value: object, least: int, most: int) -> int:
    """A whole number of any kind, NumPy's too, as a plain one."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise UsageError(f"{name} is {shown(value)}: use a whole number")
    _within(name, int(value), least, most)
    return int(value)


def number(name: str, value: object, least: float, most: float) -> None:
    """A number of any kind, which True and False are not; nor is NaN."""
    if not isinstance(value, Real) or isinstance(value, bool) or value != value:
        raise UsageError(f"{name} is {shown(value)}: use a number")
    try:
        plain = float(value)
    except OverflowError:  # a whole number of hundreds of digits
        plain = math.inf if value == abs(value) else -math.inf
    _within(name, plain, least, most)


def listed(name: str, value: object, remedy: str = "use a list") -> tuple[Any, ...]:
    """Anything that can be gone through as a tuple, so that nobody changes it later; a text is one element."""
    if isinstance(value, (str, bytes)):
        return (value,)
    if not isinstance(value, Iterable):
        raise UsageError(f"{name} is {shown(value)}: {remedy}")
    return tuple(value)


def text(name: str, value: object, remedy: str) -> None:
    """Valid Unicode, at least one character."""
    require(isinstance(value, str) and value != "", f"{name} is {shown(value)}: {remedy}")
    assert isinstance(value, str)
    is_unicode = not any("\ud800" <= character <= "\udfff" for character in value)
    require(is_unicode, f"{name} is {shown(value)}: use valid Unicode")


def listener(name: str, value: object) -> None:
    """A function, or None."""
    require(value is None or callable(value), f"{name} is {shown(value)}: give a function")


def chosen(name: str, value: object, kind: type[Kind]) -> Kind:
    """Settings of one `kind`, its defaults for None."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise UsageError(f"{name} is {shown(value)}: give triforce.{kind.__name__}(...)")
    return value


def one_of(what: str, value: object, known: Iterable[str]) -> str:
    """One of the `known` names."""
    known = list(known)
    if not isinstance(value, str) or value not in known:
        raise UsageError(f"unknown {what} {shown(value)}: use one of {', '.join(known)}")
    return value


def _within(name: str, value: float, least: float, most: float) -> None:
    if least <= value <= most:
        return
    where = f"at least {_spelt(least)}" if value < least else f"at most {_spelt(most)}"
    size = ("too large" if value > 0 else "too small") if abs(value) > 1e300 else _spelt(value)
    raise UsageError(f"{name} is {size}: use {where}")


def _spelt(value: float) -> str:
    return str(value) if isinstance(value, int) and abs(value) < 10**15 else f"{value:g}"
