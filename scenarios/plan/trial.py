"""One run of a plan: a candidate at a rate, held against the goals; and the runs that a stopped plan has made."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from scenarios.assembly.fleet_parts import build_fleet
from scenarios.assembly.groups import energy_of
from scenarios.plan.candidate import Candidate
from scenarios.plan.goal import COST, Goal, HopelessError, watcher
from scenarios.plan.traffic import Traffic
from scenarios.prediction.prediction import basis_of, prediction_entry, step_factors
from scenarios.runs.runner import records_of
from scenarios.runs.storage.staging import PARTIAL, unwritable
from scenarios.schema.scenario import Scenario
from scenarios.studies.study_run import address
from simulator.errors import InputError
from simulator.metrics.latency import LATENCIES, Slo, tpot_s
from simulator.metrics.measured_sample import Sample
from simulator.metrics.metric import Value
from simulator.metrics.outcomes import ATTAINMENT
from simulator.metrics.summary import PREDICTION, TPOT, TTFT, cost_per_million_output_tokens, summarize
from simulator.metrics.waits import saturated
from simulator.metrics.window import measured_window
from simulator.results.records import Floats, Records, Status

# A plan by the pessimistic end of the prediction: steps that take longer, and first tokens later still.


@dataclass(frozen=True, slots=True)
class Longer:
    """How many times as long steps take, and first tokens beyond that."""

    steps: float = 1.0
    first_tokens: float = 1.0

    def of(self, goal: Goal) -> float:
        """Return the factor of a goal's value beside that of the steps."""
        return self.first_tokens if goal.latency == "ttft" else 1.0


AS_PRICED = Longer()
LOAD = 256.0
"""The load (`traits_of`) that a plan takes: near the largest rate of an SLO a server has tens of requests, whose
prompts are some times as long as their answers."""


def longer(candidate: Candidate, confidence: float | None) -> Longer:
    """Return the pessimistic end for a candidate's prices: nothing longer without a confidence.

    InputError where the steps' cost has no interval.
    """
    if confidence is None:
        return AS_PRICED
    scenario = candidate.scenario
    basis = basis_of(build_fleet(scenario))
    if basis is None:
        what = f"a confidence needs a price with known errors; cost: kind: {scenario.cost.kind} has none"
        raise InputError(what, file="--confidence", hint="cost: {kind: profile} or {kind: roofline}")
    factors = step_factors(scenario, basis, LOAD, confidence)
    steps = max(1.0, factors[TPOT][1])
    return Longer(steps, max(1.0, factors[TTFT][1] / steps))


def prediction_of(candidate: Candidate, replicas: int, records: Records, confidence: float) -> Any:
    """Return the entry `prediction` of a candidate's run at the prices as they are; None for a user's own costs."""
    scenario = candidate.with_replicas(replicas)
    cuts = scenario.measure.window(records)
    summary = summarize(records, slo=scenario.resolve_slo(), **cuts)
    found = prediction_entry(scenario, build_fleet(scenario), records, summary, confidence)
    return found.get(PREDICTION)


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
    """Keeps trials by the name of their run (`scenarios.plan.trial`)."""

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


# The runs that a plan has made, on disk until it is written: a plan that was stopped goes on where it was.
#
# A run is a file, named by the content of its scenario, the files that it reads, the code, and what is asked of it.
# It is moved to its name when it is complete, so whatever has its name is whole, however the process ended.

_FOLDER = f"{PARTIAL}plan"
_PLAIN = (
    "rate",
    "replicas",
    "seed",
    "holds",
    "excess",
    "values",
    "usd_per_million",
    "rejected",
    "why_rejected",
    "energy",
)


class Tried:
    """Keeps the trials of a plan in a hidden folder of `target`, where its files will be."""

    def __init__(self, target: Path) -> None:
        self._target, self._folder = target, target / _FOLDER
        self._made = not target.exists()
        self.found = 0
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(target, error) from error

    def key(self, scenario: Scenario, goals: Sequence[Goal], *how: object) -> str:
        """Return the name of a run: of this scenario, its traffic included, for these goals, in such a way."""
        said = json.dumps([address(scenario), [goal.text for goal in goals], how])
        return hashlib.sha256(said.encode()).hexdigest()[:40]

    def get(self, key: str, goals: Sequence[Goal]) -> Trial | None:
        """Return the trial of a run without its records; None where it was not made, or cannot be read."""
        with suppress(OSError, ValueError, KeyError), np.load(self._folder / f"{key}.npz") as file:
            plain: dict[str, Any] = json.loads(str(file["plain"]))
            tails = tuple(file[f"tail{place}"] for place in range(plain.pop("tails")))
            worst = goals[plain.pop("worst")]
            plain["values"] = tuple(plain["values"])
            self.found += 1
            return Trial(**plain, worst=worst, goals=tuple(goals), tails=tails)
        return None

    def put(self, key: str, trial: Trial) -> None:
        """Keep a trial. Raises InputError where the disk does not take it."""
        plain = {name: getattr(trial, name) for name in _PLAIN}
        plain |= {"worst": trial.goals.index(trial.worst), "tails": len(trial.tails)}
        text = json.dumps(plain, default=lambda value: value.item())  # a number of numpy's
        draft = self._folder / f".{key}-{os.getpid()}.npz"
        try:
            tails: dict[str, Any] = {f"tail{place}": tail for place, tail in enumerate(trial.tails)}
            np.savez(draft, plain=text, **tails)
            draft.replace(self._folder / f"{key}.npz")
        except OSError as error:
            with suppress(OSError):
                draft.unlink()
            raise unwritable(self._target, error) from error

    def forget(self) -> None:
        """Remove all trials, when the plan is written or nothing was tried; and the target, if it was made for them."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with suppress(OSError):  # the plan is in it
            if self._made:
                self._target.rmdir()

    @property
    def is_empty(self) -> bool:
        """True if no trial is kept."""
        return not any(self._folder.glob("[!.]*.npz"))
