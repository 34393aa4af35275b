"""The goals of a plan, limits on metrics of a run, and the exact early stop of a run that cannot meet them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from scenarios.assembly.workloads import build_workload
from scenarios.schema.scenario import Scenario
from scenarios.schema.source.hints import did_you_mean, nearest, reordered
from scenarios.studies.study import NUMBER
from simulator.errors import InputError
from simulator.fleet.scaling import SECONDS, within_limits
from simulator.metrics.latency import LATENCIES, Slo
from simulator.metrics.metric import FLAG, FRACTION, Metric, Value
from simulator.metrics.outcomes import ATTAINMENT
from simulator.metrics.summary import METRICS, load_metric
from simulator.metrics.window import Bools
from simulator.request_state import RequestState
from simulator.results.recorder import Watch
from simulator.results.records import Status
from simulator.workload import Workload

DEFAULT_ATTAINMENT = 0.99
"""The share of the requests that must meet the limits of a scenario's SLO where it names none."""

COST = "usd_per_million_output_tokens"
OF_LIMITS = (ATTAINMENT, "request_goodput")  # undefined without limits of a request
OF_LOAD = frozenset(
    {"completed", "request_throughput", "output_throughput", "total_token_throughput", "request_goodput"}
)
"""Metrics that grow with the load: where one of them is too low, a larger rate may help."""

_GOAL = re.compile(rf"\s*(?:(?P<class>[^:<>=]+):)?\s*(?P<metric>\w+)\s*(?P<sign>[<>]=?|==?)\s*(?P<limit>{NUMBER})\s*")
_WITH_UNIT = re.compile(rf"(.*[<>]=?\s*{NUMBER})\s*([a-zA-Z%/]+)\s*")
_FORM = 'as in "p99_ttft_ms<=500", "slo_attainment>=0.99" or "chat:p99_tpot_ms<=50"'
_FARTHEST = 20.0  # an excess beyond e^20 says no more


@dataclass(frozen=True, slots=True)
class Goal:
    """A limit on a key of summary.json; `class_name` None for all requests. `own` is the user's metric of that key."""

    metric: str
    limit: float
    at_least: bool = False
    class_name: str | None = None
    own: Metric | None = None

    @property
    def about(self) -> Metric:
        """The metric."""
        return self.own or METRICS[self.metric]

    @property
    def text(self) -> str:
        """The goal as `--slo` takes it."""
        of = "" if self.class_name is None else f"{self.class_name}:"
        return f"{of}{self.metric}{'>=' if self.at_least else '<='}{self.limit:g}"

    @property
    def latency(self) -> str | None:
        """The latency that the metric is a statistic of, by its name in `LATENCIES`; None for other metrics."""
        stem = self.metric.partition("_")[2].removesuffix("_ms")
        return stem if self.own is None and self.metric.endswith("_ms") and stem in LATENCIES else None

    @property
    def statistic(self) -> str:
        """The statistic of a latency's metric: `p99`, `mean`, ..."""
        return self.metric.partition("_")[0]

    @property
    def quantile(self) -> float | None:
        """The share of requests below a percentile's value, 0.99 of `p99_ttft_ms`; None for anything else."""
        if self.latency is None:
            return None
        if self.statistic == "median":
            return 0.5
        return float(self.statistic[1:]) / 100 if re.fullmatch(r"p\d+", self.statistic) else None

    def holds(self, value: Value) -> bool:
        """Return whether a value is within the limit. An undefined value is not."""
        if value is None or math.isnan(value):
            return False
        return value >= self.limit if self.at_least else value <= self.limit

    def excess(self, value: Value) -> float:
        """Return the logarithm of value over limit: above 0 the value misses, below 0 there is room.

        A share counts by what it lacks to 1: 0.98 instead of 0.99 is as far off as twice a latency.
        """
        if value is None or math.isnan(value):
            return _FARTHEST
        number, limit = float(value), self.limit
        if self.about.unit == FRACTION and self.at_least:
            number, limit = 1 - number, 1 - limit
        elif self.at_least:
            number, limit = limit, number
        if number <= 0 or limit <= 0:
            return -_FARTHEST if self.holds(value) else _FARTHEST
        found = min(max(math.log(number / limit), -_FARTHEST), _FARTHEST)
        return min(found, 0.0) if self.holds(value) else max(found, 1e-12)

    def scaled(self, factor: float) -> Goal:
        """Return the goal for steps `factor` times as long, seen by a clock that runs as much slower.

        If all costs and arrivals double, so do all latencies. So the largest rate with steps 5 % slower is 1 / 1.05 of
        the rate at which limits 5 % tighter hold.
        """
        if self.latency is None:
            return self
        return Goal(self.metric, self.limit / factor, self.at_least, self.class_name)


