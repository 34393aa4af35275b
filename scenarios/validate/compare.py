"""A simulation against a real server's log or a scrape of its `/metrics`: its errors, and its score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Literal

import numpy as np

from scenarios.measured.measured_run import MeasuredRun
from scenarios.measured.read_log import Scrape
from scenarios.runs.storage.run_folder import (
    FREE_RUNNING,
    LOCKSTEP,
    LOCKSTEP_STEPS,
    MEASURED,
    VALIDATION,
    disk_errors,
    to_json,
)
from scenarios.runs.storage.run_tables import Column, write_csv
from simulator.errors import InputError
from simulator.front_end import FrontEnd
from simulator.lockstep.step_errors import ComparedStep
from simulator.lockstep.step_errors import write_csv as write_steps
from simulator.metrics.latency import e2el_s, finished, tpot_s, ttft_s
from simulator.results.records import Floats, Ints, Records

# The front end of a server, estimated from its own log: the TTFT beyond the engine's, by concurrency.
#
# A simulation without a front end has each request's TTFT at the engine and how many ran when its first token came.
# The excess of the log over that is fitted by a constant and a slope over those that ran. Only requests that went
# into the batch at once count: a wait in a queue magnifies any error of the step times. The rest of such errors
# stays in the estimate, so it is reported with its spread, and applied only where the log's latencies are the
# client's.

QUEUED_S = 0.1
"""A longer wait is for a slot, not for the step in flight."""
FEWEST = 12
WIDTH = 4.0
"""A slope is estimated where the 10th and the 90th percentile of those running differ by as many."""
_ROUNDS = 20
_BEND = 1.345  # standard deviations from which on an outlier counts less and less (Huber)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A front end, estimated from `requests`. `low` and `high` are the 10th and 90th percentile of those running.

    `spread_s` is the median distance of a request's own excess from the estimate. `has_slope` False: concurrency
    hardly varied, so `per_running_s` is 0 and its part is in `fixed_s`.
    """

    front_end: FrontEnd
    requests: int
    low: float
    high: float
    spread_s: float
    has_slope: bool

    def words(self, applied: bool) -> str:
        """Return the estimate as a sentence."""
        of = self.front_end
        slope = f" and {of.per_running_s * 1e6:,.1f} us for each running request" if self.has_slope else ""
        use = "applied to the simulation" if applied else "not applied"
        near = f"half of them lie within {self.spread_s * 1e3:,.1f} ms of it"
        over = f"{self.low:,.0f} to {self.high:,.0f} running"
        return (
            f"Front end, estimated from the log: {of.fixed_s * 1e3:,.2f} ms{slope}, from {self.requests:,} requests"
            f" that did not queue, with {over}; {near}. It is {use}."
        )

    def data(self, applied: bool) -> Mapping[str, object]:
        """Return the estimate for JSON."""
        return {
            "fixed_s": self.front_end.fixed_s,
            "per_running_s": self.front_end.per_running_s,
            "requests": self.requests,
            "running": [self.low, self.high],
            "spread_s": self.spread_s,
            "applied": applied,
        }


def running_at_first(records: Records) -> Floats:
    """The requests that ran on its replica when each request's first token was sampled; NaN without one."""
    found = np.full(len(records.requests.row), np.nan)
    first_s = records.requests.first_token_s - records.front_end_s
    rows = records.rows
    for replica in np.unique(rows.replica).tolist():
        own = np.flatnonzero(rows.replica == replica)
        served = np.flatnonzero((records.requests.replica == replica) & np.isfinite(first_s))
        if not len(own) or not len(served):
            continue
        # The row that ends nearest to it: a first token ends a step with prompts, which has a row of its own.
        ends = rows.end_s[own]
        after = np.clip(np.searchsorted(ends, first_s[served]), 1, len(ends) - 1) if len(ends) > 1 else 0
        nearer = np.abs(ends[after - 1] - first_s[served]) <= np.abs(ends[after] - first_s[served])
        found[served] = rows.running[own][np.where(nearer, after - 1, after)]
    return found


