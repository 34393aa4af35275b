"""Sentences about a whole trace: its headline, the zero of its times, and why nothing of it can be used."""

from collections.abc import Sequence
from datetime import UTC, datetime

from scenarios.traces.columns import Cut
from scenarios.traces.detect import Detected
from scenarios.traces.format import UNIT_NS, OpenTrace
from scenarios.traces.rows import Tally, plural
from simulator.errors import InputError

SHORTEST_S = 1e-9  # a trace shorter than this has no rate
_KINDS = {"csv": "CSV", "jsonl": "JSON Lines", "text": "JSON", "folder": "folder"}


def headline(found: Detected, requests: int, rows: int, seconds: float) -> str:
    """Format, size and rate. `seconds` lie between the first arrival and the last."""
    text = f"{found.format} ({_KINDS[found.kind]}): {plural(requests, 'request')} out of {plural(rows, 'row')}"
    if seconds >= SHORTEST_S:
        text += f" in {seconds:,.1f} s, {(requests - 1) / seconds:.3f} requests/s"
    return text


def origin(trace: OpenTrace, zero: float) -> list[str]:
    """Time 0 in the words of the file."""
    if not trace.timed:
        return ["no arrival times: every request arrives at 0, unless workload.trace.arrival gives other arrivals"]
    if trace.clock == "utc":
        whole, rest = divmod(int(zero), 1_000_000_000)
        stamp = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%d %H:%M:%S")
        return [f"time 0 is {stamp}.{rest:09d} UTC"]
    if trace.clock == "ticks":
        return [f"time 0 is timestamp {zero / UNIT_NS[trace.time_unit]:.15g} {trace.time_unit}"]
    return [f"time 0 is arrival_time_s {zero!r}"] if zero else []


def file_notes(found: Detected, zero: float, skipped: Tally, cut: Cut) -> list[str]:
    """Return the notes about the file, and about what of it is left out."""
    return [
        *found.notes,
        *origin(found.trace, zero),
        *found.trace.remarks(),
        *(f"skipped {text}" for text in skipped.texts()),
        *cut.notes(),
    ]


def nothing_usable(cut: Cut, skipped: Tally, file: str) -> InputError:
    """There is no request in the file, or in the part of it that was asked for."""
    if not cut.rows_seen:
        return InputError("no usable request: the file has a header but no rows", file=file)
    reasons = [f"skipped {text}" for text in skipped.texts()] + cut.notes()
    return InputError(f"no usable request in {plural(cut.rows_seen, 'row')}", file=file, hint="; ".join(reasons))


def twice(name: str, line: int, first: int, file: str) -> InputError:
    """Two requests have the same name."""
    return InputError(
        f"the request_id {name!a} occurs twice",
        file=file,
        line=line,
        hint=f"first on line {first}; a row without a name has its number, counted from 0, as name",
    )


def missing_notes(missing: int) -> Sequence[str]:
    """Return the note about answers that joins wait for and that are not in the part that is read."""
    return (
        [f"{plural(missing, 'answer')} that requests wait for are not in this part: not waited for"] if missing else []
    )


def follows_notes(followers: int) -> Sequence[str]:
    """Return the notes about requests that follow an answer."""
    if not followers:
        return []
    verb = "follows" if followers == 1 else "follow"
    return [
        f"{plural(followers, 'request')} {verb} an earlier answer (sessions); an open replay keeps the recorded times"
    ]
