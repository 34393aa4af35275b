"""Latencies of requests and of all gaps between tokens, and the objectives (SLO) that limit them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simulator.metrics.token_times import longest_gap_s
from simulator.metrics.usage import STEPS_AT_ONCE, row_pieces
from simulator.metrics.weighted import Distribution, describe
from simulator.metrics.window import Bools, Window
from simulator.results.records import Floats, Ints, Records, Status

# Latencies: of each request, and of all gaps between tokens.
#
# Times: t0 arrival, tq first scheduled, t1 first token, tn last token; n output tokens.


def finished(records: Records) -> Bools:
    """One entry a request: whether it has all its tokens."""
    return np.asarray(records.requests.status == Status.FINISHED)


def ttft_s(records: Records) -> Floats:
    """t1 - t0 of each request; NaN without a first token."""
    return records.requests.first_token_s - records.requests.arrival_s


def e2el_s(records: Records) -> Floats:
    """tn - t0 of each request; NaN unless finished. Where answers come whole, tn is when they come."""
    return np.where(finished(records), records.requests.last_token_s - records.requests.arrival_s, np.nan)


def queue_s(records: Records) -> Floats:
    """tq - t0 of each request; NaN where it was never scheduled. Waits after a preemption do not count here."""
    return records.requests.scheduled_s - records.requests.arrival_s


def streamed(records: Records) -> Bools:
    """One entry a request: finished, of more than one token, which came one after the other."""
    return finished(records) & (records.requests.output_tokens > 1) & records.streams


def tpot_s(records: Records) -> Floats:
    """(tn - t1) / (n - 1) of each request; NaN for one token, an unfinished one, or an answer that came whole."""
    requests, known = records.requests, streamed(records)
    tpot = np.full(len(known), np.nan)
    np.divide(requests.last_token_s - requests.first_token_s, requests.output_tokens - 1, out=tpot, where=known)
    return tpot


@dataclass(frozen=True, slots=True)
class RequestLatencies:
    """Milliseconds, one entry a request; NaN where undefined."""

    ttft_ms: Floats
    tpot_ms: Floats
    e2el_ms: Floats
    queue_time_ms: Floats


def request_latencies(records: Records) -> RequestLatencies:
    """The four latencies of each request, as tables show them."""
    return RequestLatencies(*(seconds(records) * 1e3 for seconds in (ttft_s, tpot_s, e2el_s, queue_s)))


@dataclass(frozen=True, slots=True)
class Latency:
    """A latency as summaries, reports and SLOs know it.

    `of_request_s` is what a limit of a request is held against, in seconds, one entry a request: NaN where the request
    cannot meet one, 0 where nothing could take time.
    """

    title: str
    words: str
    definition: str
    remark: str
    of_request_s: Callable[[Records], Floats]


LATENCIES: Mapping[str, Latency] = {
    "ttft": Latency("TTFT", "time to first token", "t1 - t0", "the wait in the queue included", ttft_s),
    "tpot": Latency(
        "TPOT",
        "time per output token",
        "(tn - t1) / (n - 1)",
        "left out for n = 1 and where a batch hands all tokens over at once; there it counts as 0 in goodput",
        lambda records: np.nan_to_num(tpot_s(records)),
    ),
    "itl": Latency(
        "ITL",
        "inter-token latency",
        "gaps between neighbouring tokens",
        "pooled over requests: each gap is one sample; an SLO's `itl_ms` limits the longest gap of a request",
        lambda records: np.nan_to_num(longest_gap_s(records)),
    ),
    "e2el": Latency("E2E", "end-to-end latency", "tn - t0", "without streaming, tn is when the batch returns", e2el_s),
    "queue_time": Latency(
        "queue time", "time in the queue", "tq - t0", "waits after a preemption are not in it", queue_s
    ),
}
"""By the name that the keys of summary.json have, in their order."""


def itl(records: Records, q: Sequence[float], window: Window | None = None) -> Distribution | None:
    """All gaps between neighbouring tokens of a request, in seconds, pooled, and their percentiles `q`.

    Each gap is a sample: those of `records.gaps`, and those inside rows, the differences of `step_end_s` with the
    row's `decoding` as weight; entries of `records.gaps` take back those of tokens that an abort dropped. They are not
    kept by request: those of aborted requests count, and of a `window` that was cut, all gaps that end in it. None
    where there is no gap, as in a run that does not stream.
    """
    if not records.streams:
        return None
    if window is None or window.whole:
        return describe(lambda: _gaps(records), q)
    return describe(lambda: _gaps_inside(records, window), q)


def _gaps(records: Records) -> Iterator[tuple[Floats, Ints]]:
    for gaps, counts, _ in _gaps_with_ends(records):
        yield gaps, counts


def _gaps_inside(records: Records, window: Window) -> Iterator[tuple[Floats, Ints]]:
    for gaps, counts, ends in _gaps_with_ends(records):
        yield gaps, np.where((ends >= window.start_s) & (ends <= window.end_s), counts, 0)


def _gaps_with_ends(records: Records) -> Iterator[tuple[Floats, Ints, Floats]]:
    for first in range(0, len(records.gaps.count), STEPS_AT_ONCE):
        piece = slice(first, first + STEPS_AT_ONCE)
        yield records.gaps.gap_s[piece], records.gaps.count[piece], records.gaps.end_s[piece]
    rows = records.rows
    for some, steps in row_pieces(records):
        gaps = np.diff(records.step_end_s[steps])
        counts = np.repeat(rows.decoding[some], rows.repeat[some])
        counts[rows.first_step[some] - steps.start] = 0  # what comes before a row's first step is in records.gaps
        yield gaps, counts[1:], records.step_end_s[steps][1:]


# Service-level objectives: limits of a request, targets on the distribution, and the requests within their limits.


@dataclass(frozen=True, slots=True)
class Slo:
    """A service's limits. Latencies in milliseconds; a value equal to its limit meets it; None: no limit.

    `ttft_ms` to `queue_time_ms` are limits of each request; `itl_ms` holds for every gap between its tokens, and so
    for its longest. `targets` limit keys of summary.json (`p99_ttft_ms`), `attainment` is the share of the requests,
    0 to 1, that must meet their limits.

    `classes` are the SLOs of classes by name. A class that states any limit of a request has these instead of the
    default ones; its targets and its attainment are over its own requests.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2el_ms: float | None = None
    itl_ms: float | None = None
    queue_time_ms: float | None = None
    targets: Mapping[str, float] = field(default_factory=dict)
    attainment: float | None = None
    classes: Mapping[str, Slo] = field(default_factory=dict)

    @property
    def limits(self) -> bool:
        """True if any request has a limit."""
        return bool(self.per_request()) or any(own.limits for own in self.classes.values())

    @property
    def has_targets(self) -> bool:
        """True if a distribution or an attainment has a target, over all requests or over a class."""
        own = bool(self.targets) or self.attainment is not None
        return own or any(each.has_targets for each in self.classes.values())

    def per_request(self, class_name: str | None = None) -> dict[str, float]:
        """The limits of a request of this class, in ms by name of the latency; of no class: the default ones."""
        if class_name is not None and (own := self.classes.get(class_name)) is not None and own.limits:
            return own.per_request()
        found = {name: getattr(self, f"{name}_ms") for name in LATENCIES}
        return {name: limit_ms for name, limit_ms in found.items() if limit_ms is not None}


