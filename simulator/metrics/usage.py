"""The use of slots, tokens and KV blocks over a window: of the whole run, and of each replica and group."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Unit, doc

from simulator.columns import stretches
from simulator.metrics.weighted import weighted_sum
from simulator.metrics.window import Bools, Window, measured_window, present_s
from simulator.results.records import Floats, Ints, Records, Status
from simulator.statistics import pairwise_sum

STEPS_AT_ONCE = 1 << 20  # per-step columns are read in pieces, so that no copy of a whole one is made


@dataclass(frozen=True, slots=True)
class Usage:
    """Means and shares over a window; NaN where there is nothing to divide by.

    A step counts if it ends in the window; of a stretch of time, the part inside the window counts. All are over all
    replicas together, but for `kv_utilization_peak`, which is that of the fullest replica.
    """

    num_steps: int
    mean_batch_size: float  # requests computing in a step, mean over steps
    batch_occupancy: float  # running / slots of all replicas, mean over time
    busy_fraction: float  # time with a step in flight, mean over replicas
    wasted_slot_fraction: float  # slot-steps of held requests / all slot-steps
    padding_fraction: float  # padded / computed tokens
    kv_utilization_mean: float  # used / usable blocks, mean over time
    kv_utilization_peak: float


def check_rows(records: Records) -> None:
    """ValueError unless the rows cover the steps one after the other."""
    rows = records.rows
    covered = 0
    for some in stretches(len(rows.first_step)):
        first_step, after = rows.first_step[some], covered + np.cumsum(rows.repeat[some])
        if first_step[0] != covered or not np.array_equal(first_step[1:], after[:-1]):
            raise ValueError("rows must cover the steps one after the other, in order")
        covered = int(after[-1])
    if len(rows.first_step) and covered != records.num_steps:
        raise ValueError("rows must cover the steps one after the other, in order")


def usage(records: Records, window: Window) -> Usage:
    """Means and shares over the window of what the steps made of slots, tokens and blocks."""
    rows, count = records.rows, len(records.rows.repeat)

    def row_s(some: slice) -> Floats:
        return _clipped(rows.start_s[some], rows.end_s[some], window)

    steps = _step_totals(records, window)
    slot_s, block_capacity_s, replica_s = _capacity(records, window)
    block_s, peak = _blocks(records, window)
    return Usage(
        num_steps=steps.steps,
        mean_batch_size=_ratio(steps.computing, steps.steps),
        batch_occupancy=_ratio(pairwise_sum(count, lambda some: row_s(some) * rows.running[some]), slot_s),
        busy_fraction=_ratio(pairwise_sum(count, row_s), replica_s),
        wasted_slot_fraction=_ratio(steps.held, steps.running),
        padding_fraction=_ratio(steps.padded_tokens, steps.tokens),
        kv_utilization_mean=_ratio(block_s, block_capacity_s),
        kv_utilization_peak=peak if steps.steps else math.nan,
    )


def busy_by_replica(records: Records, window: Window) -> Floats:
    """The share of its time that each replica has a step in flight; NaN for one that was not there."""
    rows, busy_s = records.rows, np.zeros(records.replicas)
    for some in stretches(len(rows.repeat)):
        seconds = _clipped(rows.start_s[some], rows.end_s[some], window)
        busy_s += np.bincount(rows.replica[some], seconds, records.replicas)
    there_s = present_s(records, window)
    shares: Floats = np.divide(busy_s, there_s, out=np.full(len(there_s), np.nan), where=there_s > 0)
    return np.minimum(shares, 1.0)


class _StepTotals(NamedTuple):
    """Counts of the steps in a window, added up over these."""

    steps: int
    computing: int
    held: int
    running: int
    padded_tokens: int
    tokens: int


def _step_totals(records: Records, window: Window) -> _StepTotals:
    rows = records.rows
    totals = np.zeros(len(_StepTotals._fields), dtype=np.int64)
    for some in stretches(len(rows.repeat)):
        steps = _steps_inside(records, window, some)
        computing = rows.decoding[some] + rows.prefilling[some]
        counts = (computing, rows.held[some], rows.running[some], rows.padded_tokens[some], rows.tokens[some])
        totals += [steps.sum(), *(np.dot(steps, count) for count in counts)]
    return _StepTotals(*totals.tolist())


def _capacity(records: Records, window: Window) -> tuple[float, float, float]:
    """Slot-seconds, block-seconds and replica-seconds that there were in the window."""
    duration_s = window.duration_s
    if records.lives is None:
        return duration_s * records.slots, duration_s * records.all_blocks, duration_s * records.replicas
    seconds, sizes = present_s(records, window), records.sizes
    slots = np.repeat([group.max_num_seqs for group in sizes], [group.replicas for group in sizes])
    blocks = blocks_of_replicas(records)
    return float(np.dot(seconds, slots)), float(np.dot(seconds, blocks)), float(seconds.sum())


def row_pieces(records: Records) -> Iterator[tuple[slice, slice]]:
    """Slices of rows and the slices of steps that they cover, of about STEPS_AT_ONCE steps each."""
    first_step, n = records.rows.first_step, records.num_steps
    cuts = np.unique(np.searchsorted(first_step, np.arange(0, n, STEPS_AT_ONCE)))
    row_cuts = [*cuts.tolist(), len(first_step)]
    step_cuts = [*first_step[cuts[cuts < len(first_step)]].tolist(), n]
    for a, b, c, d in zip(row_cuts, row_cuts[1:], step_cuts, step_cuts[1:], strict=False):
        yield slice(a, b), slice(c, d)


def step_starts(records: Records, rows: slice = slice(None), steps: slice = slice(None)) -> Floats:
    """When each step began: the first of a row with the row, the others at the end of the step before."""
    ends = records.step_end_s[steps]
    starts = np.empty(len(ends))
    starts[1:] = ends[:-1]
    first_step = records.rows.first_step[rows]
    starts[first_step - (steps.start or 0)] = records.rows.start_s[rows]
    return starts


def _ratio(part: float, whole: float) -> float:
    ratio = float(part) / float(whole) if whole > 0 else math.nan
    return 1.0 if 1.0 < ratio < 1.0 + 1e-9 else ratio  # sums of times round: a share is not above one for that


def _clipped(start_s: Floats, end_s: Floats, window: Window) -> Floats:
    if window.whole:
        return end_s - start_s
    return np.clip(end_s, window.start_s, window.end_s) - np.clip(start_s, window.start_s, window.end_s)


def _steps_inside(records: Records, window: Window, some: slice) -> Ints:
    """How many steps of each of some rows end in the window."""
    rows = records.rows
    first_step, repeat, end_s = rows.first_step[some], rows.repeat[some], rows.end_s[some]
    if window.whole:
        return repeat
    first_end = records.step_end_s[first_step]
    inside = (end_s >= window.start_s) & (first_end <= window.end_s)
    steps = np.where(inside, repeat, 0)
    cut = inside & ((first_end < window.start_s) | (end_s > window.end_s))
    for row in np.flatnonzero(cut).tolist():  # at most two a replica
        first = int(first_step[row])
        ends = records.step_end_s[first : first + int(repeat[row])]
        steps[row] = np.searchsorted(ends, window.end_s, "right") - np.searchsorted(ends, window.start_s, "left")
    return steps


def blocks_of_replicas(records: Records) -> Ints:
    """Usable KV blocks of every replica."""
    sizes = records.sizes
    return np.repeat([group.num_blocks for group in sizes], [group.replicas for group in sizes])


def _blocks(records: Records, window: Window) -> tuple[float, float]:
    """Block-seconds in the window, and the largest share of its blocks that a replica used in one of its steps."""
    block_s, peak = 0.0, 0.0
    capacity: int | Ints = records.num_blocks
    of_replica = blocks_of_replicas(records) if records.groups else None
    for rows, steps in row_pieces(records):
        ends, used = records.step_end_s[steps], records.step_used_blocks[steps]
        block_s += weighted_sum(_clipped(step_starts(records, rows, steps), ends, window), used)
        if of_replica is not None:
            capacity = np.repeat(of_replica[records.rows.replica[rows]], records.rows.repeat[rows])
        share = used / capacity
        if not window.whole:
            share = share[(ends >= window.start_s) & (ends <= window.end_s)]
        peak = max(peak, float(share.max(initial=0.0)))
    return block_s, peak


# Each replica and each group of a fleet by itself, and how evenly work is spread over them.


@dataclass(frozen=True, slots=True)
class PartColumns:
    """One entry a part of the fleet: a replica or a group. Requests are those measured; NaN where it is undefined."""

    replicas: Ints  # the most that there could be
    replica_seconds: Annotated[Floats, doc("that it was there"), Unit("s")]
    requests: Annotated[Ints, doc("of the measured requests, those given to it"), Unit("requests")]
    completed: Annotated[Ints, doc("with all their tokens"), Unit("requests")]
    rejected: Annotated[Ints, doc("refused by it"), Unit("requests")]
    input_tokens: Annotated[Ints, doc("of the completed requests")]
    output_tokens: Annotated[Ints, doc("of the completed requests")]
    num_steps: Annotated[Ints, doc("steps that it executed")]
    busy_fraction: Annotated[Floats, doc("time with a step in flight / duration"), Unit("share")]
    kv_utilization_mean: Annotated[Floats, doc("used / usable KV blocks, mean over time"), Unit("share")]
    kv_utilization_peak: Annotated[Floats, doc("the same, at the fullest moment"), Unit("share")]
    preemptions: Annotated[Ints, doc("of requests that it served")]
    prefix_cache_hit_rate: Annotated[
        Floats, doc("prompt tokens found in the prefix cache / tokens looked up"), Unit("share")
    ]

    def entry(self, part: int) -> dict[str, int | float | None]:
        """One part by the names of the columns; None for what is undefined."""
        found = {field.name: getattr(self, field.name)[part].item() for field in fields(self)}
        return {name: None if value != value else value for name, value in found.items()}


def by_replica(records: Records, *, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> PartColumns:
    """The columns of every replica, in the order of their numbers; the cuts are those of `summarize`."""
    parts = np.arange(records.replicas)
    return _by_part(records, measured_window(records, warmup_s, cooldown_s), parts, records.replicas)


def by_group(records: Records, *, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> dict[str, PartColumns]:
    """Columns of every group by its name, each of one entry: means over the group's replicas."""
    sizes = records.sizes
    found = _by_part(records, measured_window(records, warmup_s, cooldown_s), _group_of(records), len(sizes))
    names = [field.name for field in fields(PartColumns)]
    return {
        group.name: PartColumns(*[getattr(found, name)[place : place + 1] for name in names])
        for place, group in enumerate(sizes)
    }


