"""The knee of a line of points over the load: where more load begins to cost more latency than it is worth.

The rule is Kleinrock's: the knee is where power, throughput over mean end-to-end latency, is greatest (L. Kleinrock,
Power and deterministic rules of thumb for probabilistic problems in computer communications, ICC 1979; R. Jain, The Art
of Computer Systems Performance Analysis (1991), 3.3, calls this throughput the knee capacity). For M/M/1 it lies at
half of the capacity. It takes no parameter and does not depend on how far beyond saturation the line goes on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports.sweep.points import SweepPoint
from reports.verdict.shown_metrics import Summary

THROUGHPUT, LATENCY = "request_throughput", "mean_e2el_ms"
RULE = "The knee is where throughput / mean end-to-end latency is greatest (Kleinrock's power)."


@dataclass(frozen=True, slots=True)
class Knee:
    """The point of a line at its knee, and the first and the last place of the knee with a single seed.

    `inside` is False where the knee is the line's first or last point: it may lie further out.
    """

    point: SweepPoint
    first: SweepPoint
    last: SweepPoint
    inside: bool


def knee(points: Sequence[SweepPoint]) -> Knee | None:
    """The knee of points in the order of their load, from their means; None for fewer than three points."""
    able = [point for point in points if math.isfinite(_power([*point.summaries]))]
    if len(able) < 3:
        return None
    place = _peak([_power([*point.summaries]) for point in able])
    count = min(len(point.summaries) for point in able)
    by_seed = [_peak([_power([point.summaries[seed]]) for point in able]) for seed in range(count)]
    return Knee(able[place], able[min(by_seed)], able[max(by_seed)], 0 < place < len(able) - 1)


def _peak(powers: Sequence[float]) -> int:
    """The place of the greatest power; of equals the first, and where one has none the others decide."""
    return max(range(len(powers)), key=lambda place: powers[place] if math.isfinite(powers[place]) else -math.inf)


def _power(summaries: Sequence[Summary]) -> float:
    """Throughput over latency, of the means over seeds; NaN where either is unknown."""
    means = []
    for key in (THROUGHPUT, LATENCY):
        known = [float(value) for summary in summaries if (value := summary.get(key)) is not None]
        means.append(sum(known) / len(known) if known else math.nan)
    return means[0] / means[1] if means[1] else math.nan
