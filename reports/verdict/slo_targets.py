"""Runs held against an SLO: which targets each meets, and by which limits of a request the others miss it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from reports.units import latency, short
from reports.verdict.shown_metrics import COLUMNS, Summary, joined, values
from simulator.metrics.confidence import PERCENTILE_KEYS, run_percentiles
from simulator.metrics.latency import LATENCIES, Slo, limited_requests
from simulator.metrics.metric import FRACTION, MS
from simulator.metrics.outcomes import ATTAINMENT, Outcome, mean_outcomes, outcomes_of
from simulator.metrics.summary import METRICS
from simulator.metrics.waits import Overload, overload
from simulator.metrics.window import Bools, measured_window
from simulator.results.records import Records, Status
from simulator.statistics import PercentileInterval, mean_interval

KEPT = 0.99  # the attainment asked for where an SLO has limits of a request and no target


@dataclass(frozen=True, slots=True)
class Miss:
    """A limit of a request: how many of the requests that have it (of `classes`, or all) exceed it."""

    name: str  # of the latency, as in `LATENCIES`
    classes: str | None  # a name, or several: a and b
    limit_ms: float
    misses: int
    requests: int
    p99_ms: float  # of these requests; NaN where none has the latency


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that a run's summary lacks: its worst overload, the limits that requests missed, and the intervals of the
    verdict table's percentiles, by key."""

    overload: Overload | None = None
    misses: tuple[Miss, ...] = ()
    percentiles: Mapping[str, PercentileInterval] = field(default_factory=dict)


