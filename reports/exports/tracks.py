"""The tracks of a trace in Chrome's JSON: processes, threads, and the events on them.

Times go in as seconds and are rounded to nanoseconds once, so that what lies inside another slice stays inside it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from simulator.results.records import Floats, Ints

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
