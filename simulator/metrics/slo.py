"""Service-level objectives: limits of a request, targets on the distribution, and the requests within their limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from simulator.metrics.latency import LATENCIES, finished
from simulator.metrics.window import Bools
from simulator.results.records import Records


@dataclass(frozen=True, slots=True)
class Slo:
    """What a service promises. Latencies in milliseconds; a value equal to its limit meets it; None: no limit.

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
        """Whether any request has a limit."""
        return bool(self.per_request()) or any(own.limits for own in self.classes.values())

    @property
    def has_targets(self) -> bool:
        """Whether there is a target on a distribution or an attainment, of all requests or of a class."""
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
    own = {index: name for index, name in enumerate(records.class_names) if name in slo.classes}
    groups = [(records.requests.class_index == index, slo.per_request(name)) for index, name in own.items()]
    groups.append((~np.isin(records.requests.class_index, list(own)), slo.per_request()))
    for name, latency in LATENCIES.items():
        limited = [(those, limits[name]) for those, limits in groups if name in limits]
        if not limited:
            continue
        seconds = latency.of_request_s(records)
        for those, limit_ms in limited:
            good = good & (~those | (seconds <= limit_ms / 1e3))  # NaN is no less
    return good
