"""One row of a trace: its values, its times and dates, its session, its images; the tally of unusable rows."""

import csv
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from simulator.errors import InputError
from simulator.request import Image

Extra = Mapping[str, Any]  # the optional columns that a row fills, by native name
Row = tuple[float, int, int, Extra | None]  # arrival (ns as int, or s as float), input tokens, output tokens, more
ParseRow = Callable[[str], Row]  # the text of a line; raises RowError

MOST_TOKENS = 2**31 - 1
MOST_NS = 2**63 - 1
CHARACTERS_A_TOKEN = 4
_LINES_NAMED = 5
_WHOLE = re.compile(r"\s*[+-]?\d{1,25}\s*", re.ASCII)


class RowError(Exception):
    """A row that cannot be used. `reason` is what rows are counted by; `detail` names the value too."""

    def __init__(self, reason: str, value: object = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.detail = reason if value is None else f"{reason}: {_shown(value)}"


def split_csv(text: str) -> list[str]:
    """The fields of one line; a field cannot go on into the next line."""
    if '"' not in text:
        return text.split(",")
    try:
        return next(csv.reader([text], strict=True))
    except csv.Error as error:
        raise RowError("the quotes do not match", text) from error


def csv_fields(text: str, width: int) -> list[str]:
    """The fields of one line, which must be `width` of them."""
    fields = text.split(",") if '"' not in text else split_csv(text)
    if len(fields) != width:
        raise RowError(f"not {width} fields", text)
    return fields


def json_object(text: str) -> dict[str, Any]:
    """The object that a line of JSON Lines holds."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RowError("not a whole JSON object (cut off or malformed)", text) from error
    if not isinstance(value, dict):
        raise RowError("not a JSON object", text)
    return value


def tokens(value: object, name: str) -> int:
    """A number of tokens, at least 1: an int, an integral float, or the text of either.

    Zero is an error: a request without a prompt or an answer (a failed one, mostly) cannot be replayed.
    """
    number = count(value, name)
    if number == 0:
        raise RowError(f"{name} is 0")
    return number


def count(value: object, name: str) -> int:
    """A number of tokens, perhaps 0."""
    # Nearly every value takes the first, quick way.
    number = int(value) if type(value) is str and value.isdecimal() and len(value) < 12 else integer(value, name)
    if number < 0:
        raise RowError(f"{name} is negative", value)
    if number > MOST_TOKENS:
        raise RowError(f"{name} is above {MOST_TOKENS}", value)
    return number


def tokens_or_one(value: object, name: str) -> int:
    """A number of tokens; 1 where it is 0 or missing: a prompt that is computed, which yields the first token."""
    if value is None or (type(value) is str and not value.strip()):
        return 1
    return max(1, count(value, name))


def text_tokens(text: str) -> int:
    """About how many tokens a text has: one for each four characters, the rule of thumb for English."""
    return max(1, -(-len(text) // CHARACTERS_A_TOKEN))


def messages_text(messages: object, name: str) -> str:
    """All text of a list of chat messages: their contents, or the text parts of these; roles are not counted."""
    if type(messages) is not list or not messages:
        raise RowError(f"{name} is not a list of messages", None if messages is None else type(messages).__name__)
    parts: list[str] = []
    for message in messages:
        if type(message) is not dict:
            raise RowError(f"{name} is not a list of messages", type(message).__name__)
        parts += _message_texts(message.get("content"), name)
    return "".join(parts)


def _message_texts(content: Any, name: str) -> list[str]:
    if content is None:
        return []
    if type(content) is str:
        return [content]
    if type(content) is list:
        return [part["text"] for part in content if type(part) is dict and type(part.get("text")) is str]
    raise RowError(f"{name} has a content that is neither text nor a list of parts")


def integer(value: object, name: str) -> int:
    """Any whole number within 64 bits, "374.0" and " 374 " included."""
    if type(value) is int:
        number = value
    elif type(value) is str and _WHOLE.fullmatch(value):
        number = int(value)
    else:
        exact = real(value, name)
        if not exact.is_integer():
            raise RowError(f"{name} is not a whole number", value)
        number = int(exact)
    if not -MOST_NS <= number <= MOST_NS:
        raise RowError(f"{name} does not fit 64 bits", value)
    return number


def real(value: object, name: str) -> float:
    """A finite number."""
    if value is None or (type(value) is str and not value.strip()):
        raise RowError(f"{name} is missing")
    if type(value) not in (str, int, float) or (type(value) is str and "_" in value):
        raise RowError(f"{name} is not a number", value)
    try:
        number = float(value)  # type: ignore[arg-type]  # one of the three types above
    except (ValueError, OverflowError) as error:
        raise RowError(f"{name} is not a number", value) from error
    if not math.isfinite(number):
        raise RowError(f"{name} is NaN or infinite", value)
    return number


def ticks_ns(value: object, name: str, unit_ns: int) -> int:
    """A time in nanoseconds, from a number of `unit_ns`; whole numbers lose nothing."""
    number = value if type(value) is int else real(value, name)
    if number < 0:
        raise RowError(f"{name} is negative", value)
    if number * unit_ns > MOST_NS / 2:
        raise RowError(f"{name} is too large for a time", value)
    return round(number * unit_ns)


def word(value: object, name: str) -> str:
    """A name: text, or a whole number in JSON."""
    if type(value) is int:
        return str(value)
    if type(value) is not str:
        raise RowError(f"{name} is neither text nor a whole number", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise RowError(f"{name} is not valid UTF-8", value) from error
    return value


def name_list(value: object, name: str) -> tuple[str, ...] | None:
    """A list of names: a JSON list, or text separated by spaces."""
    if type(value) is str:
        return tuple(value.split()) or None
    if type(value) is not list:
        raise RowError(f"{name} is not a list of names", value)
    return tuple(word(each, name) for each in value) or None


def integers(value: object, name: str) -> tuple[int, ...]:
    """A list of whole numbers: a JSON list, or text separated by spaces or semicolons."""
    if type(value) is str:
        try:
            return tuple(map(int, value.replace(";", " ").split()))
        except ValueError as error:
            raise RowError(f"{name} is not a list of whole numbers", value) from error
    if type(value) is not list or not set(map(type, value)) <= {int}:
        raise RowError(f"{name} is not a list of whole numbers", value)
    return tuple(value)


@dataclass(slots=True)
class Tally:
    """Rows (or values) set aside, by reason: how many, and the first lines where it happened."""

    file: str
    strict: bool = False
    counts: dict[str, int] = field(default_factory=dict)
    first_lines: dict[str, list[int]] = field(default_factory=dict)

    def add(self, line: int, reason: str, detail: str | None = None) -> None:
        """Count one; when reading strictly, raise it as an InputError instead."""
        if self.strict:
            raise InputError(
                detail or reason,
                file=self.file,
                line=line,
                hint="strict: the first bad row is an error; without strict such rows are skipped and counted",
            )
        self.counts[reason] = self.counts.get(reason, 0) + 1
        named = self.first_lines.setdefault(reason, [])
        if len(named) < _LINES_NAMED:
            named.append(line)

    def total(self) -> int:
        return sum(self.counts.values())

    def texts(self) -> list[str]:
        """One line of prose a reason, such as `3 rows: GeneratedTokens is 0 (lines 4, 9, 17)`."""
        return [
            f"{plural(number, 'row')}: {reason} ({lines_text(self.first_lines[reason], number)})"
            for reason, number in self.counts.items()
        ]


def plural(number: int, noun: str) -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def lines_text(first: Sequence[int], number: int) -> str:
    """`line 4`, or the first few of many: `lines 4, 9, ...`."""
    named = ", ".join(map(str, first[:_LINES_NAMED]))
    if number == 1:
        return f"line {named}"
    return f"lines {named}" + (", ..." if number > min(len(first), _LINES_NAMED) else "")


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Sessions of a trace: which answer a request follows, and how long after it.
#
# A format whose rows are turns of conversations, or calls of agents, hands each to `Turns`, which remembers the
# last turn of every session: about 200 bytes a session for as long as the file is read.


class _Turn(NamedTuple):
    number: int
    request_id: str
    arrival_ns: int
    end_ns: int | None  # when its answer ended, as recorded


@dataclass(slots=True)
class Turns:
    """The sessions seen so far, by name, and counts for the remarks."""

    _last: dict[str, _Turn] = field(default_factory=dict)
    _untimed: int = 0
    _bounds: int = 0
    _anew: int = 0

    def turn(
        self,
        session: str,
        arrival_ns: int | None = None,
        wait_ns: int | None = None,
        took_ns: int | None = None,
        request_id: str | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """The arrival of the session's next request in nanoseconds, and the native columns that say what it follows.

        `arrival_ns` is its recorded time, `wait_ns` the recorded time since the answer before it, `took_ns` how long
        its own answer took; None where the trace does not say. Without a recorded time a request arrives as though
        the answers before it had taken none. Without a recorded wait the gap between the two requests stands for it,
        less the answer's time where that is known.
        """
        last = self._last.get(session)
        number = 0 if last is None else last.number + 1
        name = f"{session}/{number}" if request_id is None else request_id
        extra: dict[str, Any] = {"request_id": name, "session_id": session}
        if last is None:
            arrival = arrival_ns or 0
        elif arrival_ns is not None and arrival_ns < last.arrival_ns:
            arrival = arrival_ns  # time went back: the session begins anew
            self._anew += 1
        else:
            arrival, delay = self._following(last, arrival_ns, wait_ns)
            extra |= {"after_request_id": last.request_id, "delay_s": delay / 1e9}
        self._last[session] = _Turn(number, name, arrival, None if took_ns is None else arrival + took_ns)
        return arrival, extra

    def _following(self, last: _Turn, arrival_ns: int | None, wait_ns: int | None) -> tuple[int, int]:
        if arrival_ns is None:
            self._untimed += 1
            return last.arrival_ns + (wait_ns or 0), wait_ns or 0
        if wait_ns is not None:
            return arrival_ns, wait_ns
        self._bounds += last.end_ns is None
        return arrival_ns, max(0, arrival_ns - (last.arrival_ns if last.end_ns is None else last.end_ns))

    def remarks(self) -> list[str]:
        """Return the notes about the sessions, once the rows have been read."""
        notes = []
        if self._untimed:
            what = "without a time of its own arrives" if self._untimed == 1 else "without times of their own arrive"
            notes.append(f"{plural(self._untimed, 'turn')} {what} as if the answers before them took no time")
        if self._bounds:
            notes.append(
                f"{plural(self._bounds, 'delay')} after the answer before not recorded: the gap between the two"
                " requests is taken instead, which includes the answer's time"
            )
        if self._anew:
            notes.append(
                f"{plural(self._anew, 'turn')} recorded before the turn that it follows: a new session starts there"
            )
        return notes


# Images of a trace's requests: as the native column `images` writes them, or only counted.
#
# An entry is `TOKENS`, or `NAME:TOKENS@OFFSET`. Equal names are equal images; without one an image is its request's
# own. Without an offset an image lies behind the one before it, the first at the start of the prompt. Its tokens
# are among the prompt's, of which at least one follows the last image.

_ENTRY = re.compile(r"(?:(?P<name>[^\s:@]+):)?(?P<tokens>[1-9]\d{0,8})(?:@(?P<offset>\d{1,9}))?")


def pictures(value: object, name: str) -> tuple[Image, ...] | None:
    """Images of a field, a text or a list; one without a name of its own has none yet."""
    words = value if isinstance(value, list) else str(value).split()
    found: list[Image] = []
    for word in words:
        entry = _ENTRY.fullmatch(str(word))
        if entry is None:
            raise RowError(f"{name} has an entry that is neither TOKENS nor NAME:TOKENS@OFFSET", word)
        least = found[-1].end if found else 0
        offset = least if entry["offset"] is None else int(entry["offset"])
        if offset < least:
            raise RowError(f"{name} has an image that begins before the one before it ends", word)
        found.append(Image(entry["name"] or "", offset, int(entry["tokens"])))
    return tuple(found) or None


def written(images: Sequence[Image]) -> list[str] | None:
    """The images of a request as `pictures` reads them; None for none."""
    names = [f"{image.identifier}:" if image.identifier else "" for image in images]
    return [f"{name}{image.tokens}@{image.offset}" for name, image in zip(names, images, strict=True)] or None


def images_of(
    extra: Mapping[str, Sequence[Any]],
    inputs: Sequence[int],
    each_tokens: int | None,
    input_scale: float,
    places: Sequence[int],
) -> list[tuple[Image, ...]] | None:
    """The images of the requests at `places`. Those that are only counted have `each_tokens`, or what the prompt holds.

    None where no request has any, or none of a known size, or where prompts are scaled: an image is as large as it is.
    """
    listed, counted = extra.get("images"), extra.get("num_images")
    if input_scale != 1.0 or (listed is None and (counted is None or each_tokens is None)):
        return None
    found: list[tuple[Image, ...]] = []
    for row, place in enumerate(places):
        images: Sequence[Image] = (listed[place] if listed is not None else None) or ()
        if counted is not None and each_tokens is not None and counted[place]:
            images = of_count(int(counted[place]), int(inputs[place]), each_tokens)
        found.append(
            tuple(
                image if image.identifier else image._replace(identifier=f"{row}.{number}")
                for number, image in enumerate(images)
            )
        )
    return found if any(found) else None


def of_count(count: int, input_tokens: int, each_tokens: int) -> tuple[Image, ...]:
    """Images that a trace only counts: one behind the other from the beginning, each as large as the prompt holds."""
    tokens = min(each_tokens, (input_tokens - 1) // count) if count else 0
    return tuple(Image("", at * tokens, tokens) for at in range(count)) if tokens > 0 else ()


def size_notes(extra: Mapping[str, Sequence[Any]], each_tokens: int | None, input_scale: float) -> tuple[str, ...]:
    """A note where images are text: nothing says how large they are, or prompts are scaled."""
    if input_scale != 1.0 and any(extra.get("images") or ()):
        return (f"dropped all images: they do not grow with the prompts (input_scale {input_scale:g})",)
    if each_tokens is not None or "num_images" not in extra:
        return ()
    return ("columns not read: NumImages (trace.image_tokens would give images a size)",)


# Times as dates: ISO 8601 date-times, and numbers of a unit since 1970, in nanoseconds.

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
