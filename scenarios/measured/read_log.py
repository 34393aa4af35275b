"""Read a server's log, and the samples beside it. A log's content tells its format, never the file's name."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.measured.formats import log_formats
from scenarios.measured.formats.plain_csv import REQUIRED
from scenarios.measured.measured_run import LogFile, LogFormat, MeasuredRun, Timeline
from scenarios.schema.source.hints import did_you_mean
from scenarios.traces.lines import numbered_lines
from scenarios.traces.rows import RowError, split_csv
from simulator.errors import InputError

_TIMESERIES = ("vllm_timeseries.csv", "timeseries.csv")
_COLUMNS = ("t", "running", "waiting")


def read_measured(path: Path, *, format_: str = "auto", benchmark: int | None = None) -> MeasuredRun:
    """Read the log of a real server, plain or gzipped.

    `benchmark` chooses one of several runs in a file, counted from 1 (GuideLLM's sweeps, appended vLLM results).
    Raises InputError with file and line for what cannot be read.
    """
    names = ("auto", *log_formats())
    if format_ not in names:
        raise InputError(f"unknown format of a log: {format_!r}", hint=did_you_mean(format_, names))
    file = LogFile(str(path), list(numbered_lines(path)))
    if not file.lines:
        raise InputError("the file is empty", file=file.name)
    found = _detect(file) if format_ == "auto" else log_formats()[format_]
    if benchmark is not None and not found.several:
        raise InputError(f"--benchmark does not apply to {found.name}: the file holds one run", file=file.name)
    return found.read(file, benchmark)


def _detect(file: LogFile) -> LogFormat:
    number, first = file.lines[0]
    if first.lstrip().startswith("{"):
        found = _object(first)
        return _by_keys(file.document() if found is None else found, file.name)
    if first.lstrip().startswith("["):
        raise InputError("a JSON array is not a known log", file=file.name, line=number, hint=_known())
    try:
        header = {name.strip() for name in split_csv(first)}
    except RowError as error:
        raise InputError(f"the header cannot be read: {error.detail}", file=file.name, line=number) from None
    fits = [each for each in log_formats().values() if each.columns is not None and each.columns <= header]
    return max(fits, key=lambda each: len(each.columns or ()))


def _by_keys(found: Any, file: str) -> LogFormat:
    keys = set(found) if isinstance(found, dict) else set()
    fits = [each for each in log_formats().values() if each.keys is not None and each.keys <= keys]
    if fits:
        return max(fits, key=lambda each: len(each.keys or ()))
    for each in log_formats().values():
        if each.summary is not None and each.summary.key in keys:
            what = f"this is {each.summary.what}: it lacks the times of single requests"
            raise InputError(what, file=file, hint=each.summary.hint)
    seen = ", ".join(sorted(keys)[:12])
    raise InputError("unknown format of a log", file=file, hint=f"keys seen: {seen}; {_known()}")


def _object(text: str) -> Any:
    """Return the JSON object in a line, None if there is no whole one."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _known() -> str:
    return f"known: {', '.join(log_formats())} (--format); a CSV needs {', '.join(REQUIRED)} and latencies"


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
    return next((path for name in _TIMESERIES if (path := log.parent / name).is_file()), None)
