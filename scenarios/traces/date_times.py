"""Times as dates: ISO 8601 date-times, and numbers of a unit since 1970, in nanoseconds."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from scenarios.traces.rows import RowError, plural, real, ticks_ns
from simulator.errors import InputError

_STAMP = re.compile(
    r"\s*(\d{4}-\d\d-\d\d[ Tt]\d\d:\d\d):([0-5]\d)(?:[.,](\d+))?\s*(Z|z|[+-]\d\d(?::?\d\d)?)?\s*", re.ASCII
)
_NUMBER = re.compile(r"\s*\d+(\.\d*)?\s*", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_YEAR, _LAST_YEAR = 1970, 2200  # what 64 bits of nanoseconds hold, and then some sense


class Stamps:
    """Date-times to nanoseconds since 1970; one without an offset counts as UTC. Remembers which kinds it saw.

    The zero of time is set where arrivals are put in order (`scenarios.traces.arrange`).
    """

    def __init__(self, name: str = "TIMESTAMP") -> None:
        self.name = name
        self.naive = 0
        self.with_offset = 0

    def parse(self, text: str) -> int:
        match = _STAMP.fullmatch(text)
        if match is None:
            raise RowError(f"{self.name} is missing" if not text.strip() else f"{self.name} is not a date-time", text)
        minute, second, fraction, offset = match.groups()
        nanoseconds = _minute_ns(minute, self.name) + int(second) * 1_000_000_000
        if fraction is not None:
            nanoseconds += int(fraction[:9].ljust(9, "0"))
        self.count(1, offset is not None)
        if offset is not None:
            nanoseconds -= _offset_ns(offset, self.name)
        return nanoseconds

    def count(self, rows: int, with_offset: bool) -> None:
        """Remember so many date-times of a kind."""
        self.naive += 0 if with_offset else rows
        self.with_offset += rows if with_offset else 0

    def remarks(self) -> list[str]:
        """Return the note for a file that mixes date-times with and without an offset."""
        if self.naive and self.with_offset:
            return [f"{plural(self.naive, 'date-time')} without an offset read as UTC, like the others"]
        return []


def dated(first: object, name: str, file: str) -> tuple[Callable[[Any, str], int], Callable[[], list[str]]] | None:
    """Return the reader of times like the first one of a file, if that is a date, and its remarks; else None.

    A date is an ISO 8601 date-time, with or without a zone, or a whole number of milliseconds, microseconds or
    nanoseconds since 1970, of the years 2001 to 2100. The reader raises InputError for a time of another kind: dates
    and numbers, or dates with a zone and without, cannot be put in one order.
    """
    if isinstance(first, str) and _STAMP.fullmatch(first):
        return _date_times(first, name, file), list
    try:
        number = real(first, name)
    except RowError:
        return None
    unit = next((unit for unit, ns in _UNITS.items() if _FROM_S <= number * ns / 1e9 < _UNTIL_S), None)
    if unit is None:
        return None

    def parse(value: Any, name: str) -> int:
        if isinstance(value, str) and _STAMP.fullmatch(value):
            raise _mixed(file, f"{name} is a date-time in one row and a number in another: {value!a}")
        return ticks_ns(value, name, _UNITS[unit])

    return parse, lambda: [f"{name} read as {unit} since 1970"]


_UNITS = {"milliseconds": 1_000_000, "microseconds": 1_000, "nanoseconds": 1}
_FROM_S, _UNTIL_S = 978_307_200.0, 4_133_980_800.0  # 2001 and 2101


def _date_times(first: str, name: str, file: str) -> Callable[[Any, str], int]:
    stamps = Stamps(name)
    stamps.parse(first)
    zoned = bool(stamps.with_offset)

    def parse(value: Any, name: str) -> int:
        if not isinstance(value, str) or _NUMBER.fullmatch(value):
            raise _mixed(file, f"{name} is a date-time in one row and a number in another: {value!a}")
        ns = stamps.parse(value)
        if bool(stamps.naive if zoned else stamps.with_offset):
            raise _mixed(file, f"{name} has a zone in some rows and none in others: {value!a}")
        return ns

    return parse


def _mixed(file: str, what: str) -> InputError:
    return InputError(what, file=file, hint="write all times of a file alike, best with a zone: 2026-01-31T08:00:00Z")


@lru_cache(maxsize=4096)
def _minute_ns(text: str, name: str) -> int:
    try:
        minute = datetime.strptime(text.replace("T", " ").replace("t", " "), "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
    except ValueError as error:
        raise RowError(f"{name} is not a date-time", text) from error
    if not _FIRST_YEAR <= minute.year <= _LAST_YEAR:
        raise RowError(f"{name} is not within {_FIRST_YEAR} to {_LAST_YEAR}", text)
    return (minute - _EPOCH) // timedelta(microseconds=1) * 1000


@lru_cache(maxsize=64)
def _offset_ns(text: str, name: str) -> int:
    if text in "Zz":
        return 0
    hours, minutes = int(text[1:3]), int(text[3:].lstrip(":") or 0)
    if hours > 23 or minutes > 59:
        raise RowError(f"{name} has an impossible offset", text)
    seconds = hours * 3600 + minutes * 60
    return (-seconds if text[0] == "-" else seconds) * 1_000_000_000