def group_seconds(records: Records, *, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> dict[str, float]:
    """`replica_seconds` of every group by its name, without the other columns: these take every step to work out."""
    window = measured_window(records, warmup_s, cooldown_s)
    seconds = _replica_seconds(records, window, _group_of(records), len(records.sizes))
    return {group.name: float(spent) for group, spent in zip(records.sizes, seconds, strict=True)}


def _group_of(records: Records) -> Ints:
    """The place of every replica's group."""
    return np.repeat(np.arange(len(records.sizes)), [group.replicas for group in records.sizes])


def _replica_seconds(records: Records, window: Window, part_of: Ints, parts: int) -> Floats:
    if records.lives is None:
        return np.multiply(window.duration_s, np.bincount(part_of, minlength=parts), dtype=np.float64)
    return np.bincount(part_of, present_s(records, window), parts).astype(np.float64)


def _by_part(records: Records, window: Window, part_of: Ints, parts: int) -> PartColumns:
    """`part_of` says of every replica which part it belongs to."""
    requests = records.requests
    given = window.measured & (requests.replica >= 0)
    done = given & (requests.status == Status.FINISHED)
    part = part_of[requests.replica]

    def total(which: Bools, values: Ints | None = None) -> Ints:
        weights = None if values is None else values[which]
        return np.bincount(part[which], weights, parts).astype(np.int64)

    blocks = blocks_of_replicas(records)
    replica_s = _replica_seconds(records, window, part_of, parts)
    if records.lives is None:
        block_capacity_s = window.duration_s * np.bincount(part_of, blocks, parts).astype(np.float64)
    else:
        block_capacity_s = np.bincount(part_of, present_s(records, window) * blocks, parts).astype(np.float64)
    busy_s, block_s, peak, steps = _usage(records, window, part_of, parts)
    cached, asked = prompt_tokens_asked(records)
    return PartColumns(
        replicas=np.bincount(part_of, minlength=parts),
        replica_seconds=replica_s,
        requests=total(given),
        completed=total(done),
        rejected=total(given & (requests.status == Status.REJECTED)),
        input_tokens=total(done, requests.input_tokens),
        output_tokens=total(done, requests.output_tokens),
        num_steps=steps,
        busy_fraction=_share(busy_s, replica_s),
        kv_utilization_mean=_share(block_s, block_capacity_s),
        kv_utilization_peak=peak,
        preemptions=total(given, requests.preemptions),
        prefix_cache_hit_rate=_share(total(given, cached), total(given, asked)),
    )


def prompt_tokens_asked(records: Records) -> tuple[Ints, Ints]:
    """For every request the prompt tokens found in the prefix cache, and those asked for at all its admissions."""
    requests, requeues = records.requests, records.requeues
    times = (~np.isnan(requests.scheduled_s)).astype(np.int64)
    recomputing = ~np.isnan(requeues.to_s) & (requeues.swapped == 0)
    times += np.bincount(requeues.row[recomputing], minlength=len(times))
    return requests.cached_tokens, times * requests.input_tokens


def _usage(records: Records, window: Window, part_of: Ints, parts: int) -> tuple[Floats, Floats, Floats, Ints]:
    """Each part's busy seconds, block-seconds, largest share of blocks in use, and steps."""
    of_row, blocks = records.rows.replica, blocks_of_replicas(records)
    busy_s, block_s = np.zeros(parts), np.zeros(parts)
    peak, num_steps = np.full(parts, np.nan), np.zeros(parts, dtype=np.int64)
    for rows, steps in row_pieces(records):
        replica = np.repeat(of_row[rows], records.rows.repeat[rows])
        part = part_of[replica]
        starts, ends = step_starts(records, rows, steps), records.step_end_s[steps]
        used = records.step_used_blocks[steps]
        inside: slice | Bools = slice(None)
        if not window.whole:
            starts, ends = (np.clip(times, window.start_s, window.end_s) for times in (starts, ends))
            unclipped = records.step_end_s[steps]
            inside = (unclipped >= window.start_s) & (unclipped <= window.end_s)
        seconds = ends - starts
        busy_s += np.bincount(part, seconds, parts)
        block_s += np.bincount(part, seconds * used, parts)
        num_steps += np.bincount(part[inside], minlength=parts)
        np.fmax.at(peak, part[inside], (used / blocks[replica])[inside])
    return busy_s, block_s, peak, num_steps


def _share(part: Floats | Ints, whole: Floats | Ints) -> Floats:
    found: Floats = np.divide(part, whole, out=np.full(len(whole), np.nan), where=whole > 0)
    return found


# Evenness


def jain(values: Floats | Ints) -> float | None:
    """Jain's fairness index, (sum of x)^2 / (n x sum of x^2): 1 where all have the same, 1 / n where one has all.

    R. Jain, D. Chiu, W. Hawe, A Quantitative Measure of Fairness and Discrimination for Resource Allocation in Shared
    Computer Systems, DEC-TR-301 (1984). None where there are fewer than two, or all are 0.
    """
    if len(values) < 2 or not np.any(values):
        return None
    shares = np.asarray(values, dtype=np.float64) / float(np.max(values))
    return min(float(shares.sum() ** 2 / (len(shares) * (shares**2).sum())), 1.0)


def variation(values: Floats | Ints) -> float | None:
    """Standard deviation / mean; None where there are fewer than two, or all are 0."""
    return None if len(values) < 2 or not np.any(values) else float(np.std(values) / np.mean(values))


def most_over_mean(values: Floats | Ints) -> float | None:
    """The largest / the mean; None where there are fewer than two, or all are 0."""
    return None if len(values) < 2 or not np.any(values) else float(np.max(values) / np.mean(values))


def least_over_most(values: Floats | Ints) -> float | None:
    """The smallest / the largest: what max-min fairness looks at. None where there are fewer than two, or all are 0."""
    return None if len(values) < 2 or not np.any(values) else float(np.min(values) / np.max(values))