def estimate(excess_s: Floats, running: Floats, queued_s: Floats) -> Estimate | None:
    """Estimate the front end from the excess of each request's TTFT; None where too few requests went in at once.

    All three have an entry a request; of NaN, none is used.
    """
    used = np.isfinite(excess_s) & np.isfinite(running) & ~(queued_s > QUEUED_S)
    if used.sum() < FEWEST:
        return None
    y, n = excess_s[used], running[used]
    low, high = (float(value) for value in np.percentile(n, (10, 90)))
    has_slope = high - low >= WIDTH
    fixed_s, per_s = _line(n, y) if has_slope else (float(np.median(y)), 0.0)
    if per_s < 0:
        fixed_s, per_s = float(np.median(y)), 0.0
    if fixed_s < 0:
        fixed_s = 0.0
        per_s = max(0.0, float(np.median(y / np.maximum(n, 1.0)))) if has_slope else 0.0
    spread_s = float(np.median(np.abs(y - fixed_s - per_s * n)))
    return Estimate(FrontEnd(fixed_s, per_s), int(used.sum()), low, high, spread_s, has_slope)


def _line(n: Floats, y: Floats) -> tuple[float, float]:
    """Fit constant and slope by least squares in which outliers count less and less (Huber)."""
    columns = np.column_stack([np.ones(len(n)), n])
    weight = np.ones(len(n))
    solution = np.zeros(2)
    for _ in range(_ROUNDS):
        root = np.sqrt(weight)
        solution, *_ = np.linalg.lstsq(columns * root[:, None], y * root, rcond=None)
        off = np.abs(y - columns @ solution)
        scale = 1.4826 * float(np.median(off))
        if scale <= 1e-12:
            break
        weight = np.minimum(1.0, _BEND * scale / np.maximum(off, 1e-300))
    return float(solution[0]), float(solution[1])


STATISTICS = ("mean", "p50", "p90", "p99")
METRICS = ("ttft", "tpot", "e2e")

FrontEndUse = Literal["auto", "log", "off"]
"""When the front end that was estimated from a log is added to the simulation."""


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison, an entry a request; seconds, NaN where not known.

    `arrival_s` and `scheduled_s` count from the first arrival. Both sides of a comparison hold the same requests in
    the same order where they could be matched.
    """

    names: tuple[str, ...]
    arrival_s: Floats
    scheduled_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    ttft_s: Floats
    tpot_s: Floats
    e2el_s: Floats
    preemptions: Ints | None
    makespan_s: float
    stands_for: float = 1.0  # requests of the run for each of these, which may be a sample

    @property
    def queue_s(self) -> Floats:
        """Return the seconds until first scheduled."""
        return self.scheduled_s - self.arrival_s

    @property
    def last_s(self) -> Floats:
        """Return when the last token came."""
        return self.arrival_s + self.e2el_s

    def seconds(self, metric: str) -> Floats:
        """Return one of METRICS, where it is defined."""
        values: Floats = {"ttft": self.ttft_s, "tpot": self.tpot_s, "e2e": self.e2el_s}[metric]
        return values[~np.isnan(values)]

    def between(self, begin: str, end: str, at_s: Floats) -> Floats:
        """Return at each time the number of requests that are past `begin` and not past `end`: two times in seconds.

        From arrival_s to last_s they are in flight, to scheduled_s they wait; from scheduled_s to last_s they hold a
        slot, or are preempted.
        """
        past, gone = (np.searchsorted(np.sort(getattr(self, name)), at_s, side="right") for name in (begin, end))
        return (past - gone).astype(np.float64)

    def only(self, keep: Ints) -> Side:
        """Return the side with these requests alone, in this order."""
        columns = ("arrival_s", "scheduled_s", "input_tokens", "output_tokens", "ttft_s", "tpot_s", "e2el_s")
        return replace(
            self,
            names=tuple(self.names[place] for place in keep.tolist()),
            preemptions=None if self.preemptions is None else self.preemptions[keep],
            **{name: getattr(self, name)[keep] for name in columns},
        )


@dataclass(frozen=True, slots=True)
class PerRequest:
    """Errors of one metric over matched requests: the median, the median of their size, and its 90th percentile."""

    median: float
    median_size: float
    p90_size: float


@dataclass(frozen=True, slots=True)
class Validation:
    """A comparison. `matched` says by what requests were matched; empty where they could not be."""

    measured: Side
    simulated: Side
    matched: str
    errors: Mapping[str, Mapping[str, float]]
    makespan: float
    throughput: Mapping[str, float]
    per_request: Mapping[str, PerRequest]
    notes: tuple[str, ...]
    front_end: Estimate | None = None  # of the log, where it could be estimated
    is_applied: bool = False  # whether the simulated times have it

    def numbers(self) -> dict[str, float]:
        """The errors that the score is made of, by name; the makespan's is missing where the log has no arrivals."""
        found = {f"{metric} {name}": error for metric, of in self.errors.items() for name, error in of.items()}
        return found if math.isnan(self.makespan) else {**found, "makespan": self.makespan}

    @property
    def score(self) -> float:
        """The mean size of the errors."""
        return float(np.mean(np.abs(list(self.numbers().values()))))

    @property
    def worst(self) -> tuple[str, float]:
        """The largest error, by name."""
        return max(self.numbers().items(), key=lambda item: abs(item[1]))


