"""A trace in numbers, and these as plain text: `batchlab trace inspect`."""

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
from scenarios.traces.facts import (
    PERCENTS,
    ArrivalFacts,
    ArrivalSums,
    LengthFacts,
    LengthTable,
    PairSums,
    PrefixFacts,
    PrefixHits,
)
from scenarios.traces.options import TraceOptions
from scenarios.traces.read import file_notes, follows_notes, headline, load, nothing_usable, open_trace
from scenarios.traces.rows import Tally, plural
from scenarios.traces.store import RowStore
from simulator.metrics.metric import percent
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


def facts_table(facts: TraceFacts) -> str:
    """The facts as plain text, for a person."""
    skipped = sum(number for _, number in facts.skipped)
    load = facts.arrivals
    lines = [
        f"{facts.file}: {facts.format}, {facts.requests:,} requests out of {facts.rows:,} rows",
        *(f"  {note}" for note in facts.notes[1:]),
        "",
        *_pairs(
            ("duration", f"{load.duration_s:,.1f} s"),
            ("rate", f"{_number(load.rate, 3)} requests/s"),
            ("busiest minute", f"{load.peak_minute:,} requests"),
            ("inter-arrival CV", f"{_number(load.interarrival_cv, 3)} (Poisson: 1)"),
            (
                "dispersion of counts",
                f"{_number(load.idc_1s, 2)} in 1 s, {_number(load.idc_10s, 2)} in 10 s, "
                f"{_number(load.idc_60s, 2)} in 60 s (Poisson: 1)",
            ),
            ("longest gap", f"{load.max_gap_s:,.2f} s"),
            ("gaps of zero", percent(load.zero_gap_share, 1)),
            ("rows skipped", f"{skipped:,}"),
        ),
        "",
        *_lengths_table(facts.input, facts.output),
        "",
        *_pairs(
            ("input : output tokens", f"{facts.input_output_ratio:,.2f}"),
            ("largest request", f"{facts.max_total_tokens:,} tokens"),
            ("correlation in/out", f"{_number(facts.pearson, 3)} Pearson, {_number(facts.spearman, 3)} Spearman"),
        ),
    ]
    if facts.prefix is not None:
        lines += ["", *_prefix_lines(facts.prefix)]
    return "\n".join(lines) + "\n"


def _lengths_table(inputs: LengthFacts, outputs: LengthFacts) -> list[str]:
    rows = [("tokens", "input", "output"), ("min", f"{inputs.min:,}", f"{outputs.min:,}")]
    for rank, a, b in zip(PERCENTS, inputs.percentiles, outputs.percentiles, strict=True):
        rows.append((f"p{rank:g}", f"{a:,.1f}", f"{b:,.1f}"))
    rows += [
        ("max", f"{inputs.max:,}", f"{outputs.max:,}"),
        ("mean", f"{inputs.mean:,.1f}", f"{outputs.mean:,.1f}"),
        ("CV", f"{inputs.cv:.3f}", f"{outputs.cv:.3f}"),
        ("tail index (Hill, top 5 %)", _number(inputs.hill_alpha, 2), _number(outputs.hill_alpha, 2)),
        ("tokens in the top 5 % of rows", percent(inputs.tail_token_share, 1), percent(outputs.tail_token_share, 1)),
    ]
    return [f"  {name:<30}{a:>14}{b:>14}" for name, a, b in rows]


def _prefix_lines(prefix: PrefixFacts) -> list[str]:
    low, middle, high = prefix.hit_share_quartiles
    return _pairs(
        ("prompts with block hashes", f"{prefix.requests:,}"),
        ("blocks", f"{prefix.blocks:,}, {prefix.distinct_blocks:,} of them distinct"),
        ("distinct used again", percent(prefix.distinct_reused_share, 1)),
        ("ideal hit ratio, blocks", percent(prefix.block_hit_ratio, 1)),
        ("ideal hit ratio, tokens", percent(prefix.token_hit_ratio, 1)),
        ("hit share per request", f"p25 {low:.2f}, p50 {middle:.2f}, p75 {high:.2f}"),
        ("requests without a hit", f"{prefix.requests_without_hit:,}"),
        ("most used block", f"in {prefix.top_block_requests:,} requests"),
    )


def _pairs(*pairs: tuple[str, str]) -> list[str]:
    return [f"  {name:<26}{value}" for name, value in pairs]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
