"""An SLO in words: its limits, what became of its targets and by how much, and how many requests miss each limit."""

from __future__ import annotations

from collections.abc import Sequence

from reports.columns import column_of
from reports.compare import joined
from reports.units import number, short
from simulator.metrics.latency import LATENCIES
from simulator.metrics.outcomes import Outcome
from simulator.metrics.slo import LimitShare, Slo
from simulator.metrics.table import METRICS


def limits_text(slo: Slo) -> str:
    """TTFT <= 1,000 ms and TPOT <= 50 ms; E2E <= 60,000 ms for batch."""
    own = {name: each for name, each in slo.classes.items() if each.limits}
    parts = [_limits(slo), *(f"{_limits(each)} for {name}" for name, each in own.items())]
    return "; ".join(part for part in parts if part)


def target_words(outcomes: Sequence[Outcome]) -> list[str]:
    """One line a target, missed ones first, each in the order of the SLO."""
    return [_outcome(each) for each in sorted(outcomes, key=lambda each: each.met)]


def share_words(shares: Sequence[LimitShare]) -> str:
    """Which share of the requests misses each limit, the largest first; empty where all meet all."""
    parts = []
    for each in sorted(shares, key=lambda each: each.share):
        of = f" of {each.class_name}" if each.class_name is not None else ""
        if each.share < 1.0:
            parts.append(f"{_limit(each.latency, each.limit_ms)} by {short(100 * (1 - each.share))} %{of}")
    return f"Limits missed: {joined(parts)}." if parts else ""


def _limits(slo: Slo) -> str:
    limits = [_limit(name, limit_ms) for name, limit_ms in slo.per_request().items()]
    return joined(limits) if limits else ""


def _limit(latency: str, limit_ms: float) -> str:
    return f"{LATENCIES[latency].title} <= {limit_ms:,g} ms"


def _outcome(found: Outcome) -> str:
    column = column_of(METRICS[found.metric])
    name = found.metric if found.class_name is None else f"{found.class_name}: {found.metric}"
    unit = " %" if column.unit == "%" else ""
    limit = short(found.limit * column.scale) + unit
    if found.value is None or found.excess is None or found.relative_excess is None:
        return (
            f"{name} has no value, {limit} is met" if found.met else f"{name}: no request finished, {limit} is missed"
        )
    value = _apart(found.value * column.scale, found.limit * column.scale) + unit
    if found.met:
        return f"{name} {value} meets {limit}"
    if unit:
        return f"{name} {value} is {short(found.excess * column.scale)} points below {limit}"
    percent = 100 * found.relative_excess
    return f"{name} {value} exceeds {limit} by {number(percent) if percent >= 10 else short(percent)} %"


def _apart(value: float, limit: float) -> str:
    """A value with as many decimals as it takes to read it apart from its limit."""
    if value == limit:
        return short(value)
    text = number(value) if abs(value) >= 100 else short(value)
    for places in range(1, 7):
        if float(text.replace(",", "")) != limit:
            break
        text = number(value, places)
    return text
