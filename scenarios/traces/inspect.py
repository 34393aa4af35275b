"""A trace in numbers, as `batchlab trace inspect` shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from scenarios.traces.arrange import late_note, tick_notes, zero_of
from scenarios.traces.columns import Columns, Cut, columns_for, kept_rows
from scenarios.traces.content import block_notes, part_contents
from scenarios.traces.detect import Detected
from scenarios.traces.facts.arrivals import ArrivalFacts, ArrivalSums
from scenarios.traces.facts.lengths import LengthFacts, LengthTable, PairSums
from scenarios.traces.facts.prefix import PrefixFacts, PrefixHits
from scenarios.traces.options import TraceOptions
from scenarios.traces.read import load, open_trace
from scenarios.traces.rows import Tally, plural
from scenarios.traces.store import RowStore
from scenarios.traces.wording import file_notes, follows_notes, headline, nothing_usable
from simulator.request import PromptContent
from simulator.workload import Floats, Ints


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """The facts that `trace inspect` prints. `skipped` counts unusable rows by reason."""

    file: str
    format: str
    rows: int
    requests: int
    skipped: tuple[tuple[str, int], ...]
    arrivals: ArrivalFacts
    input: LengthFacts
    output: LengthFacts
    input_output_ratio: float
    max_total_tokens: int
    pearson: float | None
    spearman: float | None
    prefix: PrefixFacts | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the requests, in order: arrivals in seconds, lengths, contents where there are any."""

    arrival_s: Floats
    inputs: Ints
    outputs: Ints
    contents: Sequence[PromptContent | None] | None


Parts = Callable[[], Iterator[_Part]]
"""A function that gives all requests, each time from the first on."""


def inspect_trace(path: Path, options: TraceOptions | None = None) -> TraceFacts:
    """Read a trace and sum it up. Raises InputError as `read_trace` does.

    The rows pass by on disk, so that the file may be larger than memory; what stays in memory grows with the different
    lengths and block hashes, and with the sessions. Options that move or scale requests have them all in memory.
    """
    path, options = Path(path), options or TraceOptions()
    if options.arranges:
        return _of_workload(path, options)
    file = str(path)
    skipped, cut = Tally(file, options.strict), Cut()
    with open_trace(path, options) as found, RowStore(partial(columns_for, found.trace)) as store:
        store.fill(kept_rows(found.trace, options, skipped, cut), file)
        if not store.count:
            raise nothing_usable(cut, skipped, file)
        return _of_store(store, path, found, options, skipped, cut)


def _of_store(
    store: RowStore, path: Path, found: Detected, options: TraceOptions, skipped: Tally, cut: Cut
) -> TraceFacts:
    zero = zero_of(found.trace.clock != "run", store.first, options)
    dropped = Tally(str(path), options.strict)
    clipped = 0

    def parts(*, with_content: bool) -> Iterator[_Part]:
        nonlocal clipped
        clipped = 0
        for columns in store.chunks():
            outputs, cut_here = _clipped(columns)
            clipped += cut_here
            inputs = np.asarray(columns.inputs, dtype=np.int64)
            content = part_contents(columns, inputs, options, str(path), store.sizes, dropped) if with_content else None
            yield _Part(_seconds(columns, zero), inputs, outputs, None if content is None else content.rows)

    sums = _Sums.of(partial(parts, with_content=False), partial(parts, with_content=True))
    arrivals = sums.arrivals
    notes = [
        headline(found, store.count, cut.rows_seen, arrivals.facts().duration_s),
        *file_notes(found, zero, skipped, cut),
        *([late_note(store.late)] if store.late else []),
        *(tick_notes(arrivals.zero_gaps, arrivals.gaps, arrivals.steps()) if found.trace.timed else []),
        *follows_notes(store.followers),
        *([f"clipped {plural(clipped, 'output')} to max_tokens"] if clipped else []),
        *block_notes(store.sizes, dropped),
        *sums.prefix.notes(),
    ]
    return sums.facts(path.name, found.format, cut.rows_seen, tuple(skipped.counts.items()), notes)


def _of_workload(path: Path, options: TraceOptions) -> TraceFacts:
    """The facts of requests that were moved or scaled, all in memory."""
    reading = load(path, options)
    workload = reading.workload

    def parts() -> Iterator[_Part]:
        yield _Part(workload.arrival_s, workload.input_tokens, workload.output_tokens, workload.content)

    sums = _Sums.of(parts, parts)
    notes = [*workload.notes, *sums.prefix.notes()]
    return sums.facts(path.name, reading.format, reading.rows, reading.skipped, notes)


@dataclass(frozen=True, slots=True)
class _Sums:
    """The sums over all requests."""

    arrivals: ArrivalSums
    input: LengthTable
    output: LengthTable
    pairs: PairSums
    prefix: PrefixHits
    requests: int
    tokens: tuple[int, int]
    largest: int

    @classmethod
    def of(cls, lengths: Parts, whole: Parts) -> _Sums:
        """Go through the requests twice: for their lengths, then for everything that builds on these."""
        inputs, outputs = LengthTable(), LengthTable()
        for part in lengths():
            inputs.add(part.inputs)
            outputs.add(part.outputs)
        arrivals, pairs, prefix = ArrivalSums(), PairSums(inputs, outputs), PrefixHits()
        requests = input_tokens = output_tokens = largest = 0
        for part in whole():
            requests += len(part.inputs)
            input_tokens += int(part.inputs.sum())
            output_tokens += int(part.outputs.sum())
            largest = max(largest, int((part.inputs + part.outputs).max()))
            arrivals.add(part.arrival_s)
            pairs.add(part.inputs, part.outputs)
            if part.contents is not None:
                prefix.add(part.inputs.tolist(), part.contents)
        return cls(arrivals, inputs, outputs, pairs, prefix, requests, (input_tokens, output_tokens), largest)

    def facts(
        self, file: str, format_: str, rows: int, skipped: tuple[tuple[str, int], ...], notes: Sequence[str]
    ) -> TraceFacts:
        pearson, spearman = self.pairs.facts()
        return TraceFacts(
            file=file,
            format=format_,
            rows=rows,
            requests=self.requests,
            skipped=skipped,
            arrivals=self.arrivals.facts(),
            input=self.input.facts(),
            output=self.output.facts(),
            input_output_ratio=self.tokens[0] / self.tokens[1],
            max_total_tokens=self.largest,
            pearson=pearson,
            spearman=spearman,
            prefix=self.prefix.facts(),
            notes=tuple(notes),
        )


def _seconds(columns: Columns, zero: float) -> Floats:
    arrival: Floats = (np.asarray(columns.arrival) - zero).astype(np.float64)
    return arrival / 1e9 if columns.in_ns else arrival


def _clipped(columns: Columns) -> tuple[Ints, int]:
    """Outputs, cut where a row has a cap of its own, and how many were."""
    outputs = np.asarray(columns.outputs, dtype=np.int64)
    caps = columns.extra.get("max_tokens")
    if caps is None:
        return outputs, 0
    limit = np.array([2**62 if cap is None else cap for cap in caps], dtype=np.int64)
    return np.minimum(outputs, limit), int(np.count_nonzero(outputs > limit))
