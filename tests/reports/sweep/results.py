"""Sweeps written out by hand, for the tests of their report."""

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from reports.sweep.points import SweepAxis, SweepPoint, SweepResult
from reports.verdict.shown_metrics import Summary

RATES = SweepAxis(("workload.arrival.rate",), "rate (requests/s)", ("2", "4", "6", "8"), (2.0, 4.0, 6.0, 8.0))
SEATS = SweepAxis(("engine.max_num_seqs",), "max_num_seqs", ("8", "64"), (8.0, 64.0))
POLICIES = SweepAxis(("engine.policy",), "policy", ("static", "chunked_prefill"))
CAPACITY = {0: 7.0, 1: 10.0}  # requests a second, by place on the second axis


def summary(**values: Any) -> Summary:
    return {"saturated": False, "gpu_hours": 0.01, "total_output_tokens": 36_000, **values}


def of_queue(places: tuple[int, ...], seed: int) -> Summary:
    """An M/M/1 of this capacity: the wait grows with the load, and without end beyond it."""
    rate, capacity = RATES.numbers[places[0]], CAPACITY[places[1]]
    noise = 1 + 0.01 * seed * (1 if places[1] else -1)
    wait_ms = 1e3 / (capacity - rate) if rate < capacity else 60_000.0
    return summary(
        request_throughput=min(rate, capacity),
        output_throughput=100 * min(rate, capacity),
        total_output_tokens=round(3_600 * min(rate, capacity)),
        mean_e2el_ms=wait_ms * noise,
        p99_ttft_ms=4.6 * wait_ms * noise,
        p99_tpot_ms=10.0 + places[0] + 5 * places[1] + 0.1 * seed,
        p50_tpot_ms=8.0 + places[0] + 5 * places[1],
        slo_attainment=max(0.0, min(1.0, 1.2 - wait_ms / 1e3)),
        usd_per_million_output_tokens=10 / min(rate, capacity),
        saturated=rate > capacity,
    )


def made(
    axes: Sequence[SweepAxis] = (RATES, SEATS),
    of: Callable[[tuple[int, ...], int], Summary] = of_queue,
    seeds: int = 3,
    errors: Mapping[tuple[int, ...], str] | None = None,
    limits: Mapping[str, float] | None = None,
) -> SweepResult:
    points = []
    for places in product(*(range(len(axis.labels)) for axis in axes)):
        label = ", ".join(
            f"{axis.title.partition(' (')[0]} {axis.labels[at]}" for axis, at in zip(axes, places, strict=True)
        )
        error = (errors or {}).get(places, "")
        summaries = () if error else tuple(of(places, seed) for seed in range(seeds))
        points.append(SweepPoint(label, places, summaries, error))
    return SweepResult("hand-made", tuple(axes), tuple(points), seeds, "name: hand-made\n", limits or {})
