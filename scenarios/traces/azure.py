"""Azure's public LLM traces of 2023, 2024 and 2025: TIMESTAMP (a date-time), ContextTokens, GeneratedTokens.

The years differ in how they write a date-time: 7 fractional digits and no offset; 6 digits, or none, and "+00:00";
"T", 3 digits and "Z". Widths may mix within a file.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache

from scenarios.traces.rows import ParseRow, Row, RowError, split_csv, tokens

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_STAMP = re.compile(
    r"\s*(\d{4}-\d\d-\d\d[ Tt]\d\d:\d\d):([0-5]\d)(?:[.,](\d+))?\s*(Z|z|[+-]\d\d(?::?\d\d)?)?\s*", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_YEAR, _LAST_YEAR = 1970, 2200  # what 64 bits of nanoseconds hold, and then some sense


class Stamps:
    """Date-times to nanoseconds since 1970; one without an offset counts as UTC. Remembers which kinds it saw."""

    def __init__(self) -> None:
        self.naive = 0
        self.with_offset = 0

    def parse(self, text: str) -> int:
        match = _STAMP.fullmatch(text)
        if match is None:
            raise RowError("TIMESTAMP is missing" if not text.strip() else "TIMESTAMP is not a date-time", text)
        minute, second, fraction, offset = match.groups()
        nanoseconds = _minute_ns(minute) + int(second) * 1_000_000_000
        if fraction is not None:
            nanoseconds += int(fraction[:9].ljust(9, "0"))
        if offset is None:
            self.naive += 1
        else:
            self.with_offset += 1
            nanoseconds -= _offset_ns(offset)
        return nanoseconds


def row_parser(positions: dict[str, int], width: int, stamps: Stamps) -> ParseRow:
    """A parser of lines with `width` fields whose columns lie at `positions`."""
    when, context, generated = (positions[name] for name in COLUMNS)
    parse_stamp = stamps.parse

    def parse(text: str) -> Row:
        fields = split_csv(text)
        if len(fields) != width:
            raise RowError(f"not {width} fields", text)
        return (
            parse_stamp(fields[when]),
            tokens(fields[context], "ContextTokens"),
            tokens(fields[generated], "GeneratedTokens"),
            None,
        )

    return parse


@lru_cache(maxsize=4096)
def _minute_ns(text: str) -> int:
    try:
        minute = datetime.strptime(text.replace("T", " ").replace("t", " "), "%Y-%m-%d %H:%M").replace(tzinfo=UTC)
    except ValueError as error:
        raise RowError("TIMESTAMP is not a date-time", text) from error
    if not _FIRST_YEAR <= minute.year <= _LAST_YEAR:
        raise RowError(f"TIMESTAMP is not within {_FIRST_YEAR} to {_LAST_YEAR}", text)
    return (minute - _EPOCH) // timedelta(microseconds=1) * 1000


@lru_cache(maxsize=64)
def _offset_ns(text: str) -> int:
    if text in "Zz":
        return 0
    hours, minutes = int(text[1:3]), int(text[3:].lstrip(":") or 0)
    if hours > 23 or minutes > 59:
        raise RowError("TIMESTAMP has an impossible offset", text)
    seconds = hours * 3600 + minutes * 60
    return (-seconds if text[0] == "-" else seconds) * 1_000_000_000
