"""One run of a plan: a candidate at a rate, held against the goals."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from scenarios.assembly.energy import energy_of
from scenarios.plan.candidate import Candidate
from scenarios.plan.goal import COST, Goal
from scenarios.plan.pessimism import AS_PRICED, Longer, longer
from scenarios.plan.traffic import Traffic
from scenarios.plan.watch import HopelessError, watcher
from scenarios.runs.runner import records_of
from scenarios.schema.scenario import Scenario
from simulator.metrics.latency import LATENCIES, tpot_s
from simulator.metrics.measured_sample import Sample
from simulator.metrics.metric import Value
from simulator.metrics.outcomes import ATTAINMENT
from simulator.metrics.slo import Slo
from simulator.metrics.summary import cost_per_million_output_tokens
from simulator.metrics.waits import saturated
from simulator.metrics.window import measured_window
from simulator.results.records import Floats, Records, Status

STEADY = Goal("saturated", 0)
"""Held against every run: a server whose queue keeps growing serves no rate, whatever its other metrics say, and
neither does one that rejects what it should serve."""

_BACKLOG = 0.1
"""Share of the requests that may wait as the last one arrives: a run too short to be called saturated shows it here."""

REJECTED = 0.01
"""Share of the requests that may be rejected: percentiles are of those that were served, and would not show it."""

_OVER = 20.0


@dataclass(frozen=True, slots=True)
class Trial:
    """The outcome of a run. `values` and `tails` have one entry a goal, `STEADY` last; none where it was stopped.

    A tail holds the requests' own values of the goal's metric, in order of arrival, NaN where a request does not count.
    It is empty where the metric is none of single requests: then the value is taken as it is. `again` makes the records
    of a run that was kept without them.
    """

    rate: float
    replicas: int
    seed: int
    holds: bool
    excess: float  # of the goal that is missed by most, or met by least; above 0 it is missed
    worst: Goal
    goals: tuple[Goal, ...]
    values: tuple[Value, ...] = ()
    tails: tuple[Floats, ...] = field(default=(), repr=False)
    usd_per_million: float | None = None
    rejected: float = 0.0  # share of the requests
    why_rejected: str = ""
    energy: dict[str, float] = field(default_factory=dict)  # as in summary.json; empty unless asked for
    records: Records | None = field(default=None, repr=False)
    again: Callable[[], Records | None] | None = field(default=None, repr=False, compare=False)

    @property
    def stopped(self) -> bool:
        """True if the run was given up early."""
        return not self.values

    @property
    def missed(self) -> tuple[Goal, ...]:
        """The goals that are missed; none is known of a stopped run."""
        return tuple(goal for goal, value in zip(self.goals, self.values, strict=False) if not goal.holds(value))

    def value_of(self, goal: Goal) -> Value:
        """The value of a goal's metric."""
        return self.values[self.goals.index(goal)] if self.values else None

    def bare(self) -> Trial:
        """The trial without its records, which are large."""
        return replace(self, records=None, again=None)

    def all_records(self) -> Records | None:
        """Return the records, from a run that is made again where they were not kept; None of a stopped one."""
        return self.again() if self.records is None and self.again is not None else self.records


class Keeper(Protocol):
    """Keeps trials by the name of their run (`scenarios.plan.tried`)."""

    def key(self, scenario: Scenario, goals: Sequence[Goal], *how: object) -> str:
        """Return the name of a run."""

    def get(self, key: str, goals: Sequence[Goal]) -> Trial | None:
        """Return its trial, if it is kept."""

    def put(self, key: str, trial: Trial) -> None:
        """Keep it."""


