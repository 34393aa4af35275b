"""The tables of a run: their columns, each with unit and meaning, and the way back to records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from scenarios.runs.storage.csv_tables import Column, texts_of
from simulator.columns import described
from simulator.metrics.fleet_metrics import PartColumns, by_replica
from simulator.metrics.latency import RequestLatencies, request_latencies
from simulator.results.records import CallColumns, Ints, Records, RequestColumns, RowColumns, Status

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

ALL = slice(None)
Columns = Mapping[str, tuple[str, str]]
"""Unit and meaning of each column of a table, in the order of the columns."""
STATUS_NAMES = tuple(status.name.lower() for status in Status)


@dataclass(frozen=True, slots=True)
class _Part:
    """Some of the requests of a run: their rows, their records and their latencies."""

    rows: range
    part: slice
    run: Records
    requests: RequestColumns
    latencies: RequestLatencies


class _Told(NamedTuple):
    """A column of the requests: its unit and meaning, and its values; None where a run has no such column."""

    unit: str
    meaning: str
    values: Callable[[_Part], Column | None]


def _recorded(*names: str) -> dict[str, _Told]:
    """The columns of these names as they are recorded."""
    told = described(RequestColumns)
    return {name: _Told(*told[name], attrgetter(f"requests.{name}")) for name in names}


def _ids(part: _Part) -> list[str]:
    ids = part.run.request_ids
    return texts_of(list(part.rows)) if ids is None else list(ids[part.part])


def _reasons(part: _Part) -> list[str]:
    reasons = part.run.reject_reasons
    return [reasons.get(row, "") for row in part.rows] if reasons else [""] * len(part.rows)


def _names(name: str) -> Callable[[_Part], list[str] | None]:
    """A column of `Records` that few runs have: a name of each request, or none."""

    def values(part: _Part) -> list[str] | None:
        ids = getattr(part.run, name)
        return None if ids is None else [each or "" for each in ids[part.part]]

    return values


def _counts(name: str) -> Callable[[_Part], Ints | None]:
    """A column of `Records` that few runs have: a number of each request."""
    return lambda part: None if (values := getattr(part.run, name)) is None else values[part.part]


def _call(name: str) -> Callable[[_Part], Column | None]:
    """A column of the attempts; none without clients that answer back."""
    return lambda part: None if (calls := part.run.calls) is None else getattr(calls, name)[part.part]


def _retry_of(part: _Part) -> list[str] | None:
    if part.run.calls is None:
        return None
    each = zip(part.rows, part.run.calls.first_row[part.part].tolist(), strict=True)
    return [part.run.request_id(first) if first != row else "" for row, first in each]


_CALLS = described(CallColumns)
_REQUESTS: Mapping[str, _Told] = {
    "request_id": _Told("", "its name in the trace, else its row", _ids),
    "class": _Told("", "its class", lambda part: _named(part.requests.class_index, part.run.class_names)),
    "status": _Told(
        "",
        "`finished`, `rejected`, `unfinished` (at the end of the run) or `aborted` (by its client)",
        lambda part: _named(part.requests.status, STATUS_NAMES),
    ),
    **_recorded("arrival_s", "scheduled_s", "first_token_s", "last_token_s", "input_tokens", "output_tokens"),
    "ttft_ms": _Told("ms", "first token - arrival", attrgetter("latencies.ttft_ms")),
    "tpot_ms": _Told(
        "ms", "(last token - first token) / (output tokens - 1); empty for one token", attrgetter("latencies.tpot_ms")
    ),
    "e2el_ms": _Told("ms", "last token - arrival", attrgetter("latencies.e2el_ms")),
    "queue_time_ms": _Told("ms", "first time scheduled - arrival", attrgetter("latencies.queue_time_ms")),
    **_recorded("preemptions", "recomputed_tokens", "requeued_s", "swapped_out_blocks", "swapped_in_blocks"),
    **_recorded("cached_tokens", "aborted_tokens", "max_tokens", "priority", "replica", "released_s"),
    "reject_reason": _Told("", "why it was rejected", _reasons),
    "session_id": _Told("", "its conversation; the column is there where there are any", _names("session_ids")),
    "turn": _Told("", "its place in the conversation, from 1", _counts("turns")),
    "task_id": _Told("", "its agent's task; the column is there where there are any", _names("task_ids")),
    "task_requests": _Told("", "requests of that task, arrived or not", _counts("task_requests")),
    "attempt": _Told(*_CALLS["attempt"], _call("attempt")),
    "retry_of": _Told("", "the `request_id` of the first attempt; empty for that itself", _retry_of),
    "left_s": _Told(*_CALLS["left_s"], _call("left_s")),
}


def request_columns(records: Records, part: slice = ALL) -> dict[str, Column]:
    """Return the table of the requests in `part`, in workload order: times in seconds, latencies in milliseconds."""
    requests = records.requests.part(part)
    rows = range(len(records.requests.row))[part]
    of = _Part(rows, part, records, requests, request_latencies(replace(records, requests=requests)))
    found = {name: told.values(of) for name, told in _REQUESTS.items()}
    return {name: values for name, values in found.items() if values is not None}


def calls_from(table: Mapping[str, Any]) -> CallColumns | None:
    """Return the attempts of the requests' table. Raises KeyError where a first attempt is missing."""
    if "attempt" not in table:
        return None
    rows = {name: row for row, name in enumerate(table["request_id"])}
    firsts = [rows[first] if first else row for row, first in enumerate(table["retry_of"])]
    return CallColumns(table["attempt"], np.array(firsts, dtype=np.int64), table["left_s"])


