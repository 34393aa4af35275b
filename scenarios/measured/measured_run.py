"""A server's own log, a request an entry, in columns, checked as it is put together; and what a format of logs is."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from scenarios.traces.format import Line
from scenarios.traces.rows import RowError, integer, json_object, plural, real, split_csv, tokens
from simulator.errors import InputError
from simulator.results.records import Floats, Ints
from simulator.workload import Workload

# The totals that a tool wrote beside its requests, compared with these: a file may hold only a sample of them.

_ALIKE = 0.001  # relative: tools round, and count tokens again


@dataclass(frozen=True, slots=True)
class Totals:
    """What the tool itself counted of the served requests; None where its file does not say.

    `requests` with an answer, their prompt tokens, and their output tokens. `keeps_all` is what makes the tool write
    every request.
    """

    requests: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    keeps_all: str = ""

    def kept_of(self, rows: int) -> int | None:
        """Return how many requests were served, where the file holds fewer rows of them; else None."""
        return self.requests if self.requests is not None and self.requests > rows else None

    def notes(self, rows: int, input_tokens: int, output_tokens: int) -> list[str]:
        """Say what differs between these totals and the sums over the file's rows."""
        if (served := self.kept_of(rows)) is not None:
            how = f"; {self.keeps_all}" if self.keeps_all else ""
            return [
                f"warning: the file keeps {rows:,} of {plural(served, 'served request')}, a sample: its latencies are"
                f" compared as a distribution, its arrivals are not the traffic, and its rates are scaled by"
                f" {served / rows:.3g}{how}"
            ]
        found = []
        for name, total, added in (
            ("requests", self.requests, rows),
            ("prompt tokens", self.input_tokens, input_tokens),
            ("output tokens", self.output_tokens, output_tokens),
        ):
            if total is not None and abs(total - added) > _ALIKE * max(total, added):
                found.append(f"warning: the file counts {total:,} {name}, and its rows add up to {added:,}")
        return found


def whole(fields: object, *path: str) -> int | None:
    """Return the whole number under these keys of a JSON document; None where there is none."""
    for key in path:
        fields = fields.get(key) if isinstance(fields, Mapping) else None
    value: Any = fields
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


T = TypeVar("T")

NO_TOTALS = Totals()
CLOCK_SLACK_S = 1e-3  # stamps of one request may be out of order by this much: rounding, several threads
LONGEST_S = 1e7  # a latency above this is a mistaken unit


@dataclass(frozen=True, slots=True)
class Served:
    """A request that got its whole answer, as a reader found it: seconds on the log's clock, NaN where not logged.

    `row` counts the log's requests from 0, failed ones included; `place` says where in the file it stands.
    """

    row: int
    place: int | str  # a line, or a path in a JSON document
    input_tokens: int
    output_tokens: int
    ttft_s: float
    e2el_s: float
    arrival_s: float = math.nan
    scheduled_s: float = math.nan
    request_id: str | None = None
    preemptions: int | None = None


