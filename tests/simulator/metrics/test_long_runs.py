"""Metrics of runs whose columns lie in files hold a piece of them in memory, and no whole column."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
import pytest

from simulator import columns, statistics
from simulator.columns import Column, joined
from simulator.metrics import latency, usage
from simulator.metrics.latency import itl
from simulator.metrics.usage import check_rows
from simulator.metrics.window import Window, run_end_s
from simulator.results.records import GapColumns, Records, RequestColumns, RequeueColumns, RowColumns
from tests.columns import as_floats, as_ints

ROWS = 100_000
COLUMN = 8 * ROWS  # bytes


def in_files(kind: Any, **given: Any) -> Any:
    """Columns of which those that are not given are zeros."""
    found: dict[str, Column] = {}
    for field in fields(kind):
        zero = 0.0 if field.name.endswith("_s") else 0
        found[field.name] = joined([given.get(field.name, np.full(len(next(iter(given.values()))), zero))])
    return kind.keep(found)


def long_records() -> Records:
    """A replica that decodes for a long time, each row two steps, while hardly a request comes."""
    rng = np.random.default_rng(0)
    ends = (0.001 + rng.random(2 * ROWS) / 100).cumsum()
    starts = np.concatenate(([0.0], ends[1:-1:2]))
    batch = rng.integers(1, 200, ROWS)
    return Records.keep(
        {"step_end_s": joined([ends]), "step_used_blocks": joined([rng.integers(1, 900, 2 * ROWS)])},
        requests=in_files(RequestColumns, arrival_s=np.zeros(1)),
        rows=in_files(
            RowColumns,
            first_step=np.arange(0, 2 * ROWS, 2),
            repeat=np.full(ROWS, 2),
            start_s=starts,
            end_s=ends[1::2],
            running=batch,
            decoding=batch,
            tokens=batch,
        ),
        gaps=in_files(GapColumns, gap_s=ends[::2] - starts, count=batch, end_s=ends[::2]),
        requeues=RequeueColumns(as_ints([]), as_floats([]), as_floats([]), as_ints([])),
        num_blocks=1000,
        block_size=16,
        max_num_seqs=256,
        replicas=1,
        reject_reasons={},
        class_names=("all",),
        request_ids=None,
    )


@pytest.fixture
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "KEPT_BYTES", 1 << 16)
    monkeypatch.setattr(columns, "PIECE", 1 << 12)
    monkeypatch.setattr(statistics, "AT_ONCE", 1 << 12)
    monkeypatch.setattr(usage, "STEPS_AT_ONCE", 1 << 12)
    monkeypatch.setattr(latency, "STEPS_AT_ONCE", 1 << 12)
    monkeypatch.setattr("simulator.metrics.weighted.SORTED_AT_ONCE", 1 << 12)
    monkeypatch.setattr("simulator.metrics.weighted.BUCKET_BITS", 8)


@contextmanager
def at_most(most: int) -> Iterator[None]:
    """No more bytes at any moment; what is mapped of files does not count."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most


WINDOWS = {
    "whole": Window(0.0, 1e9, np.ones(1, dtype=np.bool_), True),
    "cut": Window(100.0, 400.0, np.ones(1, dtype=np.bool_), False),
}


@pytest.mark.parametrize(
    "metric",
    [
        check_rows,
        run_end_s,
        *(partial(usage.usage, window=window) for window in WINDOWS.values()),
        partial(itl, q=(50, 99)),
    ],
    ids=["check_rows", "run_end_s", "usage", "usage in a window", "itl"],
)
def test_no_whole_column_is_in_memory(metric: Callable[[Records], object], short_pieces: None) -> None:
    records = long_records()
    assert {"first_step", "start_s", "running"} <= set(records.rows._in_files)
    metric(records)  # what is imported and cached on the way
    with at_most(COLUMN // 2):
        metric(records)
