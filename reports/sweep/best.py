"""The best points of a sweep by each measure, and those that cannot be told from them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from reports.sweep.points import SweepPoint, SweepResult, column
from reports.verdict.choice import EVEN
from reports.verdict.significance import is_real
from reports.verdict.slo_targets import KEPT
from simulator.metrics.outcomes import ATTAINMENT, MET

COST = "usd_per_million_output_tokens"
MEASURES = ("request_goodput", ATTAINMENT, "p99_ttft_ms", "p99_tpot_ms", "p99_e2el_ms", "output_throughput", COST)


@dataclass(frozen=True, slots=True)
class Best:
    """The best point by a metric, those that are as good as far as can be told, and from how many it was chosen."""

    title: str
    key: str
    point: SweepPoint
    equal: tuple[SweepPoint, ...]
    among: int


def best_points(result: SweepResult) -> list[Best]:
    """The best by each measure that differs between points; saturated points win nothing unless all are saturated.

    With several seeds a point is equal to the best if the paired 95 % interval of their difference holds 0; with one
    seed, if it is within 2 %, which is a rule of thumb and no interval.
    """
    able = result.eligible
    found = [] if (kept := _cheapest_within_slo(result, able)) is None else [kept]
    for key in MEASURES:
        if result.varies(key) and (one := _best(column(key).title, key, able)) is not None:
            found.append(one)
    return found


def _cheapest_within_slo(result: SweepResult, able: Sequence[SweepPoint]) -> Best | None:
    """The cheapest point that keeps the SLO with every seed; None without an SLO, a price, or such a point."""
    if not result.known(COST) or not has_slo(able):
        return None
    return _best("cheapest within the SLO", COST, [point for point in able if keeps_slo(point)])


def has_slo(points: Sequence[SweepPoint]) -> bool:
    """Return whether the points have an SLO to keep: targets, or limits of requests."""
    summaries = [each.summaries[0] for each in points if each.summaries]
    return any(MET in summary or summary.get(ATTAINMENT) is not None for summary in summaries)


def keeps_slo(point: SweepPoint) -> bool:
    """Return whether the point meets its targets with every seed, or 99 % of its requests their limits."""
    for summary in point.summaries:
        met, share = summary.get(MET), summary.get(ATTAINMENT)
        if not (met if met is not None else share is not None and share >= KEPT):
            return False
    return True


def _best(title: str, key: str, points: Sequence[SweepPoint]) -> Best | None:
    better = column(key).better
    known = [point for point in points if math.isfinite(point.estimate(key).mean)]
    if not known:
        return None
    first = max(known, key=lambda point: better * point.estimate(key).mean)
    equal = tuple(point for point in known if point is not first and not _differs(first, point, key))
    return Best(title, key, first, equal, len(known))


def _differs(one: SweepPoint, other: SweepPoint, key: str) -> bool:
    if len(one.summaries) > 1:
        same = [summary.get(key) for summary in one.summaries] == [summary.get(key) for summary in other.summaries]
        return not same and is_real(one.summaries, other.summaries, key)
    a, b = one.estimate(key).mean, other.estimate(key).mean
    return abs(a - b) > EVEN * max(abs(a), abs(b))
