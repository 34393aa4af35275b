"""A server's samples, one a second: a CSV of `t`, `running`, `waiting` (LLMServingSim's vllm_timeseries.csv)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from scenarios.measured.log_format import LogFile
from scenarios.measured.measured_run import Timeline
from scenarios.traces.lines import numbered_lines
from simulator.errors import InputError

NAMES = ("vllm_timeseries.csv", "timeseries.csv")
_COLUMNS = ("t", "running", "waiting")


def read_timeseries(path: Path) -> Timeline:
    """Read the samples. `t` counts seconds from the run's start. Raises InputError for another file, and disorder."""
    log = LogFile(str(path), list(numbered_lines(path)))
    if not log.lines:
        raise InputError("the file is empty", file=log.name)
    ticks: list[list[float]] = []
    for row in log.csv_rows(_COLUMNS):
        tick = [row.number(name) for name in _COLUMNS]
        if ticks and tick[0] <= ticks[-1][0]:
            raise row.error(f"t does not grow: {tick[0]:g} after {ticks[-1][0]:g}")
        ticks.append(tick)
    if not ticks:
        raise InputError("the file holds a header but no rows", file=log.name)
    time_s, running, waiting = np.array(ticks, dtype=np.float64).T
    return Timeline(time_s, running, waiting)


def beside(log: Path) -> Path | None:
    """Return the time series beside a log, if there is one."""
    return next((path for name in NAMES if (path := log.parent / name).is_file()), None)
