"""Numbers for people: decimals, intervals, units of time."""

import math
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

MISSING = "-"
LONG_FROM_MS = 10_000.0
"""A column with a latency this long is not in milliseconds: people say seconds, minutes, hours."""
FAR_APART = 100.0
"""Latencies that differ by this factor have no unit in common that suits both: each says its own."""


class Clock(NamedTuple):
    """The unit of a time axis, and how many seconds it has."""

    unit: str
    seconds: float


def clock_for(to_s: float, from_s: float = 0.0) -> Clock:
    """Seconds up to ten minutes, minutes up to three hours, then hours. Short stretches stay in seconds."""
    if to_s <= 600.0 or to_s - from_s <= 60.0:
        return Clock("s", 1.0)
    return Clock("min", 60.0) if to_s <= 3 * 3600.0 else Clock("h", 3600.0)


def decimals(values: Iterable[float], most: int = 3) -> int:
    """Decimals for a column: three significant digits of its smallest value, but no more than six of its largest.

    0 when all are whole.
    """
    real = [abs(value) for value in values if math.isfinite(value) and value != 0.0]
    if not real or all(value == round(value) for value in real):
        return 0
    wanted = 2 - math.floor(math.log10(min(real)))
    room = 5 - math.floor(math.log10(max(real)))
    return max(min(wanted, room, most), 0)


def number(value: float, places: int = 0) -> str:
    """A number with thousands separators; a dash where there is no value."""
    if not math.isfinite(value):
        return MISSING
    text = f"{value:,.{places}f}"
    return text.removeprefix("-") if float(text.replace(",", "")) == 0.0 else text


def intervals(found: Sequence[tuple[float, float | None, float | None]], places: int = 0) -> list[str]:
    """The intervals of a column of (mean, low, high), of equal width; nothing for what has none.

    `± 1.2`, or, where the two sides of any of them differ to the eye, `[0.0, 8.8]` for all.
    """
    sides = [None if low is None or high is None else (mean - low, high - mean) for mean, low, high in found]
    if all(each is None or number(each[0], places) == number(each[1], places) for each in sides):
        halves = ["" if each is None else number(max(each), places) for each in sides]
        wide = max(map(len, halves), default=0)
        return [half and f"± {half.rjust(wide)}" for half in halves]
    ends = [["" if end is None else number(end, places) for end in (low, high)] for _, low, high in found]
    left, right = (max(len(each[i]) for each in ends) for i in (0, 1))
    return [low and f"[{low.rjust(left)}, {high.rjust(right)}]" for low, high in ends]


def short(value: float) -> str:
    """About three significant digits: 0.0421, 3.14, 31.4, 314, 3,140."""
    if not math.isfinite(value):
        return MISSING
    if value == 0.0 or value == round(value):
        return number(value)
    places = min(max(2 - math.floor(math.log10(abs(value))), 0), 6)
    text = number(value, places)
    return text.rstrip("0").rstrip(".") if "." in text else text


def one_line(text: str, most: int) -> str:
    """The text without line breaks and control characters, cut to at most so many characters."""
    clean = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return clean if len(clean) <= most else clean[: most - 1] + "…"


def fitted(label: str, most: int) -> str:
    """A label in one line of at most so many characters, cut in the middle: what differs stands at its end."""
    clean = one_line(label, len(label) + 1)
    if len(clean) <= most:
        return clean
    tail = most // 2
    return f"{clean[: most - 1 - tail]}…{clean[len(clean) - tail :]}"


class TimeUnit(NamedTuple):
    """A unit of time, and how many milliseconds it has."""

    unit: str
    milliseconds: float


MILLISECONDS = TimeUnit("ms", 1.0)


def time_unit(milliseconds: float) -> TimeUnit:
    """The unit in which people say a time: ms below ten seconds, s up to ten minutes, min up to three hours, then h."""
    size = abs(milliseconds)
    if size < LONG_FROM_MS:
        return MILLISECONDS
    if size <= 600_000.0:
        return TimeUnit("s", 1e3)
    return TimeUnit("min", 60e3) if size <= 3 * 3600e3 else TimeUnit("h", 3600e3)


def column_unit(milliseconds: Iterable[float]) -> TimeUnit | None:
    """The unit of a column of latencies: that of the longest; None where each had better say its own."""
    sizes = [abs(value) for value in milliseconds if math.isfinite(value) and value != 0.0]
    longest = max(sizes, default=0.0)
    return time_unit(longest) if longest < LONG_FROM_MS or longest < FAR_APART * min(sizes) else None


def latency(milliseconds: float) -> str:
    """A latency in a sentence: 24.6 ms, 158 ms, 9,120 ms, 35.4 s, 24.4 min, 3.1 h."""
    clock = time_unit(milliseconds)
    value = milliseconds / clock.milliseconds
    return f"{short(value) if abs(value) < 100.0 else number(value)} {clock.unit}"


def tied(text: str) -> str:
    """Put no-break spaces between numbers and their units."""
    return re.sub(r"(\d) (%|(?:ms|s|min|h|tok/s|req/s|seeds)\b)", "\\1\u00a0\\2", text)
