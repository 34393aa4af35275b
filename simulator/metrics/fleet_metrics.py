"""Each replica and each group of a fleet by itself, and how evenly work is spread over them."""

from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np
from annotated_types import Unit, doc

from simulator.metrics.presence import present_s
from simulator.metrics.usage import blocks_of_replicas, row_pieces, step_starts
from simulator.metrics.window import Bools, Window, measured_window
from simulator.results.records import Floats, Ints, Records, Status


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
