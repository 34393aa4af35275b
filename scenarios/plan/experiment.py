"""The experiment on a real server that tests a plan's answer with the fewest GPU minutes.

A plan says that the limits hold up to a rate, and that the true one lies in an interval. So one replica is run twice:
at the low end of the interval, where all limits should hold, and at the high end, where one should not. Each run has
the busiest stretch of the traffic, as many requests as let the metric that decides be known to a given share. The
simulation of the same stretch says beforehand what to expect, and how long it takes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scenarios.plan.bounds import draws_of
from scenarios.plan.candidate import Candidate
from scenarios.plan.goal import Goal
from scenarios.plan.traffic import Traffic
from scenarios.plan.trial import STEADY, Laboratory, Trial
from scenarios.runs.storage.run_folder import EXPERIMENT_RUNS
from scenarios.schema.scenario import Scenario
from simulator.errors import InputError
from simulator.results.records import Records
from simulator.workload import Workload

WITHIN = 0.1
"""The half-width at 95 % to which the metric that decides is to be known, as a share of it."""

_BEYOND = 10  # requests beyond a percentile, at the least
_FEWEST = 100
_APART = 1.1  # factor between the two rates, at the least: nearer ones tell little apart
_NORMAL = 1.96


@dataclass(frozen=True, slots=True)
class Run:
    """One run of the experiment, on one replica.

    `rate` is that of the whole traffic, `stretch_rate` that of the stretch, which is the busiest, in requests per
    second. `seconds` is how long the run takes, from the first arrival to the last answer. `within` is the half-width
    at 95 % to which `decides`, the metric nearest to its limit, will be known; NaN where it has no spread.
    """

    name: str
    rate: float
    stretch_rate: float
    workload: Workload
    trial: Trial
    seconds: float
    gpus: int
    within: float

    @property
    def decides(self) -> Goal:
        """The goal that is missed by most, or met by least."""
        return self.trial.worst

    @property
    def gpu_minutes(self) -> float:
        """GPU minutes of the run, without the start of the server."""
        return self.seconds / 60 * self.gpus

    @property
    def expected(self) -> str:
        """What the plan expects of the run."""
        return "holds" if self.trial.holds else "misses"


def experiment(
    scenario: Scenario, goals: Sequence[Goal], low: float, high: float, *, within: float = WITHIN
) -> tuple[Run, Run]:
    """Design the two runs, at `low` and `high` requests per second, for the traffic of one replica.

    Raises InputError for traffic whose clients wait for answers: a benchmark sends requests at given times.
    """
    if high < low * _APART:
        middle = math.sqrt(low * high)
        low, high = middle / math.sqrt(_APART), middle * math.sqrt(_APART)
    traffic = Traffic(scenario)
    lab = Laboratory(traffic, goals)
    candidate = Candidate({}, scenario)
    first, second = EXPERIMENT_RUNS
    return _run(lab, candidate, first, low, within), _run(lab, candidate, second, high, within)


def _run(lab: Laboratory, candidate: Candidate, name: str, rate: float, within: float) -> Run:
    seed = lab.traffic.scenario.seed
    whole = lab.traffic.workload(rate, seed)
    if whole.answers_back:
        raise InputError(
            "the clients of this workload wait for answers: a benchmark sends requests at given times",
            hint="leave sessions: closed_loop, timeouts and closed loops out",
        )
    trial = lab.run(candidate, rate, early_stop=False)
    deciding = _deciding(trial)
    enough = (
        math.ceil(len(whole) * (_half_width(trial, deciding) / within) ** 2) if deciding is not None else len(whole)
    )
    quantiles = [goal.quantile for goal in lab.goals if goal.quantile is not None]
    fewest = max([_FEWEST, *(math.ceil(_BEYOND / (1 - quantile)) for quantile in quantiles if quantile < 1)])
    count = min(max(enough, fewest), len(whole))
    stretch = lab.traffic.workload(rate, seed, count if count < len(whole) else 0)
    trial = lab.run(candidate, rate, piece=count if count < len(whole) else 0, early_stop=False)
    records = trial.records
    assert records is not None
    deciding = _deciding(trial)
    span_s = float(stretch.arrival_s[-1] - stretch.arrival_s[0])
    return Run(
        name,
        rate,
        (count - 1) / span_s if span_s > 0 else rate,
        stretch,
        trial.bare(),
        _end_s(records) - float(stretch.arrival_s[0]),
        candidate.gpus(1),
        math.nan if deciding is None else _half_width(trial, deciding),
    )


def _deciding(trial: Trial) -> Goal | None:
    """Return the goal nearest to its limit, or beyond it by most, of those that have a value a request."""
    with_tails = [
        (goal.excess(value), goal)
        for goal, value, tail in zip(trial.goals, trial.values, trial.tails, strict=True)
        if len(tail) and goal != STEADY
    ]
    return max(with_tails, key=lambda each: each[0])[1] if with_tails else None


def _half_width(trial: Trial, goal: Goal) -> float:
    """Return the half-width at 95 % of a goal's value in a trial, as a share of it, from its blocks drawn again."""
    drawn = draws_of(goal, trial.tails[trial.goals.index(goal)])
    centre = float(np.nanmean(drawn))
    return _NORMAL * float(np.nanstd(drawn)) / centre if centre > 0 else 0.0


def _end_s(records: Records) -> float:
    """Return the end of the last step."""
    done = records.requests.last_token_s
    return float(np.nanmax(done)) if len(done) else 0.0
