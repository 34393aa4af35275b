"""A metric, and the sample that it is computed from: measured requests, and the measured window."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from simulator.metrics.client_metrics import ServedRequests, Sessions, Tasks, served, sessions, tasks
from simulator.metrics.latency import Slo, e2el_s, finished, itl, meets_slo, queue_s, tpot_s, ttft_s
from simulator.metrics.usage import Usage, busy_by_replica, usage
from simulator.metrics.waits import Starvation, Waits, starvation, waits
from simulator.metrics.weighted import Distribution
from simulator.metrics.window import Bools, Changes, Window, changes, present_s
from simulator.results.records import Floats, Ints, Records, Status

# The sample that metrics are computed from: measured requests of a run or of one class, and the measured window.

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True)  # no slots: what several metrics share is worked out once and kept
class Sample:
    """The requests that metrics count, of one class if `class_index` says so, and the window they are measured in."""

    records: Records
    window: Window
    slo: Slo | None = None
    class_index: int | None = None

    @cached_property
    def of_class(self) -> Bools | None:
        """One entry a request: whether it is of the class; None for all classes."""
        return None if self.class_index is None else self.records.requests.class_index == self.class_index

    @cached_property
    def measured(self) -> Bools:
        """One entry a request: whether it counts."""
        return self.window.measured if self.of_class is None else self.of_class & self.window.measured

    @cached_property
    def done(self) -> Bools:
        """One entry a request: whether it counts and has finished."""
        return self.measured & finished(self.records)

    @cached_property
    def aborted(self) -> Bools:
        """One entry a request: whether it counts and was aborted."""
        return np.asarray(self.measured & (self.records.requests.status == Status.ABORTED))

    @cached_property
    def completed(self) -> int:
        """Requests that have finished."""
        return int(self.done.sum())

    @cached_property
    def input_tokens(self) -> int:
        """Prompt tokens of the finished."""
        return int(self.records.requests.input_tokens[self.done].sum())

    @cached_property
    def output_tokens(self) -> int:
        """Generated tokens of the finished."""
        return int(self.records.requests.output_tokens[self.done].sum())

    @cached_property
    def served_by_replica(self) -> Ints:
        """Prompt and generated tokens of the finished, one entry a replica."""
        return self._served(self.records.requests.replica, self.records.replicas)

    @cached_property
    def busy_by_replica(self) -> Floats:
        """The share of its time that each replica is busy; of those that were there, and nothing for one alone."""
        if self.records.replicas == 1:
            return np.zeros(0)
        shares = busy_by_replica(self.records, self.window)
        return shares[~np.isnan(shares)]

    @cached_property
    def served_by_class(self) -> Ints:
        """Prompt and generated tokens of the finished, one entry a class with a measured request."""
        of_class, classes = self.records.requests.class_index, len(self.records.class_names)
        asking = np.bincount(of_class[self.measured], minlength=classes) > 0
        return self._served(of_class, classes)[asking]

    def _served(self, part: Ints, parts: int) -> Ints:
        requests, done = self.records.requests, self.done
        tokens = (requests.input_tokens + requests.output_tokens)[done]
        return np.bincount(part[done], tokens, parts).astype(np.int64)

    @cached_property
    def replica_seconds(self) -> float:
        """Time that replicas were there, all together."""
        return float(present_s(self.records, self.window).sum())

    @cached_property
    def changes(self) -> Changes | None:
        """How the number of replicas changed; None where it does not."""
        return changes(self.records, self.window)

    @cached_property
    def served(self) -> ServedRequests | None:
        """Requests over all their attempts; None where clients wait for ever."""
        return served(self.records, self.measured)

    @cached_property
    def sessions(self) -> Sessions | None:
        """Conversations; None where there are none."""
        return sessions(self.records, self.measured)

    @cached_property
    def tasks(self) -> Tasks | None:
        """Tasks of agents; None where there are none."""
        return tasks(self.records, self.measured)

    @cached_property
    def good(self) -> Bools | None:
        """One entry a measured request: whether it meets every limit; None without a limit."""
        if self.slo is None or not self.slo.limits:
            return None
        return meets_slo(self.records, self.slo)[self.measured]

    @cached_property
    def usage(self) -> Usage:
        """How far the steps in the window used slots, tokens and blocks."""
        return usage(self.records, self.window)

    @cached_property
    def waits(self) -> Waits:
        """The stretches of waiting, of all requests or of the class's."""
        return waits(self.records, self.of_class)

    @cached_property
    def starvation(self) -> Starvation:
        """The worst that happened to one request."""
        return starvation(self.records, self.of_class)

    def latency(self, name: str) -> Distribution | None:
        """The distribution of a latency in seconds, by its name in `LATENCIES`; None where there is no sample.

        Gaps between tokens are not kept by class: of one class there are none here, and `mean_itl_s` alone.
        """
        if name not in self._latencies:
            self._latencies[name] = self._distribution(name)
        return self._latencies[name]

    @cached_property
    def _latencies(self) -> dict[str, Distribution | None]:
        """Only the latencies that were asked for: gaps between tokens take longer than the rest of a summary."""
        return {}

    def _distribution(self, name: str) -> Distribution | None:
        if name == "itl":
            return None if self.class_index is not None else itl(self.records, PERCENTILES, self.window)
        seconds = {"ttft": ttft_s, "tpot": tpot_s, "e2el": e2el_s, "queue_time": queue_s}[name]
        return _describe(seconds(self.records)[self.done])

    @cached_property
    def mean_itl_s(self) -> float | None:
        """The mean gap between tokens: of a class by (tn - t1) / (n - 1), weighted by n - 1, aborted requests too."""
        if self.class_index is None:
            gaps = self.latency("itl")
            return None if gaps is None else gaps.mean
        requests, chosen = self.records.requests, (self.done | self.aborted) & (self.records.requests.output_tokens > 1)
        chosen &= self.records.streams
        count = int((requests.output_tokens[chosen] - 1).sum())
        return float((requests.last_token_s[chosen] - requests.first_token_s[chosen]).sum()) / count if count else None

    def rate(self, count: int | None) -> float | None:
        """A count per second of the window; None where either is undefined."""
        seconds = self.window.duration_s
        return count / seconds if count is not None and seconds > 0 else None