def sessions_from(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sessions and tasks of the requests' table, as `Records` has them."""
    found: dict[str, Any] = {}
    for name, count in (("session_id", "turn"), ("task_id", "task_requests")):
        if name in table:
            found[f"{name}s"] = tuple(text or None for text in table[name])
            found["turns" if count == "turn" else count] = table[count]
    return found


def step_columns(records: Records, part: slice = ALL) -> dict[str, Column]:
    """Return the rows in `part`: a step, or `repeat` equal decode steps with the counts of the first."""
    columns = {name: column[part] for name, column in plain_columns(records.rows).items()}
    return {**columns, "used_blocks": records.step_used_blocks[records.rows.first_step[part]]}


def replica_columns(records: Records, *, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> dict[str, Column]:
    """One row a replica, with its group."""
    found = by_replica(records, warmup_s=warmup_s, cooldown_s=cooldown_s)
    names = [group.name for group in records.sizes for _ in range(group.replicas)]
    columns = plain_columns(found)
    del columns["replicas"]
    return {"replica": np.arange(records.replicas), "group": names, **columns}


def plain_columns(columns: DataclassInstance) -> dict[str, Any]:
    """Return columns as they are: a row a life of an autoscaled replica, a transfer, counts of drafts, a prefix."""
    return {field.name: getattr(columns, field.name) for field in fields(columns)}


def columns_from(kind: type[T], table: Mapping[str, Any]) -> T:
    """The inverse of `plain_columns` and of `step_columns`. Raises KeyError for another table."""
    return kind(**{field.name: table[field.name] for field in fields(kind)})


def requests_from(table: Mapping[str, Any], class_names: tuple[str, ...]) -> RequestColumns:
    """The inverse of `request_columns`. Raises KeyError for another table."""
    classes = {name: index for index, name in enumerate(class_names)}
    statuses = {name: index for index, name in enumerate(STATUS_NAMES)}
    special: dict[str, Any] = {
        "row": np.arange(len(table["request_id"]), dtype=np.int64),
        "class_index": np.array([classes[name] for name in table["class"]], dtype=np.int64),
        "status": np.array([statuses[name] for name in table["status"]], dtype=np.int64),
    }
    if "aborted_tokens" not in table:  # a folder from before there were aborts
        special["aborted_tokens"] = np.zeros(len(table["request_id"]), dtype=np.int64)
    names = [field.name for field in fields(RequestColumns)]
    return RequestColumns(**{name: special[name] if name in special else table[name] for name in names})


def _named(index: Ints, names: tuple[str, ...]) -> list[str]:
    found: list[str] = np.array(names, dtype=object)[index].tolist()
    return found


REQUEST_COLUMNS: Columns = {name: (told.unit, told.meaning) for name, told in _REQUESTS.items()}
STEP_COLUMNS: Columns = {**described(RowColumns), "used_blocks": ("blocks", "in use during the row's first step")}
REPLICA_COLUMNS: Columns = {
    "replica": ("", "its number"),
    "group": ("", "its group of the fleet"),
    **described(PartColumns),
}
