"""One row of a trace: its values out of text or JSON; and the tally of rows that cannot be used."""

import csv
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from simulator.errors import InputError

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