def measured_side(log: MeasuredRun) -> Side:
    """Return the log's requests."""
    names = log.request_ids or tuple(str(row) for row in log.row.tolist())
    own = {field.name: getattr(log, field.name) for field in fields(Side) if hasattr(log, field.name)}
    return Side(names, **own, stands_for=1.0 if log.sample_of is None else log.sample_of / len(log.row))


def simulated_side(records: Records) -> Side:
    """Return a run's finished requests. Raises InputError where nothing finished."""
    done = np.flatnonzero(finished(records))
    if not len(done):
        raise InputError("nothing to compare: the simulation finished no request")
    requests = records.requests
    first = float(requests.arrival_s.min())
    side = Side(
        tuple(records.request_id(row) for row in range(len(requests.row))),
        requests.arrival_s - first,
        requests.scheduled_s - first,
        requests.input_tokens,
        requests.output_tokens,
        ttft_s(records),
        tpot_s(records),
        e2el_s(records),
        requests.preemptions,
        float(requests.last_token_s[done].max()) - first,
    )
    return side.only(done)


def validate(log: MeasuredRun, records: Records, front_end: FrontEndUse = "auto") -> Validation:
    """Compare a run with a log of the same requests. Raises InputError where there is nothing to compare.

    The front end (the way between clients and engine) is estimated from the log. `auto` adds it to the simulation where
    the log's latencies are the client's and the run has no front end of its own. `log` adds it wherever it can be
    estimated, in place of the run's. `off` never does.
    """
    measured, simulated = measured_side(log), simulated_side(records)
    total = len(records.requests.row)
    matched, mine, theirs = _match(log, measured, simulated, total)
    found = _front_end(records, measured.only(mine), simulated, theirs) if matched else None
    own = not isinstance(records.front_end_s, float)
    applies = found is not None and (front_end == "log" or (front_end == "auto" and log.at_client and not own))
    if found is not None and applies:
        simulated = simulated_side(_behind(records, found.front_end))
    if matched:
        whole, sampled = simulated, log.sample_of is not None
        measured, simulated = measured.only(mine), simulated.only(theirs)
        notes = _unlike(measured, simulated)
        simulated = replace(simulated, stands_for=len(whole.names) / len(theirs) if sampled else 1.0)
    elif log.sample_of is not None:
        notes = []  # the log's own note says it
    else:
        notes = [
            f"warning: the log has {log.rows:,} requests and the scenario {total:,}: requests are not compared one by"
            " one, and the errors say little if the workloads differ"
        ]
    return replace(compare(measured, simulated, matched, notes), front_end=found, is_applied=applies)


def _front_end(records: Records, measured: Side, simulated: Side, theirs: Ints) -> Estimate | None:
    """Estimate the log's front end by its matched requests; `theirs` are their places among the simulated."""
    done = np.flatnonzero(finished(records))
    of_engine_s = (simulated.ttft_s - records.front_end_of(done))[theirs]
    queued_s = np.fmax(simulated.queue_s[theirs], measured.queue_s)
    return estimate(measured.ttft_s - of_engine_s, running_at_first(records)[done][theirs], queued_s)