@dataclass(frozen=True, slots=True)
class Timeline:
    """A server's own samples: requests running and waiting, and when, in seconds from the run's start."""

    time_s: Floats
    running: Floats
    waiting: Floats


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A server's log: an entry for each request that was served, in the log's order.

    `arrival_s` and `scheduled_s` count from the first arrival; NaN where the log does not have them. `makespan_s` is
    from the first arrival to the last token (NaN: not known). `at_client`: a client took the times, so they include the
    way to the engine and back. `rows` counts failed requests too. `sample_of` is how many requests were served, where
    the log keeps a sample of them; `makespan_s` is then that of the run, if the log says it.
    """

    format: str
    file: str
    rows: int
    row: Ints
    request_ids: tuple[str, ...] | None
    arrival_s: Floats
    scheduled_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    ttft_s: Floats
    tpot_s: Floats  # NaN for answers of one token
    e2el_s: Floats
    preemptions: Ints | None
    makespan_s: float
    at_client: bool
    notes: tuple[str, ...]
    sample_of: int | None = None

    @property
    def has_arrivals(self) -> bool:
        """Return whether the log says when requests came."""
        return bool(np.isfinite(self.arrival_s).all())

    @property
    def queue_s(self) -> Floats:
        """Seconds until first scheduled; NaN where not logged."""
        return self.scheduled_s - self.arrival_s


def assemble(
    served: Sequence[Served],
    *,
    format_: str,
    file: str,
    rows: int,
    at_client: bool,
    failed: str = "",
    duration_s: float = math.nan,
    notes: Sequence[str] = (),
    totals: Totals = NO_TOTALS,
) -> MeasuredRun:
    """Check the requests and make the log of them. `failed` says why the others are left out, `totals` what the tool
    counted itself.

    Raises InputError, with the place in the file, for impossible times, and for a log without a served request.
    """
    if not served:
        raise InputError(f"no request in it was served{f': {failed}' if failed else ''}", file=file)
    for each in served:
        if (wrong := _impossible(each)) is not None:
            raise Row({}, file, each.place).error(wrong)
    arrival, scheduled = _floats(served, "arrival_s"), _floats(served, "scheduled_s")
    ttft, e2el = _floats(served, "ttft_s"), _floats(served, "e2el_s")
    inputs, outputs = _ints(served, "input_tokens"), _ints(served, "output_tokens")
    known = np.isfinite(arrival).all()
    first = float(arrival.min()) if known else 0.0
    tpot = np.full(len(served), np.nan)
    np.divide(e2el - ttft, outputs - 1, out=tpot, where=outputs > 1)
    dropped = rows - len(served)
    sample_of = totals.kept_of(len(served))
    makespan_s = float((arrival + e2el).max()) - first if known and sample_of is None else duration_s
    return MeasuredRun(
        format=format_,
        file=file,
        rows=rows,
        row=_ints(served, "row"),
        request_ids=_names(served, file),
        arrival_s=arrival - first,
        scheduled_s=scheduled - first,
        input_tokens=inputs,
        output_tokens=outputs,
        ttft_s=ttft,
        tpot_s=tpot,
        e2el_s=e2el,
        preemptions=None if any(s.preemptions is None for s in served) else _ints(served, "preemptions"),
        makespan_s=makespan_s,
        at_client=at_client,
        notes=(
            f"{format_}: {plural(len(served), 'request')} of {plural(rows, 'row')}",
            *([f"left out {plural(dropped, 'row')}: {failed}"] if dropped else []),
            *notes,
            *totals.notes(len(served), int(inputs.sum()), int(outputs.sum())),
        ),
        sample_of=sample_of,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """An entry of a log. Its readers raise InputError with the place of the entry."""

    fields: Mapping[str, Any]
    file: str
    place: int | str  # a line, or a path in a JSON document

    def error(self, message: str, hint: str | None = None) -> InputError:
        """Return an error about this entry."""
        if isinstance(self.place, int):
            return InputError(message, file=self.file, line=self.place, hint=hint)
        return InputError(f"{self.place}: {message}", file=self.file, hint=hint)

    def number(self, name: str, *, optional: bool = False) -> float:
        """Return a finite number; NaN where it is missing and may be."""
        if optional and self.fields.get(name) in (None, ""):
            return math.nan
        return self._parsed(real, name)

    def tokens(self, name: str) -> int:
        """Return a number of tokens, at least 1."""
        return self._parsed(tokens, name)

    def whole(self, name: str) -> int | None:
        """Return a whole number; None where it is missing."""
        return None if self.fields.get(name) in (None, "") else self._parsed(integer, name)

    def text(self, name: str) -> str | None:
        """Return a text; None where there is none."""
        value = self.fields.get(name)
        return value if isinstance(value, str) else None

    def part(self, name: str) -> Row:
        """Return the object under a key."""
        part = self.fields.get(name)
        if not isinstance(part, dict):
            raise self.error(f"{name} is not an object")
        return Row(part, self.file, self.place)

    def _parsed(self, parse: Callable[[Any, str], T], name: str) -> T:
        try:
            return parse(self.fields.get(name), name)
        except RowError as error:
            raise self.error(error.detail) from None


def _impossible(each: Served) -> str | None:
    if not 0 <= each.ttft_s <= LONGEST_S:
        return f"a time to first token of {each.ttft_s:g} s"
    if not each.ttft_s <= each.e2el_s + CLOCK_SLACK_S:
        return f"the last token ({each.e2el_s:g} s after the arrival) comes before the first ({each.ttft_s:g} s)"
    if each.e2el_s > LONGEST_S:
        return f"an end-to-end latency of {each.e2el_s:g} s: is it in another unit?"
    wait_s = each.scheduled_s - each.arrival_s
    if wait_s < -CLOCK_SLACK_S:
        return f"scheduled {-wait_s:g} s before it arrived"
    if wait_s > each.ttft_s + CLOCK_SLACK_S:
        return "scheduled after its first token"
    return None


def _floats(served: Sequence[Served], name: str) -> Floats:
    return np.array([getattr(each, name) for each in served], dtype=np.float64)


def _ints(served: Sequence[Served], name: str) -> Ints:
    return np.array([getattr(each, name) for each in served], dtype=np.int64)


def _names(served: Sequence[Served], file: str) -> tuple[str, ...] | None:
    """The requests' names, if all have one."""
    names: dict[str, Served] = {}
    for each in served:
        if each.request_id is None:
            return None
        if names.setdefault(each.request_id, each) is not each:
            first = names[each.request_id].place
            where = f"on line {first}" if isinstance(first, int) else f"at {first}"
            raise Row({}, file, each.place).error(f"the request {each.request_id!a} occurs twice", f"first {where}")
    return tuple(names)


