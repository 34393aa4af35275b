"""Which format a trace has, by what is in it and never by its name.

CSV is decided by the header (exact names first, then without regard to case), JSON Lines by the keys of the first
object. What is recognised but not read, and what is not recognised, ends in an InputError that says what was seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from statistics import median
from typing import Any, Literal

from scenarios.traces import azure, llmservingsim, native
from scenarios.traces.lines import Line
from scenarios.traces.options import KNOWN, READABLE, TimeUnit, TraceOptions
from scenarios.traces.rows import RowError, json_object, split_csv
from scenarios.traces.signatures import (
    Signature,
    csv_signatures,
    folded,
    json_signatures,
    matching,
    matching_folded,
)
from simulator.errors import InputError

SAMPLE_LINES = 1000  # how far the unit of bare time stamps is looked for
_MS_STEP = 50  # whole stamps whose usual step is at least this are milliseconds


_SERVEGEN_TABLE = re.compile(r"\s*[\d.]+,[\d.]+,[\d.]+,(Gamma|Weibull)?,[\d.]+,[\d.]+\s*")

_CSV_COLUMNS = {
    "azure": azure.COLUMNS,
    "native": (*native.REQUIRED, *native.OPTIONAL),
    "llmservingsim": llmservingsim.COLUMNS,
}
_CSV_TIMES = {
    "azure": "TIMESTAMP is a date-time",
    "native": "arrival_time_s is in seconds",
    "llmservingsim": "arrival_time_ns is in nanoseconds",
}
_CSV_UNITS = {"azure": None, "native": "s", "llmservingsim": "ns"}  # the only unit that may be given for it


@dataclass(frozen=True, slots=True)
class Detected:
    """A format that can be read, and the lines that hold its rows (for CSV, those after the header)."""

    format: str
    kind: Literal["csv", "jsonl"]
    rows: Iterator[Line]
    columns: tuple[str, ...] = ()  # CSV: names in file order
    positions: dict[str, int] | None = None  # CSV: where each column of the format lies
    time_unit: TimeUnit = "s"
    note: str | None = None


def detect(lines: Iterator[Line], options: TraceOptions, file: str) -> Detected:
    """Look at the first lines and say what the file is. Raises InputError for all that cannot be read."""
    head = list(islice(lines, SAMPLE_LINES))
    if not head:
        raise InputError("the file is empty", file=file, hint="a trace has a header or one JSON object a line")
    number, first = head[0]
    if not _is_text(first):
        raise InputError("the first line is not UTF-8 text", file=file, line=number)
    start = first.lstrip()
    if start.startswith("["):
        raise _json_array(head, file)
    if start.startswith("{"):
        return _detect_json(head, lines, options, file)
    return _detect_csv(head, lines, options, file)


def _detect_csv(head: list[Line], lines: Iterator[Line], options: TraceOptions, file: str) -> Detected:
    number, first = head[0]
    try:
        header = tuple(name.strip() for name in split_csv(first))
    except RowError as error:
        raise InputError(f"the header cannot be read: {error.detail}", file=file, line=number) from error
    candidates = csv_signatures(options.format)
    if not candidates:
        raise InputError(
            f"format {options.format} is JSON Lines, but the first line is no JSON object",
            file=file,
            line=number,
            hint=f"it begins {_shown(first)}",
        )
    found = matching(header, candidates) or matching_folded(header, candidates)
    if not found:
        raise _unknown_csv(header, first, candidates, file, number)
    name = _only_readable(found, header, "columns", file, number)
    if options.time_unit is not None and options.time_unit != _CSV_UNITS[name]:
        raise InputError(
            f"time_unit does not apply to the format {name}: {_CSV_TIMES[name]}", file=file, hint="leave it out"
        )
    wanted = _CSV_COLUMNS[name]
    positions = _positions(header, wanted, file, number)
    unit: TimeUnit = "ns" if name == "llmservingsim" else "s"
    return Detected(
        name, "csv", chain(head[1:], lines), header, positions, time_unit=unit, note=_unread(header, wanted)
    )


def _detect_json(head: list[Line], lines: Iterator[Line], options: TraceOptions, file: str) -> Detected:
    number, first = head[0]
    try:
        keys = tuple(json_object(first))
    except RowError as error:
        raise InputError(
            f"the first line does not hold a whole JSON object: {_shown(first)}",
            file=file,
            line=number,
            hint="JSON Lines has one whole object on each line",
        ) from error
    candidates = json_signatures(options.format)
    if not candidates:
        raise InputError(f"format {options.format} is CSV, but the first line is a JSON object", file=file, line=number)
    found = matching(keys, candidates)
    if not found:
        raise _unknown("keys", keys, candidates, file, number)
    name = _only_readable(found, keys, "keys", file, number)
    rows = chain(head, lines)
    if name == "native":
        if options.time_unit not in (None, "s"):
            raise InputError("time_unit does not apply to native: arrival_time_s is in seconds", file=file)
        return Detected(name, "jsonl", rows)
    if name == "llmservingsim":
        if options.time_unit not in (None, "ns"):
            raise InputError(f"time_unit does not apply to the format {name}: {_CSV_TIMES[name]}", file=file)
        return Detected(name, "jsonl", rows, time_unit="ns")
    unit, note = _unit_of_stamps(name, head, options, file)
    return Detected("mooncake" if unit == "ms" else name, "jsonl", rows, time_unit=unit, note=note)


def _unit_of_stamps(name: str, head: list[Line], options: TraceOptions, file: str) -> tuple[TimeUnit, str | None]:
    """Mooncake writes whole milliseconds, GuideLLM seconds under the same names: decide, or refuse to guess."""
    if options.time_unit is not None:
        return options.time_unit, f"timestamps read as {options.time_unit}, as asked for"
    if options.format != "auto":
        return ("ms" if name == "mooncake" else "s"), None
    stamps = _sampled_stamps(head)
    if any(stamp != int(stamp) for stamp in stamps):
        if name == "guidellm":
            return "s", "no hash_ids, and timestamps with fractions: read as seconds (GuideLLM's layout)"
        raise InputError(
            "hash_ids mark a Mooncake trace, whose timestamps are whole milliseconds, but these have fractions",
            file=file,
            line=head[0][0],
            hint="give time_unit (--time-unit): s or ms",
        )
    step = _usual_step(stamps)
    if name == "mooncake":
        if step is None or step >= _MS_STEP:
            return "ms", None
        return "ms", f"timestamps read as ms, though the usual step is {step:g}: were they seconds, give time_unit: s"
    if step is None and len(head) < SAMPLE_LINES:
        return "ms", "every timestamp is the same, so their unit does not matter"
    if step is None or step < _MS_STEP:
        raise InputError(
            "timestamps without hash_ids may be ms (Mooncake) or s (GuideLLM), and these whole numbers "
            + (f"with a usual step of {step:g} " if step is not None else "")
            + "do not tell which",
            file=file,
            line=head[0][0],
            hint="give time_unit (--time-unit): s or ms",
        )
    return "ms", f"no hash_ids, and whole timestamps with a usual step of {step:g}: read as ms (Mooncake's layout)"


def _sampled_stamps(head: Sequence[Line]) -> list[float]:
    stamps: list[float] = []
    for _, text in head:
        try:
            value: Any = json_object(text).get("timestamp")
            stamps.append(float(value))
        except (RowError, TypeError, ValueError, OverflowError):
            continue  # counted when the row itself is read
    return [stamp for stamp in stamps if stamp - stamp == 0.0]


def _usual_step(stamps: Sequence[float]) -> float | None:
    """The median of the steps between different stamps; None where all are equal."""
    steps = [abs(b - a) for a, b in pairwise(stamps) if b != a]
    return median(steps) if steps else None


def _only_readable(found: list[str], names: Sequence[str], what: str, file: str, line: int) -> str:
    if len(found) > 1:
        raise InputError(
            f"ambiguous: the {what} fit {' and '.join(found)}",
            file=file,
            line=line,
            hint=f"{_seen(what, names)}; give format (--format): {', '.join(n for n in found if n in READABLE)}",
        )
    if found[0] in KNOWN:
        raise InputError(
            f"recognised as {KNOWN[found[0]]}, which this version does not read",
            file=file,
            line=line,
            hint=f"formats read: {', '.join(READABLE)}. Rewrite it as native: columns {', '.join(native.REQUIRED)}",
        )
    return found[0]


def _positions(header: Sequence[str], wanted: Sequence[str], file: str, line: int) -> dict[str, int]:
    """Where each wanted column lies: by its exact name, else by its name without regard to case."""
    positions = {}
    for name in wanted:
        places = [i for i, column in enumerate(header) if column == name]
        places = places or [i for i, column in enumerate(header) if column.casefold() == name.casefold()]
        if len(places) > 1:
            raise InputError(
                f"the column {name} occurs {len(places)} times in the header",
                file=file,
                line=line,
                hint=f"in places {', '.join(str(place + 1) for place in places)}; keep one",
            )
        if places:
            positions[name] = places[0]
    return positions


def _unread(header: Sequence[str], wanted: Sequence[str]) -> str | None:
    known = {name.casefold() for name in wanted}
    extra = [name for name in header if name.casefold() not in known and name]
    return f"columns not read: {', '.join(extra)}" if extra else None


def _unknown_csv(header: Sequence[str], first: str, among: Sequence[Signature], file: str, line: int) -> InputError:
    if _SERVEGEN_TABLE.fullmatch(first):
        return InputError(
            f"recognised as {KNOWN['servegen-tables']}, which this version does not read", file=file, line=line
        )
    if len(header) == 1 and any(mark in first for mark in ";\t|"):
        return InputError(
            f"the columns are not separated by commas: {_shown(first)}", file=file, line=line, hint="use commas"
        )
    if any(_is_number(name) for name in header):
        return InputError(
            f"there is no header: the first line holds values, {_shown(first)}",
            file=file,
            line=line,
            hint=f"begin with the names of the columns, such as {','.join(native.REQUIRED)}",
        )
    return _unknown("columns", header, among, file, line)


def _unknown(what: str, names: Sequence[str], among: Sequence[Signature], file: str, line: int) -> InputError:
    readable = [s for s in among if s.format in READABLE]
    have = frozenset(folded(names))
    nearest = max(readable, key=lambda s: sum(name.casefold() in have for name in s.has) / len(s.has))
    missing = [name for name in nearest.has if name.casefold() not in have]
    lacks = ", ".join(missing)
    if len({s.format for s in among}) == 1:
        return InputError(
            f"not a trace of the format {nearest.format}: no {lacks}", file=file, line=line, hint=_seen(what, names)
        )
    near = f"nearest is {nearest.format}, which lacks {lacks}; " if len(missing) < len(nearest.has) else ""
    options = "give format (--format) and, for bare numbers, time_unit (--time-unit)"
    return InputError(
        "unknown trace format",
        file=file,
        line=line,
        hint=f"{_seen(what, names)}; {near}formats read: {', '.join(READABLE)}; {options}",
    )


def _json_array(head: Sequence[Line], file: str) -> InputError:
    text = "".join(text for _, text in head[:20])[:100_000]
    if '"conversations"' in text:
        return InputError(f"recognised as {KNOWN['sharegpt']}, which this version does not read", file=file, line=1)
    hint = "write one object a line, without [ and ]"
    return InputError("this is a JSON array, not JSON Lines", file=file, line=head[0][0], hint=hint)


def _seen(what: str, names: Sequence[str]) -> str:
    shown = ", ".join(ascii(name)[1:-1] for name in names[:12])
    return f"{what} seen: {shown}" + (", ..." if len(names) > 12 else "")


def _shown(text: str) -> str:
    return ascii(text[:60]) + ("..." if len(text) > 60 else "")


def _is_text(text: str) -> bool:
    return not any("\udc80" <= character <= "\udcff" for character in text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