def _behind(records: Records, front_end: FrontEnd) -> Records:
    """Return the records behind this front end in place of their own."""
    running = running_at_first(records)
    delays_s = np.where(np.isnan(running), 0.0, front_end.fixed_s + front_end.per_running_s * running)
    moved_s = delays_s - records.front_end_s
    requests = records.requests
    seen = {name: getattr(requests, name) + moved_s for name in ("first_token_s", "last_token_s")}
    return replace(records, requests=replace(requests, **seen), front_end_s=delays_s)


def compare(measured: Side, simulated: Side, matched: str, notes: Sequence[str] = ()) -> Validation:
    """Return the errors of the simulated side against the measured one."""
    errors = {
        metric: _errors(_statistics(measured.seconds(metric)), _statistics(simulated.seconds(metric)))
        for metric in METRICS
        if len(measured.seconds(metric)) and len(simulated.seconds(metric))
    }
    makespan = _error(measured.makespan_s, simulated.makespan_s)
    throughput = {
        "request": _error(_rate(measured, len(measured.names)), _rate(simulated, len(simulated.names))),
        "output": _error(*(_rate(side, int(side.output_tokens.sum())) for side in (measured, simulated))),
    }
    each = {}
    for metric, name in (("ttft", "ttft_s"), ("tpot", "tpot_s"), ("e2e", "e2el_s")):
        if matched and (found := _per_request(getattr(measured, name), getattr(simulated, name))) is not None:
            each[metric] = found
    return Validation(measured, simulated, matched, errors, makespan, throughput, each, tuple(notes))


def to_data(found: Validation) -> dict[str, object]:
    """Return the comparison for JSON: signed fractions, None where a figure is not known."""
    name, worst = found.worst
    e2e = found.per_request.get("e2e")
    return {
        "errors": {metric: dict(of) for metric, of in found.errors.items()},
        "makespan": known(found.makespan),
        "throughput": {key: known(value) for key, value in found.throughput.items()},
        "score": found.score,
        "worst": worst,
        "worst_of": name,
        "per_request_e2e_median": None if e2e is None else e2e.median_size,
        "per_request": {metric: asdict(of) for metric, of in found.per_request.items()},
        "matched_by": found.matched or None,
        "requests": {"measured": len(found.measured.names), "simulated": len(found.simulated.names)},
        "front_end": None if found.front_end is None else found.front_end.data(found.is_applied),
    }


def _match(log: MeasuredRun, measured: Side, simulated: Side, total: int) -> tuple[str, Ints, Ints]:
    """Match the requests. Returns by what they are matched, and the places of the matched on both sides."""
    none = np.zeros(0, dtype=np.int64)
    place = {name: index for index, name in enumerate(simulated.names)}
    if log.request_ids is not None and sum(name in place for name in log.request_ids) > len(log.request_ids) / 2:
        keys, by = list(log.request_ids), "request id"
    elif log.rows == total and log.sample_of is None:
        keys, by = [str(row) for row in log.row.tolist()], "order"
        if not any(key in place for key in keys):  # the scenario's requests have names of their own
            keys = list(simulated.names[: len(keys)])
    else:
        return "", none, none
    pairs = [(index, place[key]) for index, key in enumerate(keys) if key in place]
    mine, theirs = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return by, mine, theirs


def _unlike(measured: Side, simulated: Side) -> list[str]:
    """Return a warning where matched requests differ in length."""
    names = ("input_tokens", "output_tokens")
    unlike = [int(np.sum(getattr(measured, name) != getattr(simulated, name))) for name in names]
    if not any(unlike):
        return []
    count = len(measured.names)
    return [
        f"warning: of {count:,} requests {unlike[0]:,} have another prompt length in the log than in the scenario and"
        f" {unlike[1]:,} another answer length: is it the same workload?"
    ]


def _statistics(seconds: Floats) -> tuple[float, ...]:
    return (float(seconds.mean()), *np.percentile(seconds, (50, 90, 99)).tolist())


def _errors(measured: Sequence[float], simulated: Sequence[float]) -> dict[str, float]:
    return {name: _error(m, s) for name, m, s in zip(STATISTICS, measured, simulated, strict=True)}


def _rate(side: Side, amount: int) -> float:
    return amount * side.stands_for / side.makespan_s if side.makespan_s > 0 else math.nan


