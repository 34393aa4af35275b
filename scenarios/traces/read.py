"""From a trace file to a Workload: detect, stream, sort, shift to zero, scale, and note each change."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.traces.columns import Columns, collect
from scenarios.traces.content import Contents, contents
from scenarios.traces.detect import Detected, detect
from scenarios.traces.format import UNIT_NS, OpenTrace
from scenarios.traces.lines import missing_file, numbered_lines
from scenarios.traces.options import TraceOptions
from scenarios.traces.refused import in_folder
from scenarios.traces.rows import Tally, plural
from scenarios.traces.sources import public_source_hint
from simulator.errors import InputError
from simulator.workload import Floats, Ints, Workload

LATEST_START_S = 1e6  # a native trace that begins later than in eleven days is dated: its times are no run's
SHORTEST_S = 1e-9  # a trace shorter than this has no rate
_BURSTY = 0.5  # share of equal stamps from which a note speaks of jitter


@dataclass(frozen=True, slots=True)
class Reading:
    """A workload, and facts about its file. `skipped` counts unusable rows by reason."""

    workload: Workload
    format: str
    rows: int
    skipped: tuple[tuple[str, int], ...]


def read_trace(path: Path, options: TraceOptions | None = None) -> Workload:
    """The requests of a trace, ties in file order.

    The first arrival is at 0; a trace whose times count from the start of its run keeps them (`_zero`).
    `Workload.notes` say what was skipped, clipped or moved. Where no row names itself, a request is named by
    its row in the file, counted from 0 without the header. Raises InputError for a file that cannot be read, an
    unknown format, no usable request, a request id that occurs twice, and with `strict` for the first bad row.
    """
    return read(path, options).workload


def read(path: Path, options: TraceOptions | None = None) -> Reading:
    """As `read_trace`, with the facts about the file beside the workload."""
    path = Path(path)
    options = options or TraceOptions()
    file = str(path)
    skipped = Tally(file, options.strict)
    _check_place(path)
    with closing(numbered_lines(path)) as lines:
        found = detect(lines, options, file)
        columns = collect(found.trace, options, skipped)
    if not len(columns.inputs):
        raise _nothing_usable(columns, skipped, file)
    workload = _workload(columns, found, options, file, [*found.trace.remarks(), *_skip_notes(skipped)])
    return Reading(workload, found.format, columns.rows_seen, tuple(skipped.counts.items()))


def _check_place(path: Path) -> None:
    """Raise InputError for a folder of a known format, and for a missing file that has a public source."""
    if path.is_dir() and (refused := in_folder(path)) is not None:
        raise refused
    if not path.exists() and (source := public_source_hint(path.name)) is not None:
        missing = missing_file(path)
        raise InputError(missing.message, file=missing.file, hint=f"{missing.hint}\n  {source}")


def _workload(columns: Columns, found: Detected, options: TraceOptions, file: str, notes: list[str]) -> Workload:
    arrival, order, arrival_notes = _arrivals(columns, options)
    outputs, caps, cap_notes = _outputs(columns, options)
    inputs = _scaled(np.asarray(columns.inputs, dtype=np.int64), options.input_scale)
    content = contents(columns, inputs, options, file)
    extra = columns.extra
    classes = [extra["class"][place] or "default" for place in order.tolist()] if "class" in extra else []
    class_names = tuple(dict.fromkeys(classes)) or ("default",)
    index = {name: place for place, name in enumerate(class_names)}
    predicted = extra.get("predicted_output_tokens")
    deadline = extra.get("deadline_s")
    sessions = extra.get("session_id")
    places = order.tolist()
    count = len(places)
    return Workload(
        arrival_s=arrival,
        input_tokens=inputs[order],
        output_tokens=outputs[order],
        max_tokens=caps[order],
        priority=_integers(extra.get("priority"), 0, count)[order],
        class_index=np.array([index[name] for name in classes] or [0] * count, dtype=np.int64),
        class_names=class_names,
        request_ids=_names(columns, order, file),
        session_ids=None if sessions is None else [sessions[place] for place in places],
        predicted_output_tokens=None if predicted is None else _predicted(predicted, options.output_scale)[order],
        deadline_s=None if deadline is None else _deadlines(deadline)[order],
        content=None if content is None or not any(content.rows) else [content.rows[place] for place in places],
        notes=(
            _headline(columns, found, arrival),
            *found.notes,
            *_origin(columns, found.trace, options),
            *notes,
            *columns.window_notes(),
            *arrival_notes,
            *cap_notes,
            *_content_notes(content),
        ),
    )


def _arrivals(columns: Columns, options: TraceOptions) -> tuple[Floats, Ints, list[str]]:
    """Sorted arrivals in seconds, the places they come from, and what was done to them."""
    notes = []
    stamps = np.asarray(columns.arrival)
    late = int(np.count_nonzero(stamps < np.maximum.accumulate(stamps)))
    if late:
        notes.append(f"{plural(late, 'row')} came after a later arrival and moved up (a stable sort)")
    order = np.argsort(stamps, kind="stable")
    sorted_ = stamps[order]
    arrival: Floats = (sorted_ - _zero(columns, options)).astype(np.float64)
    if columns.in_ns:
        arrival /= 1e9
    steps = np.diff(arrival)
    equal = int(np.count_nonzero(steps == 0))
    if options.jitter_s:
        notes.append(f"jitter: each arrival moved by up to {options.jitter_s:g} s (seed {options.seed})")
        arrival = arrival + _jitter(len(arrival), options.seed) * options.jitter_s
        again = np.argsort(arrival, kind="stable")
        order, arrival = order[again], arrival[again]
    elif equal > _BURSTY * len(steps):
        tick = float(np.median(steps[steps > 0])) if equal < len(steps) else 0.0
        usual = f", the others usually {tick:g} s; jitter_s: {tick:g} would spread them" if tick else ""
        notes.append(f"{equal / len(steps):.1%} of arrivals come at the same time as the one before{usual}")
    if options.rate_scale != 1.0:
        notes.append(f"rate x {options.rate_scale:g}: times divided by {options.rate_scale:g}")
        arrival = arrival / options.rate_scale
    return arrival, order, notes


def _zero(columns: Columns, options: TraceOptions) -> float:
    """The arrival that becomes 0: the first, but on the clock `run` the start of the window.

    Times on that clock count from the start of the run that they describe, and are kept to the bit. Where they begin
    so late that they must be dates, the first arrival is 0 there too.
    """
    first = min(columns.arrival)
    if columns.in_ns or first >= LATEST_START_S:
        return first
    return options.start_s


def _jitter(count: int, seed: int) -> Floats:
    """Uniform draws from [0, 1), one a request, that depend on nothing but the seed."""
    from scenarios.streams import stream  # here, for it brings pydantic, and few traces are jittered

    return stream(seed, "trace", "jitter").random(count)


def _outputs(columns: Columns, options: TraceOptions) -> tuple[Ints, Ints, list[str]]:
    """Output lengths and caps, scaled; an output beyond its cap is cut there, as a server would."""
    outputs = np.asarray(columns.outputs, dtype=np.int64)
    caps = _integers(columns.extra.get("max_tokens"), 0, len(outputs))
    own = caps > 0
    over = own & (outputs > caps)
    outputs = np.where(over, caps, outputs)
    cut = int(np.count_nonzero(over))
    outputs = _scaled(outputs, options.output_scale)
    caps = np.maximum(_scaled(caps, options.output_scale), outputs) if own.any() else caps
    default = options.max_tokens or int(outputs.max())
    caps = np.where(own, caps, default)
    over = ~own & (outputs > default)
    cut += int(np.count_nonzero(over))
    outputs = np.where(over, default, outputs)
    return outputs, caps, [f"clipped {plural(cut, 'output')} to max_tokens"] if cut else []


def _scaled(lengths: Ints, scale: float) -> Ints:
    return lengths if scale == 1.0 else np.maximum(np.rint(lengths * scale).astype(np.int64), 1)


def _predicted(column: Sequence[int | None], scale: float) -> Ints:
    known = _integers(column, -1, len(column))
    return np.where(known > 0, _scaled(known, scale), known)


def _integers(column: Sequence[int | None] | None, absent: int, count: int) -> Ints:
    if column is None:
        return np.full(count, absent, dtype=np.int64)
    return np.array([absent if value is None else value for value in column], dtype=np.int64)


def _deadlines(column: Sequence[float | None]) -> Floats:
    return np.array([np.nan if value is None else value for value in column], dtype=np.float64)


def _names(columns: Columns, order: Ints, file: str) -> list[str] | None:
    """Request ids in order; None where every request lies at the row that it is named by."""
    rows = columns.row
    given: list[Any] | None = columns.extra.get("request_id")
    if given is None:
        moved = np.any(np.asarray(rows)[order] != np.arange(len(order)))
        return [str(rows[place]) for place in order.tolist()] if moved else None
    names = [str(row) if name is None else name for name, row in zip(given, rows, strict=True)]
    lines: dict[str, int] = {}
    for name, line in zip(names, columns.line, strict=True):
        if lines.setdefault(name, line) != line:
            raise InputError(
                f"the request_id {name!a} occurs twice",
                file=file,
                line=line,
                hint=f"first on line {lines[name]}; a row without one is named by its number, counted from 0",
            )
    return [names[place] for place in order.tolist()]


def _nothing_usable(columns: Columns, skipped: Tally, file: str) -> InputError:
    if not columns.rows_seen:
        return InputError("no usable request: the file holds a header but no rows", file=file)
    reasons = [f"skipped {text}" for text in skipped.texts()] + columns.window_notes()
    return InputError(f"no usable request in {plural(columns.rows_seen, 'row')}", file=file, hint="; ".join(reasons))


def _headline(columns: Columns, found: Detected, arrival: Floats) -> str:
    kind = "CSV" if found.kind == "csv" else "JSON Lines"
    text = f"{found.format} ({kind}): {plural(len(arrival), 'request')} out of {plural(columns.rows_seen, 'row')}"
    seconds = arrival[-1] - arrival[0]
    if seconds >= SHORTEST_S:
        text += f" in {seconds:,.1f} s, {(len(arrival) - 1) / seconds:.3f} requests/s"
    return text


def _origin(columns: Columns, trace: OpenTrace, options: TraceOptions) -> list[str]:
    """Time 0 in the words of the file."""
    first = _zero(columns, options)
    if trace.clock == "utc":
        whole, rest = divmod(int(first), 1_000_000_000)
        stamp = datetime.fromtimestamp(whole, UTC).strftime("%Y-%m-%d %H:%M:%S")
        return [f"time 0 is {stamp}.{rest:09d} UTC"]
    if trace.clock == "ticks":
        return [f"time 0 is timestamp {first / UNIT_NS[trace.time_unit]:.15g} {trace.time_unit}"]
    return [f"time 0 is arrival_time_s {first!r}"] if first else []


def _skip_notes(skipped: Tally) -> list[str]:
    return [f"skipped {text}" for text in skipped.texts()]


def _content_notes(content: Contents | None) -> list[str]:
    return [] if content is None else content.notes