def parse_goal(text: str, scenario: Scenario) -> Goal:
    """Parse the goal of `--slo TEXT`. Raises InputError for another text, with the nearest key of summary.json."""
    flag = f"--slo {text}"
    found = _GOAL.fullmatch(text)
    if found is None:
        if (with_unit := _WITH_UNIT.fullmatch(text)) is not None:
            hint = f"the unit is in the key, as in p99_ttft_ms: write {with_unit[1].strip()}"
            raise InputError(f"a limit is a bare number, without {with_unit[2]!r}", file=flag, hint=hint)
        raise InputError("not of the form METRIC<=VALUE or METRIC>=VALUE", file=flag, hint=_FORM)
    if found["sign"] not in ("<=", ">="):
        raise InputError(f"{found['sign']!r} is no limit", file=flag, hint=f"allowed: <= and >=; {_FORM}")
    metric, at_least = found["metric"], found["sign"] == ">="
    of_class = None if found["class"] is None else found["class"].strip()
    own = {each.key: each for each in map(load_metric, scenario.measure.metrics)}
    if metric not in own or of_class is not None:
        _check_metric(metric, of_class, flag, own)
    known = own.get(metric) or METRICS[metric]
    if known.unit != FLAG and known.better and (known.better > 0) != at_least:
        better = "more" if known.better > 0 else "less"
        meant = f"did you mean `{metric}{'<=' if at_least else '>='}{found['limit']}`?"
        raise InputError(f"of {metric}, {better} is better, so this limit points the wrong way", file=flag, hint=meant)
    goal = Goal(metric, float(found["limit"]), at_least, of_class, own.get(metric))
    _check_fits(goal, scenario, flag)
    return goal


def goals_of(scenario: Scenario) -> tuple[Goal, ...]:
    """Return the goals in the scenario's SLO; 99 % of the requests are to meet limits without an attainment."""
    slo = scenario.resolve_slo()
    if slo is None:
        return ()
    found = [Goal(metric, limit) for metric, limit in slo.targets.items()]
    if slo.attainment is not None or slo.limits:
        found.append(Goal(ATTAINMENT, slo.attainment or DEFAULT_ATTAINMENT, at_least=True))
    for name, own in slo.classes.items():
        found += [Goal(metric, limit, class_name=name) for metric, limit in own.targets.items()]
        if own.attainment is not None:
            found.append(Goal(ATTAINMENT, own.attainment, at_least=True, class_name=name))
    return tuple(found)


def chosen_goals(texts: Sequence[str], scenario: Scenario) -> tuple[Goal, ...]:
    """Return the goals of the flags, or else those of the scenario. Raises InputError where there is none."""
    found = tuple(dict.fromkeys(parse_goal(text, scenario) for text in texts)) or goals_of(scenario)
    if not found:
        hint = f"{_FORM}; or give the scenario `slo: {{p99_ttft_ms: 500}}`"
        raise InputError("there is no SLO to plan for", file="--slo", hint=hint)
    return found


def _check_metric(metric: str, of_class: str | None, flag: str, own: Mapping[str, Metric]) -> None:
    known = [key for key, each in METRICS.items() if (each.by_run if of_class is None else each.by_class)]
    if metric in known:
        return
    if of_class is not None and (metric in METRICS or metric in own):
        raise InputError(f"{metric} is not computed for single classes", file=flag, hint=f"allowed: {', '.join(known)}")
    stem = metric.removesuffix("_ms")
    if stem in LATENCIES:
        options = " | ".join(f"{s}_{stem}_ms" for s in ("p50", "p90", "p95", "p99", "mean"))
        hint = f"did you mean `p99_{stem}_ms`? allowed: {options}"
    else:
        near = reordered(metric, [*known, *own]) or nearest(metric, [*known, *own])
        hint = (f"did you mean `{near}`? " if near else "") + "allowed: the keys of summary.json (docs/run-folder.md)"
    raise InputError(f"summary.json has no key {metric!r}", file=flag, hint=hint)


def _check_fits(goal: Goal, scenario: Scenario, flag: str) -> None:
    """Raise InputError for a goal that this scenario cannot have."""
    slo = scenario.resolve_slo()
    if goal.metric in OF_LIMITS and (slo is None or not slo.limits):
        what = f"{goal.metric} counts requests within the limits of the SLO, and the scenario has none"
        hint = "--set slo.ttft_ms=1000 --set slo.tpot_ms=50 gives limits; or limit a percentile: p99_ttft_ms<=1000"
        raise InputError(what, file=flag, hint=hint)
    if goal.class_name is not None:
        names = build_workload(scenario).class_names
        if goal.class_name not in names:
            hint = did_you_mean(goal.class_name, names)
            raise InputError(f"no class is called {goal.class_name!r}", file=flag, hint=hint)
    if (goal.limit < 0 and goal.own is None) or (goal.about.unit in (FRACTION, FLAG) and goal.limit > 1):
        what = f"{goal.limit:g} cannot be a limit of {goal.metric}"
        raise InputError(what, file=flag, hint="allowed: 0 and more; shares up to 1")
    if goal.latency is not None and goal.limit == 0:
        raise InputError("a latency cannot be 0", file=flag, hint=_FORM)


