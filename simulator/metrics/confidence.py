"""How sure latencies and metrics are: intervals from one run, and over seeds."""

from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np

from simulator.metrics.latency import e2el_s, finished, queue_s, tpot_s, ttft_s
from simulator.metrics.metric import PERCENTILES
from simulator.metrics.summary import METRICS
from simulator.metrics.window import measured_window
from simulator.results.records import Floats, Records
from simulator.statistics import (
    UNBOUNDED,
    Interval,
    PercentileInterval,
    Values,
    bootstrap_difference,
    mean_interval,
    paired_difference,
    percentile_interval,
)

# How sure one run is of its own latencies: intervals of means and percentiles, without a second run.
#
# They hold for the steady state that the run is a piece of: a run that is saturated has none. The requests of one
# queue wait together, so n of them say less than n independent ones would (`simulator.statistics`).

_OF_REQUESTS = {"ttft": ttft_s, "tpot": tpot_s, "e2el": e2el_s, "queue_time": queue_s}  # pooled gaps have no order

PERCENTILE_KEYS: Mapping[str, tuple[int, str]] = {
    f"p{percent}_{name}_ms": (percent, name) for name in _OF_REQUESTS for percent in PERCENTILES
}
"""The keys of summary.json that a run alone has an interval for: percentile and latency of each."""


def run_percentiles(
    records: Records,
    keys: Iterable[str] = PERCENTILE_KEYS,
    *,
    warmup_s: float = 0.0,
    cooldown_s: float = 0.0,
) -> dict[str, PercentileInterval]:
    """The 95 % interval of each percentile of the measured requests, in milliseconds, by key of summary.json."""
    wanted = {key: PERCENTILE_KEYS[key] for key in keys}
    found = {}
    for name, values in _series(records, warmup_s, cooldown_s, {name for _, name in wanted.values()}):
        for key, (percent, of) in wanted.items():
            if of == name:
                found[key] = percentile_interval(values, percent)
    return {key: found[key] for key in wanted}


def percentile_differences(
    one: Records, other: Records, keys: Iterable[str], *, warmup_s: float = 0.0, cooldown_s: float = 0.0
) -> dict[str, Interval]:
    """Percentiles of one run less those of another on the same requests, with 95 % intervals, in milliseconds.

    The intervals are by the paired bootstrap over blocks of requests. A key is left out where the runs did not finish
    the same requests, and where either run is too short for the percentile.
    """
    if len(one.requests.row) != len(other.requests.row) or one.request_ids != other.request_ids:
        return {}
    ours_done, theirs_done = (
        measured_window(each, warmup_s, cooldown_s).measured & finished(each) for each in (one, other)
    )
    if not np.array_equal(ours_done, theirs_done):
        return {}
    ours, theirs = (dict(_series(each, warmup_s, cooldown_s)) for each in (one, other))
    found = {}
    for key in keys:
        percent, name = PERCENTILE_KEYS[key]
        a, b = ours[name], theirs[name]
        if len(a) == len(b) and all(percentile_interval(each, percent).is_bounded for each in (a, b)):
            found[key] = bootstrap_difference(a, b, percent)
    return found


def _series(
    records: Records, warmup_s: float, cooldown_s: float, names: Collection[str] = tuple(_OF_REQUESTS)
) -> Iterator[tuple[str, Floats]]:
    """Each of these latencies in milliseconds, of the finished requests that have it, in the order of arrival."""
    done = measured_window(records, warmup_s, cooldown_s).measured & finished(records)
    order = np.argsort(records.requests.arrival_s, kind="stable")
    order = order[done[order]]
    for name, of in _OF_REQUESTS.items():
        if name in names:
            seconds = of(records)[order]
            yield name, seconds[~np.isnan(seconds)] * 1e3


# Confidence intervals of metrics over seeds: of a mean, and of the difference between two policies paired by seed.


def metric_interval(key: str, values: Values) -> Interval:
    """The 95 % interval of a metric's mean over seeds, within the values that the metric can have."""
    return mean_interval(values, bounds=_bounds(key))


def metric_difference(key: str, a: Values, b: Values) -> Interval:
    """The 95 % interval of the difference of a metric between two runs, paired by seed, within what is possible."""
    return paired_difference(a, b, bounds=_bounds(key))


def _bounds(key: str) -> tuple[float, float]:
    return METRICS[key].bounds if key in METRICS else UNBOUNDED