def workload_of(log: MeasuredRun) -> Workload:
    """Return the served requests of a log, ties in its order, each under its name or row number there.

    Raises InputError for a log without arrivals, and for one that keeps a sample of its requests.
    """
    if not log.has_arrivals:
        raise InputError("the log has no arrivals to replay", file=log.file, hint="leave --replay out")
    if log.sample_of is not None:
        what = f"the log keeps {len(log.row):,} of {log.sample_of:,} requests: a replay of them is not the traffic"
        hint = "leave --replay out and give the scenario the traffic of the run, or record every request"
        raise InputError(what, file=log.file, hint=hint)
    order = np.argsort(log.arrival_s, kind="stable")
    names = log.request_ids or tuple(str(row) for row in log.row.tolist())
    outputs = log.output_tokens[order]
    count = len(order)
    return Workload(
        arrival_s=log.arrival_s[order],
        input_tokens=log.input_tokens[order],
        output_tokens=outputs,
        max_tokens=np.full(count, int(outputs.max()), dtype=np.int64),
        priority=np.zeros(count, dtype=np.int64),
        class_index=np.zeros(count, dtype=np.int64),
        class_names=("default",),
        request_ids=[names[place] for place in order.tolist()],
        notes=("arrivals and lengths are those of the log; what its prompts share is not known",),
    )


# A format of server logs: how a log of it is recognised, and how it is read.
#
# Each module of `scenarios/measured/formats/` holds one, as its constant `FORMAT`.


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log on disk: its name, and its lines that are not blank."""

    name: str
    lines: list[Line]

    def document(self) -> Any:
        """Return the JSON document that the whole file holds. Raises InputError with the line where it breaks."""
        texts = dict(self.lines)
        text = "\n".join(texts.get(line, "") for line in range(1, self.lines[-1][0] + 1))
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            what = f"this is no complete JSON document: {error.msg}"
            raise InputError(what, file=self.name, line=error.lineno, column=error.colno) from None
        except RecursionError:
            raise InputError("the JSON document is nested too deeply", file=self.name) from None

    def objects(self) -> Iterator[Row]:
        """Yield the JSON object of each line."""
        for line, text in self.lines:
            yield Row(self._parsed(json_object, line, text), self.name, line)

    def csv_rows(self, wanted: Sequence[str]) -> Iterator[Row]:
        """Yield each row of a CSV below its header. Raises InputError for missing columns and rows of another width."""
        line, text = self.lines[0]
        header = [name.strip() for name in self._parsed(split_csv, line, text)]
        if missing := [name for name in wanted if name not in header]:
            seen = f"columns seen: {', '.join(header[:15])}"
            raise InputError(f"no column {', '.join(missing)}", file=self.name, line=line, hint=seen)
        for line, text in self.lines[1:]:
            cells = self._parsed(split_csv, line, text)
            if len(cells) != len(header):
                what = f"{len(cells)} fields, but the header has {len(header)}"
                raise InputError(what, file=self.name, line=line)
            yield Row(dict(zip(header, cells, strict=True)), self.name, line)

    def chosen(self, results: Sequence[Any], which: int | None, noun: str) -> int:
        """Return the place of the result that was asked for (counted from 1), or of the only one."""
        count = len(results)
        if which is None and count > 1:
            raise InputError(f"the file holds {count} {noun}s", file=self.name, hint="choose one: --benchmark 1, ...")
        if which is not None and not 1 <= which <= count:
            raise InputError(f"the file holds no {noun} {which}", file=self.name, hint=f"allowed: 1 to {count}")
        return (which or 1) - 1

    def _parsed(self, parse: Callable[[str], T], line: int, text: str) -> T:
        try:
            return parse(text)
        except RowError as error:
            raise InputError(error.detail, file=self.name, line=line) from None


@dataclass(frozen=True, slots=True)
class Summary:
    """A file of the same tool without single requests: a key that marks it, what it is, what to give instead."""

    key: str
    what: str
    hint: str


@dataclass(frozen=True, slots=True)
class LogFormat:
    """One format. `read` takes the file and the number of a run in it (None: not chosen), and raises InputError.

    A log is of the format if its first object (or the whole document) has all of `keys`, or its header all of
    `columns`; the format that demands most wins, and one that demands nothing takes any other CSV. `several` says that
    a file may hold more than one run.
    """

    name: str
    read: Callable[[LogFile, int | None], MeasuredRun]
    keys: frozenset[str] | None = None
    columns: frozenset[str] | None = None
    several: bool = False
    summary: Summary | None = None
