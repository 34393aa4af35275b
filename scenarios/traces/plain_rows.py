"""Many plain rows of a CSV file at once, with the values that the format's own parser gives, to the last bit.

A block is plain if every row has all fields and nothing in it is quoted, padded, zero or otherwise unusual. The rows of
any other block are parsed one by one. So each error and each odd value has one owner.
"""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import NamedTuple

import numpy as np

from scenarios.traces.lines import Line
from simulator.errors import InputError

ROWS = 4096  # of a block


class PlainRows(NamedTuple):
    """Rows in columns, as in `Columns`; `extra` holds the optional columns, None where a row has no value."""

    arrival: array[int] | array[float]
    inputs: array[int]
    outputs: array[int]
    extra: Mapping[str, Sequence[str | None]] = {}


ParsePlain = Callable[[Sequence[str]], PlainRows | None]
"""Takes the texts of rows; None where they are not plain."""

_FEW_DIGITS = 9  # a count of so many is below `MOST_TOKENS`
_STAMPS = re.compile(r"(?:(?:19[7-9]|20\d|21\d)\d-\d\d-\d\d[ T]\d\d:[0-5]\d:[0-5]\d(?:\.\d{1,9})?,)+", re.ASCII)


def blocks(rows: Iterator[Line]) -> Iterator[list[Line]]:
    """The rows in blocks. An error in reading is raised after the rows before it were given."""
    while True:
        block: list[Line] = []
        try:
            block.extend(islice(rows, ROWS))
        except InputError:
            yield block
            raise
        if not block:
            return
        yield block


def fields_of(texts: Sequence[str], width: int) -> list[list[str]] | None:
    """The columns of rows that have `width` fields each, ASCII and without quotes; None for others."""
    text = ",".join(texts)
    if not text.isascii() or '"' in text or set(map(str.count, texts, repeat(","))) != {width - 1}:
        return None
    fields = text.split(",")
    return [fields[place::width] for place in range(width)]


def counts(column: Sequence[str]) -> array[int] | None:
    """Numbers of at least 1, of a few digits; None where one is anything else."""
    if not "".join(column).isdecimal() or not 0 < len(min(column, key=len)) <= len(max(column, key=len)) <= _FEW_DIGITS:
        return None
    numbers = array("i", map(int, column))
    return numbers if min(numbers) else None


def seconds_of(column: Sequence[str], latest_s: float) -> array[float] | None:
    """Times from 0 to `latest_s`; None where one is anything else."""
    if "_" in "".join(column):
        return None
    try:
        times = array("d", map(float, column))
    except ValueError:
        return None
    # A sum is not finite if one of the times is not.
    return times if math.isfinite(sum(times)) and min(times) >= 0 and max(times) <= latest_s else None


def stamps_ns(column: Sequence[str], offset: str) -> array[int] | None:
    """Date-times in UTC, each followed by `offset`, as nanoseconds since 1970; None where one is anything else."""
    if offset:
        if not all(map(str.endswith, column, repeat(offset))):
            return None
        column = [text[: -len(offset)] for text in column]
    if _STAMPS.fullmatch(",".join(column) + ",") is None:
        return None
    try:
        return array("q", np.array(column, dtype="datetime64[ns]").tobytes())
    except ValueError:  # no day of the calendar, or no hour of a day
        return None


def words(column: Iterable[str]) -> list[str | None]:
    """Names; None where a field is blank."""
    return [field if field.strip() else None for field in column]
