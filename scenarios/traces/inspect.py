"""A trace in numbers: load over time, token counts, what a prefix cache could reuse; and these as plain text."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from scenarios.traces.arrange import late_note, tick_notes, zero_of
from scenarios.traces.columns import Columns, Cut, block_notes, columns_for, kept_rows, part_contents
from scenarios.traces.detect import Detected
from scenarios.traces.options import TraceOptions
from scenarios.traces.read import (
    SHORTEST_S,
    RowStore,
    file_notes,
    follows_notes,
    headline,
    load,
    nothing_usable,
    open_trace,
)
from scenarios.traces.rows import Tally, plural
from simulator.metrics.metric import percent
from simulator.request import PromptContent
from simulator.workload import Floats, Ints

# Facts about a trace: its load over time, its token counts, and what a prefix cache could reuse of them.

# The load of a trace over time.

_MOST_STEPS = 100_000  # different steps that are remembered: a trace in ticks has few


@dataclass(frozen=True, slots=True)
class ArrivalFacts:
    """The load over time. None where there are too few requests to tell.

    `rate` is (requests - 1) / duration, `interarrival_cv` the standard deviation of the gaps over their mean, and an
    index of dispersion (`idc_*`) the variance over the mean of the counts in the trace's whole windows of that many
    seconds: 1 for a Poisson process. `peak_minute` is the largest count in any 60 s counted from the first arrival.
    """

    duration_s: float
    rate: float | None
    interarrival_cv: float | None
    idc_1s: float | None
    idc_10s: float | None
    idc_60s: float | None
    max_gap_s: float
    zero_gap_share: float | None
    peak_minute: int


@dataclass(slots=True)
class _Windows:
    """Counts of arrivals in windows of `width_s`, as sums. Windows without arrivals cost nothing."""

    width_s: float
    at: float = 0.0  # the window of the last arrival, counted from 0, and its count so far
    count: int = 0
    total: int = 0  # of the windows before it
    squares: int = 0
    peak: int = 0

    def add(self, since_first_s: Floats) -> None:
        windows, counts = np.unique(since_first_s // self.width_s, return_counts=True)
        if windows[0] == self.at:
            counts[0] += self.count
        else:
            counts, windows = np.append(self.count, counts), np.append(self.at, windows)
        done = counts[:-1]
        self.total += int(done.sum())
        self.squares += int((done**2).sum())
        self.at, self.count = float(windows[-1]), int(counts[-1])
        self.peak = max(self.peak, int(counts.max()))

    def dispersion(self) -> float | None:
        """Variance over mean of the counts in whole windows; None for fewer than two of them."""
        if self.at < 2:
            return None
        mean = self.total / self.at
        return float(self.squares / self.at - mean**2) / mean


@dataclass(slots=True)
class ArrivalSums:
    """Sums over arrivals, which come in ascending order."""

    _first: float | None = None
    _last: float = 0.0
    gaps: int = 0  # between the arrivals so far
    _mean: float = 0.0  # of the gaps
    _deviations: float = 0.0  # sum of their squared deviations from it
    _longest: float = 0.0
    zero_gaps: int = 0
    _steps: dict[float, int] = field(default_factory=dict)  # gaps above 0, as long as they are few
    _windows: tuple[_Windows, ...] = field(default_factory=lambda: (_Windows(1.0), _Windows(10.0), _Windows(60.0)))

    def add(self, arrival_s: Floats) -> None:
        """The next arrivals, at least one."""
        if self._first is None:
            self._first = self._last = float(arrival_s[0])
            gaps = np.diff(arrival_s)
        else:
            gaps = np.diff(arrival_s, prepend=self._last)
        self._last = float(arrival_s[-1])
        for windows in self._windows:
            windows.add(arrival_s - self._first)
        if len(gaps):
            self._add_gaps(gaps)

    def _add_gaps(self, gaps: Floats) -> None:
        # Means and deviations of the two parts put together (Chan, Golub and LeVeque, 1979).
        mean, both = float(gaps.mean()), self.gaps + len(gaps)
        apart = mean - self._mean
        self._deviations += float(((gaps - mean) ** 2).sum()) + apart**2 * self.gaps * len(gaps) / both
        self._mean += apart * len(gaps) / both
        self.gaps = both
        self._longest = max(self._longest, float(gaps.max()))
        self.zero_gaps += int(np.count_nonzero(gaps == 0))
        if len(self._steps) <= _MOST_STEPS:
            steps, counts = np.unique(gaps[gaps > 0], return_counts=True)
            for step, count in zip(steps.tolist(), counts.tolist(), strict=True):
                self._steps[step] = self._steps.get(step, 0) + count

    def steps(self) -> Floats:
        """The gaps above 0, in order; none of them where they are too many to be those of ticks."""
        if len(self._steps) > _MOST_STEPS:
            return np.empty(0)
        return np.repeat(*map(np.array, zip(*sorted(self._steps.items()), strict=True))) if self._steps else np.empty(0)

    def facts(self) -> ArrivalFacts:
        """The facts about the arrivals so far, at least one."""
        assert self._first is not None, "no arrival was added"
        duration = self._last - self._first
        moving = duration >= SHORTEST_S
        one, ten, sixty = self._windows
        return ArrivalFacts(
            duration_s=duration,
            rate=self.gaps / duration if moving else None,
            interarrival_cv=math.sqrt(self._deviations / self.gaps) / self._mean if moving else None,
            idc_1s=one.dispersion(),
            idc_10s=ten.dispersion(),
            idc_60s=sixty.dispersion(),
            max_gap_s=self._longest,
            zero_gap_share=self.zero_gaps / self.gaps if self.gaps else None,
            peak_minute=sixty.peak,
        )


# Token counts of a trace: their distribution and tail, and how input and output go together.

PERCENTS = (1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9)
TAIL_SHARE = 0.05
_PENDING = 1 << 16  # lengths gathered, at least, before they go into the table


@dataclass(frozen=True, slots=True)
class LengthFacts:
    """A distribution of token counts. `percentiles` (linear) belong to PERCENTS.

    `hill_alpha` is Hill's estimate of the Pareto tail's index from the largest 5 % of rows, above `hill_threshold`
    (B. M. Hill, Annals of Statistics 3, 1975): below 2 the variance does not settle. `tail_token_share` is the share
    of all tokens in those rows. Both are None for fewer than 20 rows, alpha also where the tail is flat.
    """

    min: int
    max: int
    mean: float
    cv: float
    percentiles: tuple[float, ...]
    hill_alpha: float | None
    hill_threshold: int | None
    tail_token_share: float | None


@dataclass(slots=True)
class LengthTable:
    """Count how often each length occurs: 16 bytes a different length, however many rows there are."""

    _values: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    _counts: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    _pending: list[Ints] = field(default_factory=list)
    _gathered: int = 0

    def add(self, lengths: Ints) -> None:
        """The next lengths, in any order."""
        self._pending.append(lengths)
        self._gathered += len(lengths)
        if self._gathered > max(_PENDING, len(self._values)):
            self._settle()

    def _settle(self) -> None:
        if not self._pending:
            return
        new, new_counts = np.unique(np.concatenate(self._pending), return_counts=True)
        self._pending, self._gathered = [], 0
        values = np.union1d(self._values, new)
        counts = np.zeros(len(values), dtype=np.int64)
        counts[np.searchsorted(values, self._values)] += self._counts
        counts[np.searchsorted(values, new)] += new_counts
        self._values, self._counts = values, counts

    def table(self) -> tuple[Ints, Ints]:
        """The lengths that occur, ascending, and how often each does."""
        self._settle()
        return self._values, self._counts

    def mean_and_sd(self) -> tuple[float, float]:
        values, counts = self.table()
        rows = int(counts.sum())
        mean = int((values * counts).sum()) / rows
        return mean, math.sqrt(float((counts * (values - mean) ** 2).sum()) / rows)

    def ranks(self) -> Floats:
        """The rank, from 0, of each length that occurs; equal lengths share the mean of theirs."""
        _, counts = self.table()
        ranks: Floats = np.cumsum(counts) - (counts + 1) / 2
        return ranks

    def facts(self) -> LengthFacts:
        """The facts about the lengths so far, at least one, each 1 or more."""
        values, counts = self.table()
        rows = int(counts.sum())
        mean, sd = self.mean_and_sd()
        alpha = threshold = share = None
        if tail := int(TAIL_SHARE * rows):
            threshold = int(self._at(np.array([rows - 1 - tail]))[0])
            above = np.minimum(counts, np.maximum(np.cumsum(counts) - (rows - tail), 0))  # rows of the tail, by length
            excess = float((above * np.log(values / threshold)).sum()) / tail
            alpha = 1.0 / excess if excess > 0 else None
            share = int((above * values).sum()) / int((counts * values).sum())
        return LengthFacts(
            min=int(values[0]),
            max=int(values[-1]),
            mean=mean,
            cv=sd / mean,
            percentiles=self._percentiles(rows),
            hill_alpha=alpha,
            hill_threshold=threshold,
            tail_token_share=share,
        )

    def _at(self, places: Ints) -> Ints:
        """The lengths at these places of the sorted rows."""
        values, counts = self.table()
        return values[np.searchsorted(np.cumsum(counts), places, side="right")]

    def _percentiles(self, rows: int) -> tuple[float, ...]:
        place = np.array(PERCENTS) / 100 * (rows - 1)
        low = np.floor(place).astype(np.int64)
        below, above = self._at(low), self._at(np.minimum(low + 1, rows - 1))
        return tuple((below + (above - below) * (place - low)).tolist())


class PairSums:
    """Correlations of two lengths whose tables are complete; the rows go by a second time."""

    def __init__(self, a: LengthTable, b: LengthTable) -> None:
        self._values = tuple(table.table()[0] for table in (a, b))
        self._ranks = tuple(table.ranks() for table in (a, b))
        self._moments = tuple(table.mean_and_sd() for table in (a, b))
        counts = [table.table()[1] for table in (a, b)]
        self._rows = int(counts[0].sum())
        self._middle = (self._rows - 1) / 2  # the mean rank
        self._rank_sds = [
            math.sqrt(float((each * (ranks - self._middle) ** 2).sum()) / self._rows)
            for each, ranks in zip(counts, self._ranks, strict=True)
        ]
        self._products = 0.0  # of deviations from the mean
        self._rank_products = 0.0

    def add(self, a: Ints, b: Ints) -> None:
        """The next rows."""
        (mean_a, _), (mean_b, _) = self._moments
        self._products += float(((a - mean_a) * (b - mean_b)).sum())
        one, other = (
            ranks[np.searchsorted(values, lengths)] - self._middle
            for ranks, values, lengths in zip(self._ranks, self._values, (a, b), strict=True)
        )
        self._rank_products += float((one * other).sum())

    def facts(self) -> tuple[float | None, float | None]:
        """Pearson's and Spearman's; None for fewer than two rows, or where all are equal."""
        (_, sd_a), (_, sd_b) = self._moments
        if self._rows < 2 or not sd_a or not sd_b:
            return None, None
        return (
            self._products / self._rows / (sd_a * sd_b),
            self._rank_products / self._rows / (self._rank_sds[0] * self._rank_sds[1]),
        )


# Tokens of a trace that a prefix cache could reuse.

MOST_BLOCKS = 1_500_000
"""Different blocks that are remembered, at about 100 bytes each; a trace with more has no prefix facts."""


@dataclass(frozen=True, slots=True)
class PrefixFacts:
    """The reuse that a prefix cache without a limit could have, from the block hashes; only earlier requests count.

    `token_hit_ratio` counts prompt tokens in leading blocks that were seen before, `hit_share_quartiles` is that
    share per request, `top_block_requests` how many requests hold the block that most requests hold.
    """

    requests: int
    blocks: int
    distinct_blocks: int
    distinct_reused_share: float
    block_hit_ratio: float
    token_hit_ratio: float
    hit_share_quartiles: tuple[float, float, float]
    requests_without_hit: int
    top_block_requests: int


@dataclass(slots=True)
class PrefixHits:
    """The hits that the block hashes promise, summed up over requests in the order of their arrival."""

    _holders: dict[int, int] = field(default_factory=dict)  # block -> requests that hold it
    _blocks: int = 0
    _tokens: int = 0
    _hit_blocks: int = 0
    _hit_tokens: int = 0
    _without_hit: int = 0
    _shares: array[float] = field(default_factory=lambda: array("f"))
    too_many: bool = False

    def add(self, input_tokens: Sequence[int], contents: Sequence[PromptContent | None]) -> None:
        """The next requests."""
        if self.too_many:
            return
        holders = self._holders
        for length, content in zip(input_tokens, contents, strict=True):
            if content is None or not content.block_hashes:
                continue
            hits = self._leading_hits(content)
            tokens = min(hits * content.hash_block_size, length)
            self._blocks += len(content.block_hashes)
            self._tokens += length
            self._hit_blocks += hits
            self._hit_tokens += tokens
            self._without_hit += hits == 0
            self._shares.append(tokens / length)
            for block in dict.fromkeys(content.block_hashes):
                holders[block] = holders.get(block, 0) + 1
        if len(holders) > MOST_BLOCKS:
            self.too_many = True
            holders.clear()

    def _leading_hits(self, content: PromptContent) -> int:
        hits = 0
        for block in content.block_hashes:
            if block not in self._holders:
                break
            hits += 1
        return hits

    def facts(self) -> PrefixFacts | None:
        """The hits so far; None without hashes, or with too many different ones."""
        if self.too_many or not self._holders:
            return None
        low, middle, high = np.percentile(np.asarray(self._shares), (25, 50, 75)).tolist()
        return PrefixFacts(
            requests=len(self._shares),
            blocks=self._blocks,
            distinct_blocks=len(self._holders),
            distinct_reused_share=sum(number > 1 for number in self._holders.values()) / len(self._holders),
            block_hit_ratio=self._hit_blocks / self._blocks,
            token_hit_ratio=self._hit_tokens / self._tokens,
            hit_share_quartiles=(low, middle, high),
            requests_without_hit=self._without_hit,
            top_block_requests=max(self._holders.values()),
        )

    def notes(self) -> list[str]:
        """Return the note for a trace whose facts are left out."""
        return [f"no prefix figures: more than {MOST_BLOCKS:,} different blocks"] if self.too_many else []


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
