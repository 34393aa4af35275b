"""The usable rows of a trace as columns, and the content of their prompts, as a prefix cache sees it."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from scenarios.traces.format import Line, OpenTrace, PlainRows, blocks
from scenarios.traces.options import TraceOptions
from scenarios.traces.rows import Extra, RowError, Tally, plural
from simulator.errors import InputError, did_you_mean
from simulator.request import PromptContent
from simulator.workload import Ints

# A window's end ends the reading, but only after this many rows beyond it: rows may be slightly out of order.
PATIENCE_ROWS = 10_000
_DRAWN_AT_ONCE = 4096
_FEWEST_AT_ONCE = 64  # rows that are not worth another try together

Kept = tuple[int, int, float, int, int, Extra | None]
"""A row that is kept: its line (from 1), its number among the rows (from 0), arrival, input, output, and the rest."""


@dataclass(slots=True)
class Cut:
    """Count the rows that are not kept, by reason, while they are read."""

    rows_seen: int = 0
    before: int = 0
    after: int = 0
    sampled_out: int = 0
    stopped_at: int | None = None  # the line where reading ended before the file did
    stop_reason: str = ""

    def notes(self) -> list[str]:
        notes = []
        if self.before:
            notes.append(f"left out {plural(self.before, 'row')} before start_s")
        if self.after:
            notes.append(f"left out {plural(self.after, 'row')} at or after the end of duration_s")
        if self.sampled_out:
            notes.append(f"left out {plural(self.sampled_out, 'row')} that the sample left out")
        if self.stopped_at is not None:
            notes.append(f"stopped reading at line {self.stopped_at:,}: {self.stop_reason}")
        return notes


def kept_rows(trace: OpenTrace, options: TraceOptions, skipped: Tally, cut: Cut, first: int = 0) -> Iterator[Kept]:
    """Rows until the file, the window or the limit ends; bad ones go to `skipped`, others left out to `cut`.

    `first` is the number of the trace's first row.
    """
    parse, in_ns = trace.parse, trace.clock != "run"
    scale = 1_000_000_000 if in_ns else 1
    start = options.start_s * scale
    end = float("inf") if options.duration_s is None else start + options.duration_s * scale
    windowed = start > 0 or options.duration_s is not None
    limit = options.limit if options.limit is not None else -1
    sample = _Sample(options.sample, options.seed) if options.sample < 1 else None
    origin: float | None = None if in_ns else 0.0  # what only says how many seconds counts from 0, not from a date
    beyond = kept = 0
    for number, (line, item) in enumerate(trace.rows, first):
        cut.rows_seen = number + 1
        try:
            arrival, inputs, outputs, extra = parse(item)
        except RowError as error:
            skipped.add(line, error.reason, error.detail)
            continue
        if windowed:
            origin = arrival if origin is None else origin
            if start > 0 and arrival - origin < start:
                cut.before += 1
                continue
            if arrival - origin >= end:
                cut.after += 1
                beyond += 1
                if beyond < PATIENCE_ROWS:
                    continue
                cut.stopped_at, cut.stop_reason = line, f"{beyond:,} rows in a row lie after the window"
                return
            beyond = 0
        if sample is not None and not sample.keeps(extra):
            cut.sampled_out += 1
            continue
        yield line, number, arrival, inputs, outputs, extra
        kept += 1
        if kept == limit:
            cut.stopped_at, cut.stop_reason = line, f"the limit of {plural(limit, 'request')}"
            return


class _Sample:
    """Keep a share of the requests, from a stream of its own; a session is kept or left out as a whole.

    A session's draw is a hash of its name and the seed, so that no session has to be remembered.
    """

    def __init__(self, share: float, seed: int) -> None:
        from scenarios.random_draws import stream  # here, for it loads numpy.random, and few traces are sampled

        self._share = share
        self._key = seed.to_bytes(16, "little")
        self._stream = stream(seed, "trace", "sample")
        self._draws: list[float] = []

    def keeps(self, extra: Extra | None) -> bool:
        """Return whether the next request is kept; `extra` holds its optional columns."""
        session = extra.get("session_id") if extra else None
        if session is not None:
            digest = hashlib.blake2b(session.encode(), digest_size=8, key=self._key).digest()
            return int.from_bytes(digest, "little") < self._share * 2.0**64
        if not self._draws:
            drawn: list[float] = self._stream.random(_DRAWN_AT_ONCE).tolist()
            self._draws = drawn[::-1]
        return self._draws.pop() < self._share


@dataclass(slots=True)
class Columns:
    """The rows that were kept, one place a request in file order: 24 bytes each without optional columns.

    `arrival` is in nanoseconds (array of int64) or seconds (array of float64); `row` counts the file's data rows from
    0 and `line` its lines from 1. `extra` holds the optional columns, by native name, None where a row has no value.
    """

    arrival: array[int] | array[float]
    inputs: array[int] = field(default_factory=lambda: array("i"))
    outputs: array[int] = field(default_factory=lambda: array("i"))
    row: array[int] = field(default_factory=lambda: array("I"))
    line: array[int] = field(default_factory=lambda: array("I"))
    extra: dict[str, list[Any]] = field(default_factory=dict)

    @property
    def in_ns(self) -> bool:
        return self.arrival.typecode == "q"

    def fill(self, rows: Iterable[Kept]) -> Columns:
        """Add all rows; returns itself."""
        add_arrival, add_inputs, add_outputs = self.arrival.append, self.inputs.append, self.outputs.append
        add_row, add_line = self.row.append, self.line.append
        for line, number, arrival, inputs, outputs, extra in rows:
            for name, value in (extra or {}).items():
                self._extra_column(name).append(value)
            add_arrival(arrival)  # type: ignore[arg-type]  # int where in_ns
            add_inputs(inputs)
            add_outputs(outputs)
            add_row(number)
            add_line(line)
        for name in self.extra:
            self._extra_column(name)
        return self

    def add(self, rows: PlainRows, lines: Sequence[int], first: int) -> None:
        """Add rows that were parsed together; `first` is the number of the first."""
        for name, values in rows.extra.items():
            if any(value is not None for value in values):
                self._extra_column(name).extend(values)
        self.arrival.extend(rows.arrival)  # type: ignore[arg-type]  # int where in_ns
        self.inputs.extend(rows.inputs)
        self.outputs.extend(rows.outputs)
        self.row.extend(range(first, first + len(lines)))
        self.line.extend(lines)

    def _extra_column(self, name: str) -> list[Any]:
        """An optional column that has a place for each row so far."""
        column = self.extra.setdefault(name, [])
        column.extend([None] * (len(self.inputs) - len(column)))
        return column


def columns_for(trace: OpenTrace) -> Columns:
    """Empty columns for the rows of `trace`."""
    return Columns(array("q") if trace.clock != "run" else array("d"))


def collect(trace: OpenTrace, options: TraceOptions, skipped: Tally, cut: Cut) -> Columns:
    """All rows of `kept_rows` in memory."""
    columns = columns_for(trace)
    parse_plain = trace.parse_plain
    if parse_plain is None or options.leaves_out:
        return columns.fill(kept_rows(trace, options, skipped, cut))

    def add(block: Sequence[Line], first: int) -> None:
        """Add rows together where they are plain; else those of each half, down to single rows."""
        plain = parse_plain([text for _, text in block])
        if plain is not None:
            columns.add(plain, [line for line, _ in block], first)
        elif len(block) > _FEWEST_AT_ONCE:
            half = len(block) // 2
            add(block[:half], first)
            add(block[half:], first + half)
        else:
            columns.fill(kept_rows(replace(trace, rows=iter(block)), options, skipped, cut, first))

    seen = 0
    for block in blocks(trace.rows):
        add(block, seen)
        cut.rows_seen = seen = seen + len(block)
    return columns.fill(())


# Joins of a trace: requests that wait for the answers of several others (`after_request_ids`).

KEY = "after_request_ids"
_FEW = 20_000  # names that are compared to find the one that was meant

Targets = list[tuple[int, ...]]
"""For each row, in file order, the places of the rows that it waits for."""


def targets_of(columns: Columns, names: Sequence[str] | None, file: str, *, whole: bool) -> tuple[Targets | None, int]:
    """Return what the rows wait for, and how many answers they wait for that are not in the part that is read.

    None where no row waits for several. Raises InputError for a request that waits for an unknown one (in a file that
    is read as a `whole`), for itself, for a later one, or in a circle.
    """
    given: list[tuple[str, ...] | None] | None = columns.extra.get(KEY)
    if given is None:
        return None, 0
    own = list(map(str, columns.row)) if names is None else names
    places = {name: place for place, name in enumerate(own)}
    found: Targets = []
    missing = 0
    for place, waits in enumerate(given):
        known = []
        for name in dict.fromkeys(waits or ()):
            target = places.get(name)
            if target is None and whole:
                hint = did_you_mean(name, own[:_FEW]) + "a request_id of the file, or a row of it, counted from 0"
                raise _refused(columns, place, name, "which is no request", file, hint)
            if target is None:
                missing += 1
                continue
            if target == place:
                raise _refused(columns, place, name, "which is itself", file, "leave it out")
            if (columns.arrival[target], target) > (columns.arrival[place], place):
                circle = _waits_for(target, own[place], given, places)
                what = "which waits for it in turn" if circle else "which arrives later"
                hint = (
                    "each request in a circle would wait for another"
                    if circle
                    else "an arrival_time_s as it was recorded"
                )
                raise _refused(columns, place, name, what, file, f"{hint} (line {columns.line[target]})")
            known.append(target)
        found.append(tuple(known))
    return found, missing


def _refused(columns: Columns, place: int, name: str, what: str, file: str, hint: str) -> InputError:
    return InputError(f"{KEY}: the request waits for {name!a}, {what}", file=file, line=columns.line[place], hint=hint)


def _waits_for(place: int, name: str, given: Sequence[tuple[str, ...] | None], places: dict[str, int]) -> bool:
    """Return whether the request at a place waits for the one of this name, directly or not."""
    seen, ahead = {place}, [place]
    while ahead:
        for other in given[ahead.pop()] or ():
            if other == name:
                return True
            if (there := places.get(other)) is not None and there not in seen:
                seen.add(there)
                ahead.append(there)
    return False


def also_after(targets: Targets, after: Ints, place: Ints, copy: Ints, layer: Ints | None) -> list[tuple[int, ...]]:
    """Return for each request of a replay those that it waits for besides `after`.

    `place`, `copy` and `layer` are those of `arrange.Arranged`: a request waits for those of its own copy.
    """
    layers = np.zeros_like(copy) if layer is None else layer
    keys = list(zip(place.tolist(), copy.tolist(), layers.tolist(), strict=True))
    rows = {key: row for row, key in enumerate(keys)}
    return [
        tuple(sorted({rows[(target, *which)] for target in targets[at]} - {first})) if len(targets[at]) > 1 else ()
        for (at, *which), first in zip(keys, after.tolist(), strict=True)
    ]


def merged(units: Ints, also: Sequence[tuple[int, ...]]) -> Ints:
    """Return the units (the first row of each row's session), where a join makes one of those that it waits for."""
    for row, others in enumerate(also):
        for other in others:
            first, second = sorted((units.item(row), units.item(other)))
            if first != second:
                units = np.where(units == second, first, units)
    return units


# The content of a trace's prompts, as a prefix cache sees it.

USUAL_BLOCK_SIZES = (512, 16, 64)  # Mooncake, Bailian, Weka
OTHER_BLOCK_SIZES = (8, 32, 128, 256, 1024, 2048, 4096, 1, 2, 4)


@dataclass(frozen=True, slots=True)
class Contents:
    """One content a request (None where nothing is known), in the order of the columns."""

    rows: list[PromptContent | None]
    notes: list[str]


def contents(columns: Columns, inputs: Ints, options: TraceOptions, file: str) -> Contents | None:
    """Return `part_contents` for all rows of a trace, with the notes about its block hashes."""
    inferred, dropped = BlockSizes(), Tally(file, options.strict)
    inferred.add_rows(columns.inputs, columns.extra)
    found = part_contents(columns, inputs, options, file, inferred, dropped)
    if found is None:
        return None
    return Contents(found.rows, [*block_notes(inferred, dropped), *found.notes])


def block_notes(inferred: BlockSizes, dropped: Tally) -> list[str]:
    """Return the notes about the block hashes of a whole trace."""
    size = [f"block hashes of {inferred.size} tokens each"] if inferred.rows else []
    return size + [f"dropped the hashes of {text}" for text in dropped.texts()]


def part_contents(
    columns: Columns, inputs: Ints, options: TraceOptions, file: str, inferred: BlockSizes, dropped: Tally
) -> Contents | None:
    """The contents of requests whose (scaled) prompts are `inputs` tokens long; None where they have none.

    Block hashes must be as many as the prompt has blocks, the last one perhaps partial. Those that are not are
    dropped and counted, and so is all content that scaling the lengths makes meaningless.
    """
    extra = columns.extra
    count = len(columns.inputs)
    empty: list[None] = [None] * count
    names = ("block_hashes", "prefix_group", "prompt_token_ids", "output_token_ids")
    if not any(name in extra for name in names):
        return None
    notes: list[str] = []
    hashes: Sequence[tuple[int, ...] | None] = extra.get("block_hashes", empty)
    sizes: Sequence[int] = [0] * count
    if "block_hashes" in extra:
        hashes, sizes = _blocks(columns, inputs, options, file, inferred, dropped, notes)
    one_each = OneEach()
    prompts = _token_ids(extra.get("prompt_token_ids", empty), options.input_scale, "prompt_token_ids", notes, one_each)
    answers = _token_ids(
        extra.get("output_token_ids", empty), options.output_scale, "output_token_ids", notes, one_each
    )
    groups = extra.get("prefix_group", empty)
    prefixes = extra.get("prefix_tokens", empty)
    lengths = inputs.tolist()
    rows: list[PromptContent | None] = []
    for place in range(count):
        blocks, group, prompt, answer = hashes[place], groups[place], prompts[place], answers[place]
        if blocks or group is not None or prompt or answer:
            shared = min(round((prefixes[place] or 0) * options.input_scale), lengths[place])
            size = sizes[place] if blocks else 0
            rows.append(PromptContent(blocks or (), size, group, shared, prompt or (), answer or ()))
        else:
            rows.append(None)
    return Contents(rows, notes)


class BlockSizes:
    """The size of the blocks that hashes name, inferred from rows that do not say it: count == ceil(input / size)."""

    def __init__(self) -> None:
        self._least, self._most = 1, 2**63 - 1  # the sizes between them fit every row
        self._fits = dict.fromkeys((*USUAL_BLOCK_SIZES, *OTHER_BLOCK_SIZES), 0)
        self.rows = 0

    def add(self, inputs: Ints, counts: Ints) -> None:
        """More rows: the tokens of their prompts, and how many hashes each has (at least one)."""
        if not len(inputs):
            return
        self.rows += len(inputs)
        self._least = max(self._least, int(np.max(-(-inputs // counts))))
        many = counts > 1
        if many.any():
            self._most = min(self._most, int(np.min(-(-inputs[many] // (counts[many] - 1)))) - 1)
        for size in self._fits:
            self._fits[size] += int(np.count_nonzero(-(-inputs // size) == counts))

    @property
    def size(self) -> int | None:
        """The size that fits every row, or else the most; None where it fits not even half of them.

        Usual sizes come first, then powers of two, then the smallest size that no row contradicts.
        """
        best = max(self._fits, key=lambda size: self._fits[size])
        if self._fits[best] == self.rows:
            return best
        if self._least <= self._most:
            return self._least
        return best if 2 * self._fits[best] >= self.rows else None

    def add_rows(self, inputs: Sequence[int], extra: Mapping[str, Sequence[Any]]) -> None:
        """More rows, by their native columns."""
        hashes = extra.get("block_hashes")
        if hashes is None:
            return
        given = extra.get("hash_block_size") or [None] * len(hashes)
        rows = [
            (tokens, len(each))
            for tokens, each, size in zip(inputs, hashes, given, strict=True)
            if each and size is None
        ]
        if rows:
            self.add(*(np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)))


def no_block_size(file: str) -> InputError:
    """The hashes of a trace cannot be told."""
    return InputError(
        "the numbers of block hashes fit no block size: each should be ceil(input tokens / block size)",
        file=file,
        hint="512 in Mooncake's traces; native traces may give hash_block_size",
    )


def _blocks(
    columns: Columns,
    inputs: Ints,
    options: TraceOptions,
    file: str,
    inferred: BlockSizes,
    dropped: Tally,
    notes: list[str],
) -> tuple[Sequence[tuple[int, ...] | None], list[int]]:
    """Checked hashes and their block sizes, scaled as the prompts are."""
    hashes: list[tuple[int, ...] | None] = columns.extra["block_hashes"]
    given = columns.extra.get("hash_block_size", [None] * len(hashes))
    original = np.asarray(columns.inputs, dtype=np.int64)
    counts = np.array([0 if h is None else len(h) for h in hashes], dtype=np.int64)
    sizes = np.array([s or 0 for s in given], dtype=np.int64)
    has = np.array([h is not None for h in hashes])
    bad = has & (counts == 0)
    open_ = has & (sizes == 0) & ~bad
    if open_.any():
        size = inferred.size
        if size is None:
            raise no_block_size(file)
        bad |= open_ & (-(-original // size) != counts)
        sizes[open_] = size
    bad |= has & ~bad & (counts > -(-original // np.maximum(sizes, 1)))
    for place in np.flatnonzero(bad):
        dropped.add(
            columns.line[place], "block hashes do not fit the prompt's length; the prompt shares no block with others"
        )
    kept: list[tuple[int, ...] | None] = [None if wrong else h for h, wrong in zip(hashes, bad.tolist(), strict=True)]
    if options.input_scale != 1.0:
        return _scaled(kept, sizes, inputs, options.input_scale, notes)
    return kept, sizes.tolist()


def _scaled(
    hashes: list[tuple[int, ...] | None], sizes: Ints, inputs: Ints, scale: float, notes: list[str]
) -> tuple[list[tuple[int, ...] | None], list[int]]:
    """Blocks scaled with the prompts, which keeps shared prefixes; none where a block is then no whole number."""
    scaled = sizes * scale
    if np.any((scaled != np.rint(scaled)) | ((sizes > 0) & (scaled < 1))):
        notes.append(
            f"dropped all block hashes: input_scale {scale:g} gives blocks that are not a whole number of tokens"
        )
        return [None] * len(hashes), [0] * len(hashes)
    whole = scaled.astype(np.int64)
    blocks = (-(-inputs // np.maximum(whole, 1))).tolist()
    return [None if h is None else h[:n] for h, n in zip(hashes, blocks, strict=True)], whole.tolist()


class OneEach:
    """Makes equal numbers one object each, so that a token takes a pointer, and equal texts are compared by those."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, ids: Sequence[int]) -> tuple[int, ...]:
        """The same numbers."""
        return tuple(map(self._known.setdefault, ids, ids))


def _token_ids(
    ids: Sequence[tuple[int, ...] | None], scale: float, name: str, notes: list[str], one_each: OneEach
) -> Sequence[tuple[int, ...] | None]:
    if not any(ids):
        return ids
    if scale == 1.0:
        return [each and one_each.of(each) for each in ids]
    notes.append(f"dropped all {name}: they cannot be scaled with their lengths")
    return [None] * len(ids)
