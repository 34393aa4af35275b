"""A simulation against a scrape of a real server's `/metrics`: means, percentiles by bucket, and counts for a request.

A scrape has no single request, no arrival and no time of its own. What is compared is what vLLM counts: its histograms
of latencies and of lengths, preemptions, hits of the prefix cache. Percentiles of both sides are read from the same
buckets, so that the width of a bucket is no error. Errors are signed fractions, simulated / measured - 1.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from scenarios.measured.scrape import Scrape
from scenarios.validate.compare import METRICS, known
from simulator.metrics.latency import e2el_s, finished, tpot_s, ttft_s
from simulator.results.records import Floats, Records

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