def _error(measured: float, simulated: float) -> float:
    """simulated / measured - 1; NaN where the measured is not above 0."""
    return simulated / measured - 1.0 if measured > 0 else math.nan


def _per_request(measured: Floats, simulated: Floats) -> PerRequest | None:
    known = (measured > 0) & np.isfinite(simulated)
    if not known.any():
        return None
    errors = simulated[known] / measured[known] - 1.0
    sizes = np.abs(errors)
    return PerRequest(float(np.median(errors)), float(np.median(sizes)), float(np.percentile(sizes, 90)))


def known(value: float) -> float | None:
    """Return a figure for JSON: None where it is not known."""
    return value if math.isfinite(value) else None


# The files of a validation (beside the run that it compares), of a lockstep, and of a free-running one.


def write_validation(folder: Path, data: Mapping[str, object], found: Validation) -> None:
    """Write validation.json and measured.csv.gz into an existing folder. Raises InputError where the disk refuses."""
    with disk_errors(folder):
        (folder / VALIDATION).write_text(to_json(data), encoding="utf-8", newline="\n")
        write_csv(folder / MEASURED, validation_columns(found))


def write_lockstep(folder: Path, data: Mapping[str, object], steps: Sequence[ComparedStep]) -> None:
    """Write lockstep.json and lockstep.csv into an existing folder. Raises InputError where the disk refuses."""
    with disk_errors(folder):
        write_steps(folder / LOCKSTEP_STEPS, steps)
        (folder / LOCKSTEP).write_text(to_json(data), encoding="utf-8", newline="\n")


def write_free_running(folder: Path, data: Mapping[str, object]) -> None:
    """Write free-running.json into an existing folder. Raises InputError where the disk refuses."""
    with disk_errors(folder):
        (folder / FREE_RUNNING).write_text(to_json(data), encoding="utf-8", newline="\n")


def validation_columns(found: Validation) -> dict[str, Column]:
    """One row a request of a server's log, in its order; beside it what was simulated, where requests were matched."""
    measured = found.measured
    table: dict[str, Column] = {
        "request_id": list(measured.names),
        "arrival_s": measured.arrival_s,
        "input_tokens": measured.input_tokens,
        "output_tokens": measured.output_tokens,
    }
    sides = {"measured": measured, **({"simulated": found.simulated} if found.matched else {})}
    for name in ("ttft", "tpot", "e2el", "queue"):
        table |= {f"{side}_{name}_ms": 1e3 * getattr(of, f"{name}_s") for side, of in sides.items()}
    return table


# A simulation against a scrape of a real server's `/metrics`: means, percentiles by bucket, and counts for a
# request.
#
# A scrape has no single request, no arrival and no time of its own. What is compared is what vLLM counts: its
# histograms of latencies and of lengths, preemptions, hits of the prefix cache. Percentiles of both sides are read
# from the same buckets, so that the width of a bucket is no error. Errors are signed fractions, simulated /
# measured - 1.

