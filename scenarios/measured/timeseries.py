"""A server's samples, one a second: a CSV of `t`, `running`, `waiting` (LLMServingSim's vllm_timeseries.csv)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from scenarios.measured.csv_rows import rows_of
from scenarios.measured.measured_run import Timeline, bad_row, number
from scenarios.traces.lines import numbered_lines
from simulator.errors import InputError

NAMES = ("vllm_timeseries.csv", "timeseries.csv")
_COLUMNS = ("t", "running", "waiting")


def read_timeseries(path: Path) -> Timeline:
    """The ticks. `t` counts seconds from the start of the run. Raises InputError for another file, and disorder."""
    file = str(path)
    lines = list(numbered_lines(path))
    if not lines:
        raise InputError("the file is empty", file=file)
    ticks: list[list[float]] = []
    for line, fields in rows_of(lines, _COLUMNS, file):
        tick = [number(fields, name, file, line) for name in _COLUMNS]
        if ticks and tick[0] <= ticks[-1][0]:
            raise bad_row(file, line, f"t does not grow: {tick[0]:g} after {ticks[-1][0]:g}")
        ticks.append(tick)
    if not ticks:
        raise InputError("the file holds a header but no rows", file=file)
    time_s, running, waiting = np.array(ticks, dtype=np.float64).T
    return Timeline(time_s, running, waiting)


def beside(log: Path) -> Path | None:
    """The time series that lies beside a log, if one does."""
    for name in NAMES:
        if (path := log.parent / name).is_file():
            return path
    return None
