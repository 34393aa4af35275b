"""A scrape of a vLLM server's `/metrics`: counters and histograms since its start, or between two scrapes.

Prometheus' text format, a sample a line: `name{label="value",...} number`. Samples of several engines are added up.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from scenarios.measured.measured_run import LogFile
from scenarios.traces.lines import numbered_lines
from simulator.errors import InputError
from simulator.metrics.vllm_metrics import PREFIX
from simulator.results.records import Floats

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