def meets_slo(records: Records, slo: Slo) -> Bools:
    """One entry a request: finished within every limit of its class.

    A TPOT that is undefined counts as 0, as in vLLM, and so does an undefined gap between tokens.
    """
    good = finished(records)
    groups = limited_requests(records, slo)
    for latency, found in LATENCIES.items():
        limited = [(requests, limits[latency]) for _, requests, limits in groups if latency in limits]
        if not limited:
            continue
        seconds = found.of_request_s(records)
        for requests, limit_ms in limited:
            good = good & (~requests | (seconds <= limit_ms / 1e3))  # NaN is not within a limit
    return good


class LimitedRequests(NamedTuple):
    """The requests that share their limits: of a class with limits of its own, or all others."""

    class_name: str | None  # None: the classes without limits of their own
    requests: Bools  # one entry a request
    limits: Mapping[str, float]  # milliseconds by name of the latency


def limited_requests(records: Records, slo: Slo) -> list[LimitedRequests]:
    """All requests by the limits that hold for them: the default ones first, then class by class."""
    index = records.requests.class_index
    own = {i: name for i, name in enumerate(records.class_names) if name in slo.classes and slo.classes[name].limits}
    groups = [LimitedRequests(None, ~np.isin(index, list(own)), slo.per_request())]
    return groups + [LimitedRequests(name, index == i, slo.per_request(name)) for i, name in own.items()]
