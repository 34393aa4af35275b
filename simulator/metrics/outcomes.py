"""An SLO held against a run: for each of its targets whether it is met, and by how much it is not."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from simulator.metrics.latency import Slo
from simulator.metrics.summary import METRICS, Summary, summarize_by_class
from simulator.results.records import Records
from simulator.statistics import mean_interval

ATTAINMENT = "slo_attainment"
TARGETS, MET = "slo_targets", "slo_met"  # keys of summary.json where an SLO has targets


@dataclass(frozen=True, slots=True)
class Outcome:
    """One target of an SLO: `metric` is a key of summary.json, in its unit, `class_name` None for all requests.

    `excess` is how far the value lies on the wrong side of its limit, negative where there is room, and
    `relative_excess` the same as a share of the limit. `value` is None where no request has one: such a target is
    missed if there were requests and none of them finished, and met otherwise.
    """

    metric: str
    class_name: str | None
    limit: float
    value: float | None
    met: bool
    excess: float | None
    relative_excess: float | None


def outcomes(
    records: Records, slo: Slo | None, summary: Summary, *, warmup_s: float = 0.0, cooldown_s: float = 0.0
) -> tuple[Outcome, ...]:
    """The outcome of each target of an SLO, in its order: targets of all requests, then class by class.

    `summary` is what `summarize` says of the same records, SLO and cuts. A class of which no request is measured meets
    its targets.
    """
    if slo is None or not slo.has_targets:
        return ()
    found = _judged(None, slo, summary)
    if any(own.has_targets for own in slo.classes.values()):
        by_class = summarize_by_class(records, slo=slo, warmup_s=warmup_s, cooldown_s=cooldown_s)
        for name, own in slo.classes.items():
            found += _judged(name, own, by_class.get(name))
    return tuple(found)


def entries(found: Sequence[Outcome]) -> dict[str, Any]:
    """The targets in summary.json: `slo_met`, and `slo_targets` with an object for each; nothing without any."""
    if not found:
        return {}
    listed = [{_JSON.get(name, name): value for name, value in asdict(each).items()} for each in found]
    return {MET: all(each.met for each in found), TARGETS: listed}


def outcomes_of(summary: Mapping[str, Any]) -> tuple[Outcome, ...]:
    """The outcomes in a summary, as `entries` wrote them."""
    names = {key: name for name, key in _JSON.items()}
    return tuple(
        Outcome(**{names.get(key, key): value for key, value in each.items()}) for each in summary.get(TARGETS, ())
    )


def mean_outcomes(summaries: Sequence[Mapping[str, Any]]) -> tuple[Outcome, ...]:
    """The outcomes of several seeds as one: each target's mean value, held against its limit.

    A target is missed as well if it is for want of a value with any seed.
    """
    found = []
    for same in zip(*(outcomes_of(summary) for summary in summaries), strict=True):
        first = same[0]
        mean = mean_interval([each.value for each in same]).mean
        starved = any(each.value is None and not each.met for each in same)
        found.append(_outcome(first.metric, first.class_name, first.limit, mean, starved))
    return tuple(found)


_JSON = {"class_name": "class"}


def _judged(class_name: str | None, slo: Slo, summary: Summary | None) -> list[Outcome]:
    targets = dict(slo.targets)
    if slo.attainment is not None:
        targets[ATTAINMENT] = slo.attainment
    starved = summary is not None and not summary["completed"] and _requests(summary) > 0
    values: Iterable[tuple[str, float, float | None]] = (
        (key, limit, None if summary is None else summary[key]) for key, limit in targets.items()
    )
    return [
        _outcome(key, class_name, limit, math.nan if value is None else float(value), starved)
        for key, limit, value in values
    ]


def _requests(summary: Summary) -> int:
    return sum(int(summary[key] or 0) for key in ("completed", "rejected", "unfinished", "aborted"))


def _outcome(metric: str, class_name: str | None, limit: float, value: float, starved: bool) -> Outcome:
    if math.isnan(value):
        return Outcome(metric, class_name, limit, None, not starved, None, None)
    excess = limit - value if METRICS[metric].better > 0 else value - limit
    return Outcome(metric, class_name, limit, value, excess <= 0 and not starved, excess, excess / limit)
