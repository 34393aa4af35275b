"""Pareto fronts: the points that no other beats in both of two quantities."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from reports.sweep.points import SweepPoint, SweepResult

Quantity = Callable[[SweepPoint], float]


@dataclass(frozen=True, slots=True)
class Trade:
    """Two quantities that are bought with each other; `x_better` and `y_better` are +1 for more, -1 for less."""

    name: str
    title: str
    x_title: str
    y_title: str
    x: Quantity
    y: Quantity
    x_better: int = 1
    y_better: int = 1
    x_nines: bool = False  # x is a share in per cent: what counts is how near it comes to 100

    def front(self, points: Sequence[SweepPoint]) -> list[SweepPoint]:
        """The points that none beats in one quantity without losing in the other, by rising x; of equals all."""
        known = [point for point in points if math.isfinite(self.x(point)) and math.isfinite(self.y(point))]
        best = -math.inf
        kept: list[SweepPoint] = []
        order = sorted(known, key=lambda point: (-self.x_better * self.x(point), -self.y_better * self.y(point)))
        for point in order:
            value = self.y_better * self.y(point)
            equal = bool(kept) and (self.x(kept[-1]), self.y(kept[-1])) == (self.x(point), self.y(point))
            if value > best or equal:
                kept.append(point)
                best = value
        return sorted(kept, key=self.x)


def _per_user(point: SweepPoint) -> float:
    tpot_ms = point.estimate("p50_tpot_ms").mean
    return 1e3 / tpot_ms if tpot_ms > 0 else math.nan


def _per_gpu(point: SweepPoint) -> float:
    """Output tokens over the GPUs' time; equal to output_throughput over GPUs where their number stays."""
    hours, tokens = point.estimate("gpu_hours").mean, point.estimate("total_output_tokens").mean
    return tokens / (hours * 3600) if hours > 0 else math.nan


TRADES = (
    Trade(
        "speed",
        "Throughput against speed",
        "output tokens/s of a user (1 / TPOT p50)",
        "output tokens/s of a GPU",
        _per_user,
        _per_gpu,
    ),
    Trade(
        "cost",
        "Cost against the SLO",
        "requests within the SLO (%)",
        "cost (USD per million output tokens)",
        lambda point: 100 * point.estimate("slo_attainment").mean,
        lambda point: point.estimate("usd_per_million_output_tokens").mean,
        y_better=-1,
        x_nines=True,
    ),
)


def trades(result: SweepResult) -> list[Trade]:
    """The trades that this sweep has to offer: both quantities vary."""

    def varies(of: Quantity) -> bool:
        return len({value for point in result.done if math.isfinite(value := of(point))}) > 1

    return [trade for trade in TRADES if varies(trade.x) and varies(trade.y)]
