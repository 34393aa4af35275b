"""The use of slots, tokens and KV blocks over a window."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from simulator.columns import stretches
from simulator.metrics.presence import present_s
from simulator.metrics.weighted import weighted_sum
from simulator.metrics.window import Window
from simulator.results.records import Floats, Ints, Records
from simulator.statistics.sums import pairwise_sum

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
