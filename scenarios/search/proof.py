"""The proof of a search: the best candidate on traffic that it never saw, and which requests pay for it."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from scenarios.bound.at_best import Bounds
from scenarios.bound.bound import bound, of_run, weakest
from scenarios.runs.result import Result
from simulator.metrics.confidence import metric_difference
from simulator.metrics.latency import Slo, e2el_s, meets_slo, queue_s, tpot_s, ttft_s
from simulator.metrics.outcomes import ATTAINMENT
from simulator.metrics.window import Bools, measured_window
from simulator.results.records import Floats, Ints, Records
from simulator.statistics import BATCHES, LEAST, RESAMPLES, Interval

# The best candidate beside the scenario's own policy on traffic that the search never saw, and the gap to the
# bound.
#
# Both serve the same requests. Over several seeds the interval of the difference is Student's, paired by seed. On
# one trace it is a bootstrap over blocks of neighbouring requests, the same blocks of both runs: requests wait in
# one queue, and a sample that tore them apart would be too sure (see `simulator.statistics`).

_GOODPUT = "request_goodput"
_OF_REQUESTS = {"ttft": ttft_s, "tpot": tpot_s, "e2el": e2el_s, "queue_time": queue_s}


@dataclass(frozen=True, slots=True)
class HeldOut:
    """What both reach on held-out traffic, the difference, best less baseline, and how much of the gap is closed.

    `bound` is what no scheduler can do better, the mean over the seeds; None where none is proven. `closed` is a share
    of the gap between the baseline and the bound.
    """

    best: float | None
    baseline: float | None
    difference: Interval
    bound: float | None
    closed: Interval | None


def held_out(best: Sequence[Result], baseline: Sequence[Result], metric: str) -> HeldOut:
    """Hold the runs of one against those of the other: a run a seed, each pair on the same requests."""
    ours, theirs = ([run.summary.get(metric) for run in runs] for runs in (best, baseline))
    difference = metric_difference(metric, ours, theirs) if len(best) > 1 else _of_one(best[0], baseline[0], metric)
    mine, other = _mean(ours), _mean(theirs)
    at_best = _bound(list(zip(best, baseline, strict=True)), metric)
    closed = None
    if at_best is not None and other is not None and at_best != other:
        gap = at_best - other
        ends = sorted((difference.low / gap, difference.high / gap))
        closed = Interval(difference.mean / gap, ends[0], min(ends[1], 1.0), difference.n)  # none closes more
    return HeldOut(mine, other, difference, at_best, closed)


def _mean(values: Sequence[object]) -> float | None:
    known = [float(value) for value in values if isinstance(value, int | float)]
    return sum(known) / len(known) if len(known) == len(values) else None


def _bound(pairs: Sequence[tuple[Result, Result]], metric: str) -> float | None:
    """The bound that holds for both runs of each pair, the mean over the pairs; None where one has none.

    The two have other limits, and one may turn requests away. Then the share within the SLO alone is bounded, and of it
    follows the goodput: so many requests within the shorter of the two runs.
    """
    found = []
    for pair in pairs:
        held = weakest([_held(run) for run in pair]).metrics
        if metric in held:
            found.append(held[metric].value)
        elif metric == _GOODPUT and ATTAINMENT in held:
            run = pair[0]
            count = int(measured_window(run.records, **run.scenario.measure.window(run.records)).measured.sum())
            found.append(held[ATTAINMENT].value * count / min(float(each.summary["duration"]) for each in pair))
        else:
            return None
    return sum(found) / len(found)


def _held(run: Result) -> Bounds:
    assert run.workload is not None
    cuts = run.scenario.measure.window(run.records)
    return of_run(bound(run.scenario, run.workload, **cuts), run.records, run.workload)


def _of_one(best: Result, baseline: Result, metric: str) -> Interval:
    """The difference of one pair of runs, with its interval where the metric is a statistic of the requests.

    A goodput is over the length of its run, which ends with one request. So the interval also holds the difference
    over equal lengths: equal requests in time are no difference, whenever the last of them ended.
    """
    ours, theirs = best.summary.get(metric), baseline.summary.get(metric)
    value = math.nan if ours is None or theirs is None else float(ours) - float(theirs)
    sides = [_samples(run, metric) for run in (best, baseline)]
    if any(side is None for side in sides):
        return Interval(value, math.nan, math.nan, 1)
    (a, of_a), (b, of_b) = (side for side in sides if side is not None)
    if len(a) != len(b) or len(a) < LEAST:
        return Interval(value, math.nan, math.nan, len(a))
    rng = np.random.default_rng(0)
    blocks = np.array_split(np.arange(len(a)), BATCHES)
    found = []
    for drawn in rng.integers(BATCHES, size=(RESAMPLES, BATCHES)):
        rows = np.concatenate([blocks[place] for place in drawn])
        found.append((of_a(a[rows]) - of_b(b[rows]), of_b(a[rows]) - of_b(b[rows])))
    ends = np.percentile(found, (2.5, 97.5), axis=0)
    return Interval(value, min(float(ends[0].min()), value), max(float(ends[1].max()), value), len(a))


def _samples(run: Result, metric: str) -> tuple[Floats, Callable[[Floats], float]] | None:
    """A value for each measured request, in order of arrival, and the statistic of them that the metric is."""
    records = run.records
    window = measured_window(records, **run.scenario.measure.window(records))
    order = np.argsort(records.requests.arrival_s, kind="stable")
    order = order[window.measured[order]]
    slo = run.scenario.resolve_slo()
    if metric in (ATTAINMENT, _GOODPUT):
        good = meets_slo(records, slo or Slo())[order].astype(np.float64)
        per = 1.0 if metric == ATTAINMENT else len(good) / window.duration_s
        return good, lambda values: per * float(values.mean())
    statistic, _, name = metric.removesuffix("_ms").partition("_")
    if name not in _OF_REQUESTS or statistic == "std":
        return None
    values = _OF_REQUESTS[name](records)[order] * 1e3
    if statistic == "mean":
        return values, lambda drawn: float(np.nanmean(drawn))
    percent = 50.0 if statistic == "median" else float(statistic[1:])
    return values, lambda drawn: float(np.percentile(drawn[~np.isnan(drawn)], percent))


# Which requests pay for a policy, and which win: both runs of the same requests, by what a request is.


@dataclass(frozen=True, slots=True)
class Group:
    """Requests that have something in common: TTFT and E2E in milliseconds and shares within the SLO, of both runs.

    The first of each pair is of the scenario's own policy, the second of the found one. NaN where no request has one;
    `within` is None without limits of a request. `middle` is the median prompt of a group by prompts; 0 for others.
    """

    name: str
    count: int
    ttft_ms: tuple[float, float]
    e2el_ms: tuple[float, float]
    within: tuple[float, float] | None
    middle: float = 0.0


def groups(baseline: Sequence[Result], best: Sequence[Result], *, parts: int = 4) -> list[Group]:
    """All requests; those of each of so many parts of the prompts, and of the answers, by length; those of each class.

    Empty where the runs had different requests, as those of closed loops have.
    """
    first = baseline[0]
    if any(len(a.records.requests.row) != len(b.records.requests.row) for a, b in zip(baseline, best, strict=True)):
        return []
    slo = first.scenario.resolve_slo()
    inputs = np.concatenate([run.records.requests.input_tokens for run in baseline])
    outputs = np.concatenate([run.records.requests.output_tokens for run in baseline])
    found = [("all", np.ones(len(inputs), dtype=np.bool_))]
    found += [*_by_length("prompt", inputs, parts), *_by_length("answer", outputs, parts)]
    names = first.records.class_names
    if len(names) > 1:
        index = np.concatenate([run.records.requests.class_index for run in baseline])
        found += [(name, index == place) for place, name in enumerate(names)]

    def both(of: Callable[[Records], Floats | Bools]) -> list[Floats]:
        return [np.concatenate([of(run.records) for run in runs]).astype(np.float64) for runs in (baseline, best)]

    ttft, e2el = both(ttft_s), both(e2el_s)
    within = both(lambda records: meets_slo(records, slo)) if slo is not None and slo.limits else None
    return [
        Group(
            name,
            int(rows.sum()),
            _means(ttft, rows, 1e3),
            _means(e2el, rows, 1e3),
            None if within is None else _means(within, rows, 1.0),
            float(np.median(inputs[rows])) if name.startswith("prompt ") else 0.0,
        )
        for name, rows in found
        if rows.any()
    ]


def _by_length(noun: str, lengths: Ints, parts: int) -> Iterator[tuple[str, Bools]]:
    ends = np.unique(np.quantile(lengths, np.linspace(0.0, 1.0, parts + 1)).round())
    for place, (low, high) in enumerate(pairwise(ends.tolist())):
        rows = (lengths <= high) & ((lengths > low) if place else (lengths >= low))
        yield f"{noun} {int(low) + (1 if place else 0):,} to {int(high):,} tokens", rows


def _means(pair: Sequence[Floats], rows: Bools, scale: float) -> tuple[float, float]:
    first, second = (values[rows] for values in pair)
    known = [values[~np.isnan(values)] for values in (first, second)]
    a, b = (float(values.mean()) * scale if len(values) else float("nan") for values in known)
    return a, b
