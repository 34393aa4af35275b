"""Tells, as a request ends, if it met the limits of its class: an autoscaler's view of an SLO."""

from collections.abc import Callable

from simulator.metrics.slo import Slo
from simulator.request_state import RequestState


def _tpot(live: RequestState) -> float:
    gaps = live.base_outputs - 1
    return (live.last_token_s - live.first_token_s) / gaps if gaps else 0.0


SECONDS: dict[str, Callable[[RequestState], float]] = {
    "ttft": lambda live: live.first_token_s - live.arrival_s,
    "tpot": _tpot,
    "e2el": lambda live: live.last_token_s - live.arrival_s,
    "queue_time": lambda live: live.scheduled_s - live.arrival_s,
}
"""Latencies of a finished request as its server sees them; `itl` is not among them: single gaps are not kept."""


def within_limits(slo: Slo, live: RequestState) -> bool:
    """True if a finished request met its limits on the latencies of `SECONDS`."""
    limits = slo.per_request(live.class_name)
    return all(SECONDS[name](live) <= limit_ms / 1e3 for name, limit_ms in limits.items() if name in SECONDS)