def facts(records: Records, slo: Slo | None, *, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> Facts:
    """The facts of a run, over its measured requests. An overload counts waits above the SLO's limit of the TTFT."""
    limit_ms = None
    if slo is not None:
        targets = (slo.targets.get(f"p{p}_ttft_ms") for p in (99, 95, 90))
        limit_ms = slo.ttft_ms or next((target for target in targets if target is not None), None)
    cuts = {"warmup_s": warmup_s, "cooldown_s": cooldown_s}
    found = overload(records, limit_s=None if limit_ms is None else limit_ms / 1e3, **cuts)
    percentiles = run_percentiles(records, [key for key in COLUMNS if key in PERCENTILE_KEYS], **cuts)
    return Facts(found, () if slo is None else _misses(records, slo, warmup_s, cooldown_s), percentiles)


def _misses(records: Records, slo: Slo, warmup_s: float, cooldown_s: float) -> tuple[Miss, ...]:
    taken = measured_window(records, warmup_s, cooldown_s).measured & (records.requests.status != Status.REJECTED)
    found = []
    for class_name, requests, limits in limited_requests(records, slo):
        measured = requests & taken
        if not measured.any():
            continue
        classes = class_name if class_name is not None else classes_of(records, requests) or None
        for name, limit_ms in limits.items():
            took_ms = LATENCIES[name].of_request_s(records)[measured] * 1e3
            known = took_ms[np.isfinite(took_ms)]
            p99 = float(np.percentile(known, 99)) if len(known) else math.nan
            late = int((~(took_ms <= limit_ms)).sum())
            found.append(Miss(name, classes, limit_ms, late, int(measured.sum()), p99))
    return tuple(found)


def classes_of(records: Records, requests: Bools) -> str:
    """The classes of these requests (`a and b`); nothing where they are all."""
    found = set(records.requests.class_index[requests].tolist())
    names = [name for index, name in enumerate(records.class_names) if index in found]
    return "" if requests.all() or not names else joined(names)


@dataclass(frozen=True, slots=True)
class Judged:
    """A run against an SLO. `unsure`: it may be the other way round, as far as these seeds can tell."""

    outcomes: tuple[Outcome, ...]
    unsure: bool

    @property
    def keeps(self) -> bool:
        return bool(self.outcomes) and all(outcome.met for outcome in self.outcomes)

    @property
    def worst(self) -> float:
        """The share of its limit by which the worst target lies beyond it; negative where all are met."""
        return max((_severity(outcome) for outcome in self.outcomes), default=math.inf)

    @property
    def missed(self) -> tuple[Outcome, ...]:
        """The targets missed, the worst first."""
        missed = [outcome for outcome in self.outcomes if not outcome.met]
        return tuple(sorted(missed, key=lambda outcome: -_severity(outcome)))


def judged(runs: Sequence[Summary], slo: Slo | None) -> Judged:
    """A run, one summary a seed, against the targets of an SLO; one with limits of a request alone asks for 99 %."""
    if slo is None or not (slo.limits or slo.has_targets):
        return Judged((), unsure=False)
    if slo.has_targets and (found := mean_outcomes(runs)):
        seen = [[each.value for each in outcomes_of(run)] for run in runs]
        unsure = any(_straddles(same, each) for same, each in zip(zip(*seen, strict=True), found, strict=True))
        return Judged(found, unsure)
    share = values(runs, ATTAINMENT)
    mean = mean_interval(share).mean
    if math.isnan(mean):
        return Judged((), unsure=False)
    outcome = Outcome(ATTAINMENT, None, KEPT, mean, mean >= KEPT, KEPT - mean, (KEPT - mean) / KEPT)
    return Judged((outcome,), _straddles(share, outcome))


def _straddles(seen: Sequence[float | None], outcome: Outcome) -> bool:
    """Return whether the interval over seeds holds values on both sides of the limit."""
    found = mean_interval(seen)
    if found.n < 2:
        return False
    if METRICS[outcome.metric].better > 0:
        return found.low < outcome.limit <= found.high
    return found.low <= outcome.limit < found.high


def _severity(outcome: Outcome) -> float:
    if outcome.relative_excess is None:
        return -math.inf if outcome.met else math.inf
    return outcome.relative_excess


def slo_text(slo: Slo) -> str:
    """TTFT <= 1,000 ms and TPOT <= 50 ms, TTFT p99 <= 2,000 ms (batch: E2E <= 60,000 ms)."""
    limits = [f"{LATENCIES[name].title} <= {limit_ms:,g} ms" for name, limit_ms in slo.per_request().items()]
    targets = [f"{METRICS[key].title} <= {_limit_text(key, limit)}" for key, limit in slo.targets.items()]
    if slo.attainment is not None:
        targets.append(f"{100 * slo.attainment:g} % of the requests within their limits")
    text = ", ".join([*([joined(limits)] if limits else []), *targets])
    classes = "; ".join(f"{name}: {inner}" for name, each in slo.classes.items() if (inner := slo_text(each)))
    return " ".join(filter(None, (text, classes and f"({classes})")))


def how_text(found: Judged) -> str:
    """The value of the target that comes nearest to its limit."""
    tight = max(found.outcomes, key=_severity)
    if tight.value is None:
        return "no request to judge by"
    share = tight.metric == ATTAINMENT and tight.class_name is None
    return _value_text(ATTAINMENT, tight.value) if share else f"{_name(tight)} {_value_text(tight.metric, tight.value)}"


def missed_text(outcome: Outcome) -> str:
    """TTFT p99 of chat 1,240 ms, 24 % over 1,000 ms; 95.5 % of the requests within their limits, 3.5 points short."""
    limit = _limit_text(outcome.metric, outcome.limit)
    if outcome.value is None or outcome.excess is None or outcome.relative_excess is None:
        return f"{_name(outcome)} has no value, as no request finished"
    if outcome.metric == ATTAINMENT:
        noun = "requests" if outcome.class_name is None else f"{outcome.class_name} requests"
        within = _value_text(ATTAINMENT, outcome.value)
        return f"{within} of the {noun} within their limits, {100 * outcome.excess:.1f} points short of {limit}"
    ratio = 1 + outcome.relative_excess
    by = f"{ratio:.1f}x the limit of" if ratio >= 2 else f"{100 * outcome.relative_excess:.2g} % beyond"
    return f"{_name(outcome)} {_value_text(outcome.metric, outcome.value)}, {by} {limit}"


def misses_text(misses: Sequence[Miss], most: int = 2) -> list[str]:
    """The limits that most requests exceed: `TTFT over 1,000 ms in 78 of 1,515 requests (p99 3,101 ms)`."""
    found = []
    for miss in sorted((miss for miss in misses if miss.misses), key=lambda miss: -miss.misses)[:most]:
        noun = "requests" if miss.classes is None else f"{miss.classes} requests"
        tail = "" if math.isnan(miss.p99_ms) else f" (p99 {latency(miss.p99_ms)})"
        title = LATENCIES[miss.name].title
        found.append(f"{title} over {miss.limit_ms:,g} ms in {miss.misses:,} of {miss.requests:,} {noun}{tail}")
    return found


def _name(outcome: Outcome) -> str:
    of = f" of {outcome.class_name}" if outcome.class_name is not None else ""
    return f"{METRICS[outcome.metric].title}{of}"


def _value_text(key: str, value: float) -> str:
    unit = METRICS[key].unit
    if unit == FRACTION:
        return f"{100 * value:.1f} %"
    return latency(value) if unit == MS else f"{short(value)} {unit}".strip()


def _limit_text(key: str, limit: float) -> str:
    """A limit as the SLO states it."""
    unit = METRICS[key].unit
    return f"{100 * limit:g} %" if unit == FRACTION else f"{limit:,g} {unit}".strip()
