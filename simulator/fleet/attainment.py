"""Whether a request met the limits of its class, told as it ends: what an autoscaler sees of an SLO."""

from __future__ import annotations

from simulator.metrics.slo import Slo
from simulator.request_state import RequestState


def within_limits(slo: Slo, live: RequestState) -> bool:
    """Whether a finished request met its limits as the server sees them, `itl_ms` apart: single gaps are not kept."""
    gaps = live.base_outputs - 1
    seconds = {
        "ttft": live.first_token_s - live.arrival_s,
        "tpot": (live.last_token_s - live.first_token_s) / gaps if gaps else 0.0,
        "e2el": live.last_token_s - live.arrival_s,
        "queue_time": live.scheduled_s - live.arrival_s,
    }
    limits = slo.per_request(live.class_name)
    return all(seconds[name] <= limit_ms / 1e3 for name, limit_ms in limits.items() if name in seconds)
