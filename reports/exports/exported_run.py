"""A run to export, and the formats that it can be written in."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from simulator.parameters import constants_in
from simulator.results.records import Floats, Ints, Records, Status

Table = Mapping[str, Floats | Ints | Sequence[str]]
"""Columns by name, of equal length; NaN stands for what is not there."""


@dataclass(frozen=True)  # no slots: what is worked out from the rows is kept
class Exported:
    """A finished run.

    `summary` is its summary.json, `tables` its tables by file name without the ending, `decisions` opens its decision
    log, which is None where it has none. `max_model_len` is the longest context of its model, in tokens.
    """

    label: str
    summary: Mapping[str, Any]
    records: Records
    tables: Mapping[str, Table]
    max_model_len: int
    prefix_caching: bool
    decisions: Callable[[], Iterator[Mapping[str, Any]]] | None = None

    @property
    def about(self) -> Mapping[str, Any]:
        """Model, GPU, policy, seed and version."""
        found: Mapping[str, Any] = self.summary["provenance"]
        return found

    @property
    def model(self) -> str:
        return str(self.about["model"])

    @cached_property
    def at_engine(self) -> Records:
        """The records on the engine's clock, without what lies between it and the clients."""
        records, requests = self.records, self.records.requests
        late_s = records.front_end_s
        first_s, last_s = requests.first_token_s - late_s, requests.last_token_s - late_s
        return replace(records, requests=replace(requests, first_token_s=first_s, last_token_s=last_s), front_end_s=0.0)

    @cached_property
    def end_s(self) -> float:
        """The end of the last step; 0 without steps."""
        return float(self.records.step_end_s.max(initial=0.0))

    @cached_property
    def request_ids(self) -> list[str]:
        return [self.records.request_id(row) for row in range(len(self.records.requests.row))]

    def failure(self, row: int) -> str:
        """The reason why a request has no answer; '' where it has one."""
        status = Status(int(self.records.requests.status[row]))
        if status is Status.FINISHED:
            return ""
        return self.records.reject_reasons.get(row) or _FAILURES[status]

    def in_order_sent(self) -> list[int]:
        """The rows in order of arrival; ties keep their order."""
        found: list[int] = np.argsort(self.records.requests.arrival_s, kind="stable").tolist()
        return found


_FAILURES = {
    Status.REJECTED: "rejected",
    Status.UNFINISHED: "unfinished at the end of the run",
    Status.ABORTED: "aborted by its client",
}


@dataclass(frozen=True, slots=True)
class ExportFormat:
    """A format, held by the constant `FORMAT` of a module of `formats/`; the module's name is the format's name.

    `title` says what reads it, `note` what is in it. `write` writes some of `files` into an existing folder. It needs
    the Python package `package`, which `extra` installs.
    """

    title: str
    note: str
    files: Sequence[str]
    write: Callable[[Exported, Path], None]
    extra: str = ""
    package: str = ""


def export_formats() -> Mapping[str, ExportFormat]:
    """Every format by its name, in the order of the names."""
    return constants_in("reports.exports.formats", "FORMAT")


def export_files() -> frozenset[str]:
    """The names of all files that an export may write."""
    return frozenset(file for form in export_formats().values() for file in form.files)


def write_json(path: Path, value: Any) -> None:
    """Write one JSON document in one line, as the tools themselves do; NaN is refused."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8", newline="\n")


def write_lines(path: Path, values: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON Lines."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for value in values:
            file.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")


# The tracks of a trace in Chrome's JSON: processes, threads, and the events on them.
#
# Times go in as seconds and are rounded to nanoseconds once, so that what lies inside another slice stays inside
# it.

Event = dict[str, Any]


def _us(ns: int) -> int | float:
    """Nanoseconds as microseconds, without a bit lost below 2^53 ns (104 days)."""
    return ns // 1000 if ns % 1000 == 0 else ns / 1000


def as_ns(seconds: float) -> int:
    """Seconds as whole nanoseconds."""
    return round(1e9 * seconds)


@dataclass(frozen=True, slots=True)
class Track:
    """A thread of a process: slices one after the other, or inside each other."""

    pid: int
    tid: int

    def slice(
        self,
        name: str,
        category: str,
        start_s: float,
        end_s: float,
        told: Mapping[str, Any] | None = None,
        *,
        flow: int | None = None,
        **ends: bool,
    ) -> Event:
        """A slice; with `flow`, an arrow of that number comes `in` or goes `out`."""
        start = as_ns(start_s)
        event: Event = {
            "ph": "X",
            "pid": self.pid,
            "tid": self.tid,
            "ts": _us(start),
            "dur": _us(as_ns(end_s) - start),
        }
        event |= {"name": name, "cat": category}
        if told:
            event["args"] = dict(told)
        if flow is not None:
            event["bind_id"] = hex(flow)
            event |= {f"flow_{end}": True for end, has in ends.items() if has}
        return event

    def instant(self, name: str, category: str, time_s: float, told: Mapping[str, Any]) -> Event:
        """A moment."""
        event: Event = {"ph": "i", "s": "t", "pid": self.pid, "tid": self.tid, "ts": _us(as_ns(time_s))}
        return event | {"name": name, "cat": category, "args": dict(told)}


@dataclass(slots=True)
class Tracks:
    """Gives out numbers, each once in the whole trace, and keeps the names."""

    _processes: list[str] = field(default_factory=list)
    _threads: list[tuple[int, str]] = field(default_factory=list)

    def process(self, name: str) -> int:
        """A process of this name; 0 would be the idle one of a real machine."""
        self._processes.append(name)
        return len(self._processes)

    def track(self, process: int, name: str) -> Track:
        """A track of this name in the process."""
        self._threads.append((process, name))
        return Track(process, 1000 + len(self._threads))

    def counter(self, process: int, name: str, times_s: Floats, values: Ints) -> Iterator[Event]:
        """A sample at each time at which the value is another one; of several at one time the last counts."""
        shown = None
        count = len(times_s)
        for place, (time_s, value) in enumerate(zip(times_s.tolist(), values.tolist(), strict=True)):
            last = place + 1 == count or times_s[place + 1] > time_s
            if last and value != shown:
                yield {
                    "ph": "C",
                    "pid": process,
                    "ts": _us(as_ns(time_s)),
                    "name": name,
                    "args": {"value": value},
                }
                shown = value

    def names(self) -> Iterator[Event]:
        """The names of processes and threads, and the order to show them in."""
        for number, name in enumerate(self._processes, 1):
            yield {"ph": "M", "pid": number, "name": "process_name", "args": {"name": name}}
            yield {"ph": "M", "pid": number, "name": "process_sort_index", "args": {"sort_index": number}}
        for number, (process, name) in enumerate(self._threads, 1001):
            base: Event = {"ph": "M", "pid": process, "tid": number}
            yield base | {"name": "thread_name", "args": {"name": name}}
            yield base | {"name": "thread_sort_index", "args": {"sort_index": number}}
