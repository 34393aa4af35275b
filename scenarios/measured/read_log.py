"""What a real server left, read: its log, the samples beside it, or scrapes of its `/metrics`."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.measured.formats import log_formats
from scenarios.measured.formats.plain_csv import REQUIRED
from scenarios.measured.measured_run import LogFile, LogFormat, MeasuredRun, Timeline
from scenarios.schema.source.hints import did_you_mean
from scenarios.traces.format import numbered_lines
from scenarios.traces.rows import RowError, split_csv
from simulator.errors import InputError
from simulator.metrics.vllm_metrics import PREFIX
from simulator.results.records import Floats

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


# A scrape of a vLLM server's `/metrics`: counters and histograms since its start, or between two scrapes.
#
# Prometheus' text format, a sample a line: `name{label="value",...} number`. Samples of several engines are added
# up.

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
MARK = f"{PREFIX}time_to_first_token_seconds"
"""The name of a histogram that every version of vLLM has."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Counts of values up to each bound, the last bound infinite; their sum."""

    bounds: Floats
    up_to: Floats
    sum: float

    @property
    def count(self) -> float:
        """Return how many values were counted."""
        return float(self.up_to[-1])

    @property
    def mean(self) -> float:
        """Return the mean of the values; NaN without one."""
        return self.sum / self.count if self.count else float("nan")

    def quantile(self, share: float) -> float:
        """Return the value below which this share lies, linear within its bucket, as Prometheus' histogram_quantile.

        Beyond the last finite bound it is that bound; NaN without a value.
        """
        if not self.count:
            return float("nan")
        rank = share * self.count
        place = int(np.searchsorted(self.up_to, rank))
        if not np.isfinite(self.bounds[place]):
            return float(self.bounds[place - 1]) if place else float("nan")
        low, below = (float(self.bounds[place - 1]), float(self.up_to[place - 1])) if place else (0.0, 0.0)
        inside = float(self.up_to[place]) - below
        return low + (float(self.bounds[place]) - low) * ((rank - below) / inside if inside else 1.0)

    def is_told(self, share: float) -> bool:
        """Return whether the value below which this share lies is beyond the first bucket, which begins at 0."""
        return float(self.up_to[0]) < share * self.count

    def of(self, values: Floats) -> Histogram:
        """Return other values in these buckets."""
        up_to = np.searchsorted(np.sort(values), self.bounds, side="right").astype(np.float64)
        return Histogram(self.bounds, up_to, float(values.sum()))


@dataclass(frozen=True, slots=True)
class Scrape:
    """The samples of one moment, or of what came between two: sums over engines, by the name without `vllm:`."""

    file: str
    values: dict[str, float]
    buckets: dict[str, dict[float, float]]

    def histogram(self, name: str) -> Histogram | None:
        """Return a histogram; None where the server does not have it."""
        buckets = self.buckets.get(name)
        if not buckets or f"{name}_sum" not in self.values:
            return None
        bounds = np.array(sorted(buckets))
        return Histogram(bounds, np.array([buckets[bound] for bound in bounds.tolist()]), self.values[f"{name}_sum"])

    def counter(self, name: str) -> float | None:
        """Return a counter; None where the server does not have it. Its name may end with `_total`."""
        return self.values.get(f"{name}_total", self.values.get(name))

    def since(self, earlier: Scrape) -> Scrape:
        """Return what came after an earlier scrape. Raises InputError where a count was larger then."""
        for name in ("time_to_first_token_seconds_count", "generation_tokens_total"):
            if self.values.get(name, 0.0) < earlier.values.get(name, 0.0):
                what = f"{PREFIX}{name} is smaller than in {earlier.file}"
                raise InputError(what, file=self.file, hint="the earlier scrape comes second, or the server restarted")
        values = {name: value - earlier.values.get(name, 0.0) for name, value in self.values.items()}
        buckets = {
            name: {bound: count - earlier.buckets.get(name, {}).get(bound, 0.0) for bound, count in of.items()}
            for name, of in self.buckets.items()
        }
        return Scrape(self.file, values, buckets)


def is_scrape(path: Path) -> bool:
    """Return whether a file is a scrape of vLLM's metrics."""
    return any(text.startswith((MARK, f"# HELP {MARK}", f"# TYPE {MARK}")) for _, text in numbered_lines(path))


def read_scrape(path: Path) -> Scrape:
    """Read a scrape. Raises InputError, with the line, for what is no sample, and for a server without requests."""
    log = LogFile(str(path), list(numbered_lines(path)))
    values: dict[str, float] = defaultdict(float)
    buckets: dict[str, dict[float, float]] = defaultdict(lambda: defaultdict(float))
    for line, text in log.lines:
        if text.startswith("#"):
            continue
        match = _SAMPLE.fullmatch(text.strip())
        try:
            name, labels, number = (match[1], dict(_LABEL.findall(match[2] or "")), float(match[3])) if match else _no()
        except ValueError:
            raise InputError("not a sample of Prometheus' text format", file=log.name, line=line) from None
        if not name.startswith(PREFIX):
            continue
        name = name.removeprefix(PREFIX)
        if name.endswith("_bucket") and "le" in labels:
            buckets[name.removesuffix("_bucket")][float(labels["le"])] += number
        elif name == "request_success_total":
            values[f"{name}:{labels.get('finished_reason', '')}"] += number
        else:
            values[name] += number
    found = Scrape(log.name, dict(values), {name: dict(of) for name, of in buckets.items()})
    if found.histogram("time_to_first_token_seconds") is None:
        raise InputError(f"there is no histogram {MARK}", file=log.name, hint="give a scrape of vLLM's /metrics")
    return found


def _no() -> tuple[str, dict[str, str], float]:
    raise ValueError
