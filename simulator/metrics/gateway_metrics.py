"""Metrics of a gateway's flow control: who waited there, and who was turned away."""

from collections.abc import Callable

import numpy as np

from simulator.metrics.measured_sample import Sample
from simulator.metrics.metric import FRACTION, MS, REQUESTS, Metric, Value
from simulator.results.records import Floats, Ints, Passage


def _of(value: Callable[[Floats, Ints], float | None]) -> Callable[[Sample], Value]:
    """A value of the waits of measured requests in ms, and of how each left."""

    def metric(sample: Sample) -> Value:
        passages = sample.records.passages
        if passages is None:
            return None
        measured = sample.measured[passages.row]
        return value(1e3 * passages.wait_s[measured], passages.passage[measured]) if measured.any() else None

    return metric


def _waits(summed: Callable[[Floats], float]) -> Callable[[Sample], Value]:
    """A sum of the waits of those that went on to a replica."""

    def value(waits: Floats, passage: Ints) -> float | None:
        passed = waits[passage == Passage.DISPATCHED]
        return float(summed(passed)) if len(passed) else None

    return _of(value)


GATEWAY_METRICS = (
    Metric(
        "mean_gateway_wait_ms", "gateway wait mean", MS, "time in the gateway's queue, of requests that a replica got",
        _waits(np.mean), better=-1, by_class=True, is_rare=True,
    ),
    Metric(
        "p99_gateway_wait_ms", "gateway wait p99", MS, "99th percentile of that time",
        _waits(lambda waits: np.percentile(waits, 99)), better=-1, by_class=True, is_rare=True,
    ),
    Metric(
        "gateway_held_rate", "held at the gateway", FRACTION, "requests that had to wait at the gateway / requests",
        _of(lambda waits, _: float((waits > 0).mean())), better=-1, by_class=True, is_rare=True,
    ),
    Metric(
        "gateway_shed", "shed", REQUESTS, "requests that found the gateway's queue full",
        _of(lambda _, passage: int((passage == Passage.SHED).sum())), better=-1, by_class=True, is_rare=True,
    ),
    Metric(
        "gateway_expired", "expired", REQUESTS, "requests that waited at the gateway for all their time to live",
        _of(lambda _, passage: int((passage == Passage.EXPIRED).sum())), better=-1, by_class=True, is_rare=True,
    ),
)  # fmt: skip
