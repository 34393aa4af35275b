"""The exact early stop: a run ends as soon as it can no longer meet its goals.

A percentile within its limit allows a known number of requests beyond it, a mean within its limit a known sum, an
attainment a known number of late requests. Once more than that has ended badly, the run has missed its goal, whatever
comes later. A queue that only grows shows here first.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from scenarios.plan.goal import Goal
from scenarios.schema.scenario import Scenario
from simulator.fleet.attainment import SECONDS, within_limits
from simulator.metrics.outcomes import ATTAINMENT
from simulator.metrics.slo import Slo
from simulator.metrics.window import Bools
from simulator.request_state import RequestState
from simulator.results.recorder import Watch
from simulator.results.records import Status
from simulator.workload import Workload

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