def _describe(seconds: Floats) -> Distribution | None:
    """The distribution of those that are known; `seconds` is scratch space."""
    unknown = np.isnan(seconds)
    if unknown.any():
        seconds = seconds[~unknown]
    if not len(seconds):
        return None
    mean, std = float(seconds.mean()), float(seconds.std())
    percentiles = np.percentile(seconds, PERCENTILES, overwrite_input=True)  # last, as it moves them
    return Distribution(len(seconds), mean, std, tuple(percentiles.tolist()))


# A metric: its key, its unit, which way is better, what values are possible, how it is computed and written.

# Write a share in per cent.


def percent(share: float | None, digits: int | None = None, *, signed: bool = False) -> str:
    """A share as text: 93 %, +1.2 %. A dash stands for none.

    Without `digits` it is a whole number from 1 % on, and has one figure below that.
    """
    if share is None or not math.isfinite(share):
        return "-"
    value = 100 * share
    if digits is None and 0 < abs(value) < 1:
        return f"{value:+.1g} %" if signed else f"{value:.1g} %"
    return f"{value:{'+' if signed else ''},.{digits or 0}f} %"


Value = float | int | bool | None  # None stands for what is undefined

FRACTION, FLAG, MS, REQUESTS = "fraction", "flag", "ms", "requests"


@dataclass(frozen=True, slots=True)
class Metric:
    """A number of summary.json.

    `unit` is that of the value; `FRACTION` is a share from 0 to 1 and `FLAG` yes or no. `better` is +1 where more is
    better, -1 where less is, 0 where neither. `definition` and `remark` are sentences for people, `title` stands above
    a column. `of` works it out from a sample; None where the value needs more than a run's records, such as a price.
    `by_run` and `by_class` say whether it is a metric of a run, of a class, or of both. With `is_rare` a run that has
    no value of it does not name it.
    """

    key: str
    title: str
    unit: str
    definition: str
    of: Callable[[Sample], Value] | None
    better: int = 0
    remark: str = ""
    by_run: bool = True
    by_class: bool = False
    is_rare: bool = False

    @property
    def bounds(self) -> tuple[float, float]:
        """The least and the largest value possible: nothing that is measured here is negative."""
        return (0.0, 1.0) if self.unit in (FRACTION, FLAG) else (0.0, math.inf)
