"""A small scenario in overload, whose requests differ much in length."""

from typing import Any

_CHAT: dict[str, Any] = {
    "name": "chat",
    "input": {"dist": "lognormal", "median": 600, "p99": 6000, "max": 9000},
    "output": {"dist": "lognormal", "median": 10, "p99": 60, "max": 90},
}


def workload(requests: int, rate: float) -> dict[str, Any]:
    """So many requests, at a rate in requests per second."""
    return {"requests": requests, "classes": [{**_CHAT, "arrival": {"process": "poisson", "rate": rate}}]}


OVERLOAD: dict[str, Any] = {
    "name": "tiny",
    "model": "llama-3.1-8b",
    "hardware": {"gpu": "a100-80gb"},
    "cost": {"kind": "linear", "base_s": 0.01, "per_token_s": 1.0e-4, "per_context_token_s": 1.0e-7},
    "workload": workload(60, 18.0),
    "engine": {"policy": "chunked_prefill"},
    "slo": {"ttft_ms": 1000, "tpot_ms": 200},
}