# The exact early stop: a run ends as soon as it can no longer meet its goals.
#
# A percentile within its limit allows a known number of requests beyond it, a mean within its limit a known sum, an
# attainment a known number of late requests. Once more than that has ended badly, the run has missed its goal,
# whatever comes later. A queue that only grows shows here first.

_ROUNDING = 1 + 1e-9  # a limit is beyond doubt where rounding cannot bring the value back

Seconds = Callable[[RequestState], float]


class HopelessError(Exception):
    """Ends a run that has missed its goals."""


@dataclass(slots=True)
class _Account:
    """The allowance that a goal has left; `counts` marks the requests that count."""

    counts: Bools
    cost: Callable[[RequestState, Status], float]
    left: float


def watcher(goals: Sequence[Goal], scenario: Scenario, workload: Workload) -> Watch | None:
    """Return the watch that ends a run on this workload by `HopelessError`; None where no goal can be given up."""
    if workload.answers_back or scenario.fleet is not None or scenario.measure.warmup_s == "auto":
        return None  # the number of requests that count, or what a replica knows of one, is not certain
    accounts = [found for goal in goals if (found := _account(goal, scenario, workload)) is not None]
    if not accounts:
        return None

    def watch(live: RequestState, replica: int, status: Status) -> None:
        row = live.row
        for account in accounts:
            if account.counts[row]:
                account.left -= account.cost(live, status)
                if account.left < 0:
                    raise HopelessError

    return watch


def _account(goal: Goal, scenario: Scenario, workload: Workload) -> _Account | None:
    counts = _counted(goal, scenario, workload)
    late_s = scenario.resolve_front_end().delay_s(1)
    latency = goal.latency
    if goal.metric == ATTAINMENT and goal.at_least:
        slo = scenario.resolve_slo() or Slo()
        number = int(counts.sum())
        # The largest number of requests without success that the share still allows.
        middle = round(number * (1 - goal.limit))
        near = range(max(middle - 2, 0), min(middle + 2, number) + 1)
        allowed = max((k for k in near if (number - k) / number >= goal.limit), default=-1)
        return _Account(counts, partial(_missed, slo, late_s), allowed)
    if latency not in SECONDS or goal.at_least:
        return None
    seconds, later_s = SECONDS[latency], late_s if latency in ("ttft", "e2el") else 0.0  # at clients
    if latency == "tpot":
        counts = counts & (np.minimum(workload.output_tokens, workload.max_tokens) > 1)
        if not scenario.engine.parameter("stream", True):
            return None
    number = int(counts.sum())
    limit_s = goal.limit / 1e3 * _ROUNDING
    if (q := goal.quantile) is not None:
        # numpy's percentile lies between the values of rank floor((n - 1) q) and the next: both are beyond the limit.
        allowed = number - math.floor((number - 1) * q) - 1
        return _Account(counts, partial(_beyond, seconds, later_s, limit_s), allowed)
    if goal.statistic == "mean":
        return _Account(counts, partial(_spent, seconds, later_s), limit_s * number)
    return None


def _counted(goal: Goal, scenario: Scenario, workload: Workload) -> Bools:
    """Mark the requests that the goal is about."""
    arrival, measure = workload.arrival_s, scenario.measure
    counts = np.ones(len(workload), dtype=np.bool_)
    if len(arrival) and (measure.warmup_s or measure.cooldown_s):
        counts &= (arrival >= arrival.min() + measure.warmup_s) & (arrival <= arrival.max() - measure.cooldown_s)
    if goal.class_name is not None:
        counts &= workload.class_index == workload.class_names.index(goal.class_name)
    return counts


def _beyond(seconds: Seconds, later_s: float, limit_s: float, live: RequestState, status: Status) -> float:
    return 1.0 if status is Status.FINISHED and seconds(live) + later_s > limit_s else 0.0


def _spent(seconds: Seconds, later_s: float, live: RequestState, status: Status) -> float:
    return seconds(live) + later_s if status is Status.FINISHED else 0.0


def _missed(slo: Slo, late_s: float, live: RequestState, status: Status) -> float:
    if status is not Status.FINISHED:
        return 1.0
    # The client may see tokens later than the engine: then a late one is not known to be late.
    return 0.0 if late_s or within_limits(slo, live) else 1.0
