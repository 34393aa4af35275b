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
    also = f" The same happened to {joined(others)}." if others else ""
    begin = "With the first seed, " if of_first else ""
    return [f"{begin}{label} {_whole(runs[label])}{also}"]


def _whole(each: Overload) -> str:
    again = f", the worst of {each.times} such times" if each.times > 1 else ""
    share = f"({100 * each.all_late / each.requests:.1f} %)"
    if each.times > 1:
        share = f"({each.all_late:,} of all {each.requests:,} in all such times, {share[1:]}"
    return (
        f"was overloaded from {_time(each.from_s)} to {_time(each.to_s)}{again}: "
        f"{short(each.arrival_rate)} requests/s came, but only {short(each.service_rate)} were started. The queue "
        f"reached {each.peak:,} at {_time(each.peak_s)}. {each.late:,} requests waited longer than "
        f"{latency(each.limit_s * 1e3)} {share}, the longest {latency(each.longest_s * 1e3)}."
    )


def _time(seconds: float) -> str:
    """A moment of the run: 181 s, 12.4 min."""
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.1f} min"
