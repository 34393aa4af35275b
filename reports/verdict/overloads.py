"""A transient overload in words: when it was, how much more came than could be begun, and how many requests paid."""

from __future__ import annotations

from collections.abc import Mapping

from reports.units import latency, short
from reports.verdict.significance import joined
from simulator.metrics.overload import Overload


def overload_words(
    found: Mapping[str, Overload | None], first: str | None = None, *, of_first: bool = False
) -> list[str]:
    """The overload of `first`, or else of the run that most requests paid for, whole; the others in short.

    Runs with the very same overload are told once. `of_first` says that these are of the first of several seeds.
    """
    runs = {label: each for label, each in found.items() if each is not None}
    if not runs:
        return []
    label = first if first in runs else max(runs, key=lambda name: runs[name].all_late)
    others = [
        f"{name} ({each.peak:,} waiting, {each.all_late:,} late)" for name, each in runs.items() if each != runs[label]
    ]
    also = f" So were {joined(others)}." if others else ""
    begin = "With the first seed, " if of_first else ""
    return [f"{begin}{label} {_whole(runs[label])}{also}"]


def _whole(each: Overload) -> str:
    again = f", the worst of {each.times} such times" if each.times > 1 else ""
    share = 100 * each.all_late / each.requests
    all_late = f"; {each.all_late:,} of all {each.requests:,} in all of them" if each.times > 1 else ""
    return (
        f"was overloaded from {_time(each.from_s)} to {_time(each.to_s)}{again}: while "
        f"{short(each.arrival_rate)} requests/s came, {short(each.service_rate)} were begun, so the queue reached "
        f"{each.peak:,} at {_time(each.peak_s)}, and {each.late:,} requests waited longer than "
        f"{latency(each.limit_s * 1e3)}, the longest {latency(each.longest_s * 1e3)}{all_late} ({share:.1f} %)."
    )


def _time(seconds: float) -> str:
    """A moment of the run: 181 s, 12.4 min."""
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.1f} min"
