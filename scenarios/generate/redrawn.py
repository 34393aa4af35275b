"""A trace's requests at other times: arrivals drawn from a process, in place of the recorded ones or where there are
none."""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from scenarios.generate.arrivals import draw_arrivals
from scenarios.schema.arrival import Arrival
from scenarios.streams import stream
from simulator.errors import InputError
from simulator.workload import Floats, Ints, Workload

_OWNER = "trace"


def with_arrivals(workload: Workload, config: Arrival, seed: int) -> Workload:
    """The workload with arrivals drawn from `config`, in the order of the requests.

    A request that follows an answer keeps its distance from the one that it follows; the others arrive as drawn. Time 0
    is the start of the process.
    """
    after = workload.after_row
    count = len(workload)
    roots = np.arange(count) if after is None else np.flatnonzero(after < 0)
    drawn = np.empty(count)
    drawn[roots] = first_arrivals(config, seed, len(roots))
    if after is not None:
        recorded = workload.arrival_s
        for row in np.flatnonzero(after >= 0).tolist():  # what it follows lies before it
            drawn[row] = drawn[after[row]] + (recorded[row] - recorded[after[row]])
            for other in workload.also_after[row] if workload.also_after is not None else ():
                drawn[row] = max(drawn[row], drawn[other])
    order = np.argsort(drawn, kind="stable")
    moved = _reordered(workload, order)
    note = f"{len(roots):,} arrivals drawn ({config.process}); the recorded times only keep the order"
    return replace(moved, arrival_s=drawn[order], notes=(*_without_rate(workload.notes), note))


def first_arrivals(config: Arrival, seed: int, count: int) -> Floats:
    """The first `count` arrivals of the process. A larger `count` adds some and changes none.

    Raises InputError for a process that ends, whose arrivals may be fewer.
    """
    if config.ends:
        raise InputError("workload.trace.arrival: its profile ends at 0, the arrivals may be too few for the trace")
    until_s = (count + 4.0 * config.variation * math.sqrt(count) + 8.0) / config.mean_rate
    while True:
        drawn = draw_arrivals(config, partial(stream, seed, _OWNER), until_s, count)
        if len(drawn) >= count:
            return drawn
        until_s *= 1.5


def _reordered(workload: Workload, order: Ints) -> Workload:
    """The rows in another order; a request that was named by its row keeps that name."""
    columns: dict[str, Any] = {
        name: column[order] if isinstance(column, np.ndarray) else [column[row] for row in order.tolist()]
        for name, column in workload.columns().items()
    }
    if workload.request_ids is None and not np.array_equal(order, np.arange(len(order))):
        columns["request_ids"] = list(map(str, order.tolist()))
    if workload.after_row is not None:
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        after = workload.after_row[order]
        columns["after_row"] = np.where(after >= 0, rank[after], -1)
        if workload.also_after is not None:
            columns["also_after"] = [tuple(rank[list(each)].tolist()) for each in columns["also_after"]]
    return replace(workload, **columns)


def _without_rate(notes: tuple[str, ...]) -> tuple[str, ...]:
    """The notes, of which the first says the rate of the recorded arrivals."""
    return (notes[0].partition(" in ")[0], *notes[1:]) if notes else ()
