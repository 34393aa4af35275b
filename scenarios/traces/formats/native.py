"""The native trace format, CSV or JSON Lines: what batchlab writes (`native_writer`), and what a
user's own log is best turned into.

`arrival_time_s`, `input_tokens` and `output_tokens`, and any of the optional columns. An empty field (or null) means
that the row has none. In JSON Lines a row may hold `prompt_token_ids` and `output_token_ids` too, which also say how
many tokens there are where the counts are left out. `deadline_s` counts from the request's arrival, and so does
`patience_s`, after which a client that has not its whole answer leaves. `data_parallel_rank` is the rank that the
client asks for, which the router `vllm_dp` gives it, and `lora` the adapter. A request with `after_request_id`
follows the answer to that request, `delay_s` (0 unless given) after it; its `arrival_time_s` is where an open replay
puts it. `after_request_ids` names several, a list in JSON Lines and separated by spaces in CSV: the request follows the
last of their answers. `task_id` names the task of an agent that the request is part of.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

from scenarios.traces.format import (
    UNIT_NS,
    Clock,
    Head,
    OpenTrace,
    ParsePlain,
    PlainRows,
    Signature,
    TimeUnit,
    TraceFormat,
    counts,
    fields_of,
    seconds_of,
    words,
)
from scenarios.traces.rows import (
    MOST_TOKENS,
    Extra,
    ParseRow,
    Row,
    RowError,
    count,
    csv_fields,
    dated,
    integer,
    integers,
    json_object,
    name_list,
    pictures,
    real,
    tokens,
    word,
)

REQUIRED = ("arrival_time_s", "input_tokens", "output_tokens")
LATEST_S = 1e12


def _priority(value: object, name: str) -> int:
    number = integer(value, name)
    if not -MOST_TOKENS <= number <= MOST_TOKENS:
        raise RowError(f"{name} is out of range", value)
    return number


def seconds(value: object, name: str) -> float:
    """A time of 0 or more."""
    number = real(value, name)
    if number < 0:
        raise RowError(f"{name} is negative", value)
    if number > LATEST_S:
        raise RowError(f"{name} is too large for a time", value)
    return number


def drafts(value: object, name: str) -> tuple[int, ...] | None:
    """Accepted drafts of the verify steps in turn: numbers of 0 or more."""
    numbers = integers(value, name)
    if any(number < 0 for number in numbers):
        raise RowError(f"{name} has a negative number", value)
    return numbers or None


OPTIONAL: dict[str, Callable[[object, str], Any]] = {
    "request_id": word,
    "priority": _priority,
    "class": word,
    "session_id": word,
    "prefix_group": word,
    "prefix_tokens": count,
    "block_hashes": integers,
    "hash_block_size": tokens,
    "max_tokens": tokens,
    "predicted_output_tokens": count,
    "deadline_s": seconds,
    "data_parallel_rank": count,
    "after_request_id": word,
    "delay_s": seconds,
    "patience_s": seconds,
    "lora": word,
    "images": pictures,
    "accepted_drafts": drafts,
    "after_request_ids": name_list,
    "task_id": word,
}
_NAMES = {"request_id", "class", "session_id", "lora"}  # optional columns that no rule binds to another
TOKEN_IDS = {"input_tokens": "prompt_token_ids", "output_tokens": "output_token_ids"}


def _open(head: Head) -> OpenTrace:
    first = next(head.rows, None)
    rows = head.rows if first is None else chain([first], head.rows)
    dates = None
    if first is not None and head.time_unit is None:
        with suppress(RowError):
            dates = dated(_first_arrival(head, first[1]), "arrival_time_s", head.file)
    arrives, remarks = (_arrivals_in(head.time_unit), list) if dates is None else dates
    parse = (_csv_parser if head.kind == "csv" else _json_parser)(head, arrives)
    plain = _plain_parser(head) if arrives is seconds and head.kind == "csv" else None
    clock: Clock = "run" if dates is None else "utc"
    return OpenTrace(rows, parse, clock, remarks=remarks, parse_plain=plain)


def _first_arrival(head: Head, text: str) -> object:
    if head.kind == "csv":
        return csv_fields(text, len(head.names))[head.positions["arrival_time_s"]]
    return json_object(text).get("arrival_time_s")


def _arrivals_in(time_unit: TimeUnit | None) -> Callable[[Any, str], float]:
    """Return the reader of an arrival in seconds; a log whose columns were renamed may have other units."""
    if time_unit in (None, "s"):
        return seconds
    a_second = UNIT_NS["s"] / UNIT_NS[time_unit]
    return lambda value, name: seconds(real(value, name) / a_second, name)


def _csv_parser(head: Head, arrives: Callable[[Any, str], float]) -> ParseRow:
    positions, width, answer = head.positions, len(head.names), head.answer
    arrival, inputs, outputs = (positions[name] for name in REQUIRED)
    optional = [(positions[name], name, convert) for name, convert in OPTIONAL.items() if name in positions]

    def parse(text: str) -> Row:
        fields = csv_fields(text, width)
        extra = {name: convert(fields[place], name) for place, name, convert in optional if fields[place].strip()}
        input_tokens = tokens(fields[inputs], "input_tokens")
        if extra:
            _check(extra, input_tokens)
        return (
            arrives(fields[arrival], "arrival_time_s"),
            input_tokens,
            answer(fields[outputs], "output_tokens"),
            extra,
        )

    return parse


def _plain_parser(head: Head) -> ParsePlain | None:
    """The parser of many rows, whose optional columns are names alone; None where there are others."""
    arrival, inputs, outputs = (head.positions[name] for name in REQUIRED)
    named = {name: head.positions[name] for name in OPTIONAL if name in head.positions}
    if not named.keys() <= _NAMES:
        return None

    def parse_plain(texts: Sequence[str]) -> PlainRows | None:
        fields = fields_of(texts, len(head.names))
        if fields is None or (times := seconds_of(fields[arrival], LATEST_S)) is None:
            return None
        if (prompts := counts(fields[inputs])) is None or (answers := counts(fields[outputs])) is None:
            return None
        return PlainRows(times, prompts, answers, {name: words(fields[place]) for name, place in named.items()})

    return parse_plain


def _json_parser(head: Head, arrives: Callable[[Any, str], float]) -> ParseRow:
    answer = head.answer

    def parse(text: str) -> Row:
        fields = json_object(text)
        extra = {
            name: convert(fields[name], name)
            for name, convert in OPTIONAL.items()
            if fields.get(name) is not None and fields[name] != ""
        }
        for counted, listed in TOKEN_IDS.items():
            if fields.get(listed) is not None:
                extra[listed] = _token_ids(fields, counted, listed)
        input_tokens = tokens(fields.get("input_tokens"), "input_tokens")
        _check(extra, input_tokens)
        return (
            arrives(fields.get("arrival_time_s"), "arrival_time_s"),
            input_tokens,
            answer(fields.get("output_tokens"), "output_tokens"),
            extra,
        )

    return parse


def _token_ids(fields: dict[str, Any], counted: str, listed: str) -> tuple[int, ...]:
    """The list, which must be as long as its count says; gives the count where there is none."""
    ids = integers(fields[listed], listed)
    if fields.get(counted) is None:
        fields[counted] = len(ids)
    elif count(fields[counted], counted) != len(ids):
        raise RowError(f"{listed} is not {counted} long", f"{len(ids)} for {fields[counted]}")
    return ids


def _check(extra: Extra, input_tokens: int) -> None:
    prefix = extra.get("prefix_tokens")
    if prefix and "prefix_group" not in extra:
        raise RowError("prefix_tokens without a prefix_group")
    if "prefix_group" in extra and prefix is None:
        raise RowError("prefix_group without prefix_tokens")
    if prefix and prefix > input_tokens:
        raise RowError("prefix_tokens is above input_tokens", f"{prefix} of {input_tokens}")
    if extra.get("images") and extra["images"][-1].end >= input_tokens:
        raise RowError("images leave no token of input_tokens behind them", input_tokens)
    if "hash_block_size" in extra and "block_hashes" not in extra:
        raise RowError("hash_block_size without block_hashes")
    several = "after_request_ids" in extra
    if several and "after_request_id" in extra:
        raise RowError("both after_request_id and after_request_ids")
    if "delay_s" in extra and "after_request_id" not in extra and not several:
        raise RowError("delay_s without an after_request_id")


FORMAT = TraceFormat(
    name="native",
    title="batchlab's own format",
    open=_open,
    csv=(Signature(REQUIRED),),
    json=(
        Signature(REQUIRED),
        Signature(("arrival_time_s", "prompt_token_ids"), lacks=("input_tokens",)),
        Signature(("arrival_time_s", "input_tokens", "output_token_ids"), lacks=("output_tokens",)),
    ),
    columns=(*REQUIRED, *OPTIONAL),
    times="arrival_time_s is in seconds, or a date-time (ISO 8601), or counts ms, us or ns since 1970",
    also="every optional column: names, classes, priorities, caps, deadlines, sessions, shared prefixes, "
    "token ids; times are kept",
    units=("s",),
)