class Laboratory:
    """Runs trials and counts them. `goals` are those of the plan; `STEADY` is added.

    `load` is the rate that answers are held against, the scenario's unless given; drawn traffic has several `seeds`.
    What `tried` keeps is not run again. `confidence` is the probability of the interval whose pessimistic end counts.
    """

    def __init__(
        self,
        traffic: Traffic,
        goals: Sequence[Goal],
        budget_s: float | None = None,
        load: float | None = None,
        seeds: int = 1,
        tried: Keeper | None = None,
        confidence: float | None = None,
    ) -> None:
        self.confidence = confidence
        self._longer: dict[int, tuple[Candidate, Longer]] = {}
        self.traffic = traffic
        self.goals = (*goals, STEADY)
        self.load = traffic.rate if load is None else load
        self.seeds = range(traffic.scenario.seed, traffic.scenario.seed + (seeds if traffic.is_random else 1))
        self.runs = 0
        self._tried = tried
        self._budget_s = math.inf if budget_s is None else budget_s
        self._started_s = time.process_time()

    @property
    def cpu_s(self) -> float:
        """CPU seconds since the beginning."""
        return time.process_time() - self._started_s

    @property
    def is_spent(self) -> bool:
        """True if the budget is over."""
        return self.cpu_s >= self._budget_s

    def longer(self, candidate: Candidate) -> Longer:
        """Return how much longer than priced a candidate's steps are taken to be. InputError as `longer` raises it."""
        if self.confidence is None:
            return AS_PRICED
        _, found = self._longer.get(id(candidate.scenario), (None, None))
        if found is None:
            found = longer(candidate, self.confidence)
            self._longer[id(candidate.scenario)] = candidate, found  # kept with what the key is of
        return found

    def run(
        self,
        candidate: Candidate,
        rate: float,
        *,
        replicas: int | None = None,
        seed: int | None = None,
        piece: int = 0,
        early_stop: bool = True,
        traffic: Traffic | None = None,
        as_priced: bool = False,
    ) -> Trial:
        """Run a candidate at a rate, with a `piece` of so many requests or all; `traffic` in place of its own.

        Steps take as long as the pessimistic end of the prediction says, if the plan has a confidence and it is not
        `as_priced`.

        Raises InputError as `run` does.
        """
        self.runs += 1
        traffic = traffic or self.traffic
        chosen_seed = traffic.scenario.seed if seed is None else seed
        scenario = candidate.with_replicas(replicas)
        if scenario.seed != chosen_seed:
            scenario = scenario.model_copy(update={"seed": chosen_seed})

        later = AS_PRICED if as_priced else self.longer(candidate)

        def made() -> Trial:
            return self._made(candidate, scenario, traffic, rate, piece, early_stop, later)

        if self._tried is None:
            return made()
        how = () if later == AS_PRICED else (later.steps, later.first_tokens)
        key = self._tried.key(traffic.scenario_at(scenario, rate), self.goals, piece, early_stop, *how)
        if (kept := self._tried.get(key, self.goals)) is not None:
            return replace(kept, again=lambda: made().records)
        trial = made()
        self._tried.put(key, trial)
        return trial

    def _made(
        self,
        candidate: Candidate,
        scenario: Scenario,
        traffic: Traffic,
        rate: float,
        piece: int,
        early_stop: bool,
        later: Longer,
    ) -> Trial:
        chosen_seed = scenario.seed
        workload = traffic.workload(rate, chosen_seed, piece)
        watch = watcher(self.goals, scenario, workload) if early_stop else None
        count = scenario.replicas
        try:
            records = records_of(scenario, workload, watch=watch, step_time=later.steps)
        except HopelessError:
            return Trial(rate, count, chosen_seed, False, _OVER, self.goals[0], self.goals)
        return self._judged(candidate, records, rate, count, chosen_seed, scenario.resolve_slo(), later)

    def _judged(
        self,
        candidate: Candidate,
        records: Records,
        rate: float,
        replicas: int,
        seed: int,
        slo: Slo | None,
        later: Longer,
    ) -> Trial:
        cuts = candidate.scenario.measure.window(records)
        window = measured_window(records, **cuts)
        samples: dict[str | None, Sample] = {None: Sample(records, window, slo)}
        for goal in self.goals:
            if goal.class_name not in samples:
                index = records.class_names.index(goal.class_name or "")
                samples[goal.class_name] = Sample(records, window, slo, index)
        whole = samples[None]
        usd = candidate.usd_per_hour(replicas)
        cost = None
        if usd is not None:
            cost = cost_per_million_output_tokens(whole.rate(whole.output_tokens), gpus=1, usd_per_gpu_hour=usd)
        rejected = records.reject_reasons
        values: list[Value] = []
        for goal in self.goals:
            if goal == STEADY:
                serves = not rejected or len(rejected) <= REJECTED * len(records.requests.row)
                growing = saturated(records, window, whole.waits) or _backlog(whole) > _BACKLOG
                values.append(growing or not serves)
            elif goal.metric == COST:
                values.append(cost)
            else:
                of = goal.about.of
                value = None if of is None else of(samples[goal.class_name])
                values.append(value if value is None or later.of(goal) == 1.0 else later.of(goal) * float(value))
        excesses = [goal.excess(value) for goal, value in zip(self.goals, values, strict=True)]
        worst = int(np.argmax(excesses))
        return Trial(
            rate,
            replicas,
            seed,
            all(goal.holds(value) for goal, value in zip(self.goals, values, strict=True)),
            excesses[worst],
            self.goals[worst],
            self.goals,
            tuple(values),
            tuple(later.of(goal) * _tail(goal, samples[goal.class_name]) for goal in self.goals),
            cost,
            len(rejected) / max(len(records.requests.row), 1),
            next(iter(rejected.values()), ""),
            energy_of(candidate.scenario, records, whole.output_tokens),
            records,
        )


def _backlog(sample: Sample) -> float:
    """The share of the measured requests that wait for their first step as the last of them arrives."""
    requests, measured = sample.records.requests, sample.measured
    last_s = float(requests.arrival_s[measured].max(initial=0.0))
    waiting = ~(requests.scheduled_s[measured] <= last_s) & (requests.status[measured] != Status.REJECTED)
    return float(waiting.mean()) if len(waiting) else 0.0


def _tail(goal: Goal, sample: Sample) -> Floats:
    if goal.metric == ATTAINMENT:
        good = np.full(len(sample.measured), np.nan)
        if sample.good is not None:
            good[sample.measured] = sample.good
        return good
    if goal.latency is None or goal.latency == "itl" or (goal.quantile is None and goal.statistic != "mean"):
        return np.empty(0)
    of_request_s = tpot_s if goal.latency == "tpot" else LATENCIES[goal.latency].of_request_s
    return np.where(sample.done, of_request_s(sample.records) * 1e3, np.nan)