_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_HISTOGRAMS = {  # figures, and the histograms that have them
    "ttft": "time_to_first_token_seconds",
    "tpot": "request_time_per_output_token_seconds",
    "e2e": "e2e_request_latency_seconds",
    "queue time": "request_queue_time_seconds",
    "prefill time": "request_prefill_time_seconds",
    "decode time": "request_decode_time_seconds",
}
LENGTHS = {"prompt tokens": "request_prompt_tokens", "output tokens": "request_generation_tokens"}
_UNLIKE = 0.05  # of a mean length: beyond it the scenario has other traffic
NOT_COMPARED = (
    "makespan and throughput (a scrape has no clock)", "single requests", "the part that causes an error",
    "arrivals and their bursts",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """One number on both sides. Times are in seconds."""

    name: str
    statistic: str
    measured: float
    simulated: float

    @property
    def error(self) -> float:
        """Return simulated / measured - 1; NaN where nothing was measured."""
        return self.simulated / self.measured - 1.0 if self.measured > 0 else math.nan


@dataclass(frozen=True, slots=True)
class Scraped:
    """A comparison: latencies, lengths and counts for each request, what the scrape lacks, and warnings."""

    latencies: tuple[Figure, ...]
    lengths: tuple[Figure, ...]
    counts: tuple[Figure, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    requests: tuple[int, int]

    @property
    def scored(self) -> dict[str, float]:
        """Return the errors of TTFT, TPOT and end-to-end latency by name."""
        figures = [each for each in self.latencies if each.name in METRICS and math.isfinite(each.error)]
        return {f"{each.name} {each.statistic}": each.error for each in figures}

    def data(self) -> dict[str, object]:
        """Return the comparison for JSON, under the names of a validation by log."""
        errors: dict[str, dict[str, float | None]] = {}
        for each in self.latencies:
            errors.setdefault(each.name.replace(" ", "_"), {})[each.statistic] = known(each.error)
        worst = max(self.scored, key=lambda name: abs(self.scored[name]), default=None)
        return {
            "errors": errors,
            "makespan": None,
            "score": float(np.mean(np.abs(list(self.scored.values())))) if self.scored else None,
            "worst": None if worst is None else self.scored[worst],
            "worst_of": worst,
            "per_request_e2e_median": None,
            "matched_by": None,
            "requests": dict(zip(("measured", "simulated"), self.requests, strict=True)),
            "lengths": {each.name: [each.measured, each.simulated] for each in self.lengths},
            "counts": {each.name: [each.measured, each.simulated] for each in self.counts},
            "not_compared": [*NOT_COMPARED, *self.missing],
        }


def compare_scrape(scrape: Scrape, records: Records) -> Scraped:
    """Compare the requests that a run finished with those that a scrape counts."""
    requests, done = records.requests, finished(records)
    values: Mapping[str, Floats] = {
        "ttft": ttft_s(records)[done],
        "tpot": tpot_s(records)[done & (requests.output_tokens > 1)],
        "e2e": e2el_s(records)[done],
        "queue time": (requests.scheduled_s - requests.arrival_s)[done],
        "prefill time": (requests.first_token_s - records.front_end_s - requests.scheduled_s)[done],
        "decode time": (requests.last_token_s - requests.first_token_s)[done],
        "prompt tokens": requests.input_tokens[done].astype(np.float64),
        "output tokens": requests.output_tokens[done].astype(np.float64),
    }
    latencies, lengths, missing = [], [], []
    for name, histogram in {**_HISTOGRAMS, **LENGTHS}.items():
        there, here = scrape.histogram(histogram), values[name][np.isfinite(values[name])]
        if there is None or not there.count or not len(here):
            missing.append(f"{name} (the scrape has no {histogram})")
            continue
        means = Figure(name, "mean", there.mean, float(here.mean()))
        if name in LENGTHS:
            lengths.append(means)
            continue
        alike = there.of(here)
        told = {key: q for key, q in _SHARES.items() if there.is_told(q)}
        latencies += [means, *(Figure(name, key, there.quantile(q), alike.quantile(q)) for key, q in told.items())]
        if left_out := [key for key in _SHARES if key not in told]:
            bound = f"{1e3 * float(there.bounds[0]):g} ms"
            missing.append(f"{', '.join(left_out)} of {name} (below {bound}, the server's first bucket)")
    served = scrape.histogram("time_to_first_token_seconds")
    count = 0.0 if served is None else served.count
    own = max(int(done.sum()), 1)
    counts = []
    if (preemptions := scrape.counter("num_preemptions")) is not None and count:
        here_too = float(requests.preemptions[done].sum()) / own
        counts.append(Figure("preemptions for each request", "mean", preemptions / count, here_too))
    if (asked := scrape.counter("prefix_cache_queries")) and (hits := scrape.counter("prefix_cache_hits")) is not None:
        share = float(requests.cached_tokens[done].sum() / max(requests.input_tokens[done].sum(), 1))
        counts.append(Figure("share of prompt tokens found in the prefix cache", "mean", hits / asked, share))
    unlike = [each for each in lengths if abs(each.error) > _UNLIKE]
    notes = [
        f"warning: the mean of {each.name} is {each.measured:,.0f} in the scrape and {each.simulated:,.0f} in the"
        " scenario: errors of latencies say little of other traffic"
        for each in unlike
    ]
    return Scraped(
        tuple(latencies), tuple(lengths), tuple(counts), tuple(missing), tuple(notes), (int(count), int(done.sum()))
    )
