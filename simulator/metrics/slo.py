"""Service-level objectives: limits of a request, targets on the distribution, and the requests within their limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from simulator.metrics.latency import LATENCIES, finished
from simulator.metrics.window import Bools
from simulator.results.records import Records


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
