"""One run of a plan: a candidate under traffic of any rate, held against the goals; runs of a stopped plan."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from scenarios.assembly.engines import energy_of
from scenarios.assembly.fleet_parts import build_fleet
from scenarios.assembly.workloads import build_workload, is_random
from scenarios.generate.classes import at_mean_rate, mean_rate
from scenarios.plan.candidate import Candidate
from scenarios.plan.goal import COST, Goal, HopelessError, watcher
from scenarios.plan.search import rounded
from scenarios.prediction.prediction import basis_of, prediction_entry, step_factors
from scenarios.runs.runner import records_of
from scenarios.runs.storage.run_folder import PARTIAL, unwritable
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.schema.trace import TraceConfig, TraceWorkload
from scenarios.studies.run_sweep import address
from simulator.errors import InputError
from simulator.metrics.latency import LATENCIES, Slo, tpot_s
from simulator.metrics.metric import Sample, Value
from simulator.metrics.outcomes import ATTAINMENT
from simulator.metrics.summary import PREDICTION, TPOT, TTFT, cost_per_million_output_tokens, summarize
from simulator.metrics.waits import saturated
from simulator.metrics.window import measured_window
from simulator.results.records import Floats, Records, Status
from simulator.workload import Workload

# The traffic of a scenario at any rate: drawn at that rate, or more or less of its trace.

_KEPT = 12  # workloads that are kept: those of the seeds at a few rates
_KEPT_ROWS = 2_000_000  # of them all
IN_STEP_S = 20.0
"""The largest shift of copies whose peaks meet: longer than most requests take, shorter than a load takes to change."""
_ALIKE = 0.005  # share of the rate: so little more or less is the trace as it is


class Traffic:
    """The workload of a scenario as a function of its rate, in requests per second.

    Less load than a trace has is the trace played slower (`trace.rate_scale`). More load is more users: copies of it
    laid over each other (`trace.copies`), a part of the sessions in the last. They are shifted as the scenario says, or
    else anywhere in the trace, or by at most `shift_s`. A scenario that plays its trace faster or slower itself is
    played faster for more load. Of a generated workload the rates of the classes are multiplied by one factor, and the
    draws stay the same: runs at any rate and of any candidate share their random numbers. `piece` is a stretch of so
    many requests that arrive closest together, for short runs.
    """

    def __init__(self, scenario: Scenario, shift_s: float | None = None) -> None:
        self.scenario = scenario
        self._shift_s = shift_s
        self._in_step: Traffic | None = None
        self.is_trace = isinstance(scenario.workload, TraceWorkload)
        self.is_random = is_random(scenario)
        self._recorded: dict[int, Workload] = {}
        self._kept: OrderedDict[tuple[float, int, int], Workload] = OrderedDict()
        self.rate = self._offered()

    def _offered(self) -> float:
        """Return the rate of the scenario as it stands. Raises InputError where its traffic has none."""
        workload = self.scenario.workload
        if not isinstance(workload, TraceWorkload):
            found = mean_rate(workload)
            if found is None:
                what = "the requests of closed loops follow answers: they have no rate"
                raise self.scenario.error("workload", what, "a plan needs arrivals at a rate of their own, as poisson")
            return rounded(found)
        if workload.trace.arrival is not None:
            return rounded(workload.trace.arrival.mean_rate)
        arrival = self._at_recorded_rate(self.scenario.seed).arrival_s
        span_s = float(arrival[-1] - arrival[0]) if len(arrival) > 1 else 0.0
        if span_s <= 0:
            what = "all requests of the trace arrive at once: it has no rate"
            raise self.scenario.error(
                "workload.trace", what, "trace.arrival gives it arrivals, or jitter_s spreads them"
            )
        self._recorded_rate = (len(arrival) - 1) / span_s
        return rounded(self._recorded_rate * workload.trace.rate_scale * workload.trace.copies)

    @property
    def num_requests(self) -> int:
        """Requests of the scenario as it stands."""
        return len(self.workload(self.rate, self.scenario.seed))

    def settings(self, rate: float) -> dict[str, object]:
        """Return the keys of the scenario, dotted, that give it this rate."""
        workload = self.scenario.workload
        if isinstance(workload, TraceWorkload):
            arrival = workload.trace.arrival
            if arrival is None:
                return self._of_trace(workload.trace, rate)
            return {"workload.trace.arrival.rate": arrival.rate * rate / arrival.mean_rate}
        if workload.preset is not None:
            return {"workload.rate": rate}
        if workload.shared is None:
            return {"workload.arrival": {"rate": rate}}
        return {}

    def _of_trace(self, trace: TraceConfig, rate: float) -> dict[str, object]:
        """Return the keys that give a trace a rate."""
        keys: dict[str, object] = {"rate_scale": float(f"{rate / self._recorded_rate:.9g}")}
        if (times := self.copies(rate)) is not None:
            keys = {"copies": times, "rate_scale": trace.rate_scale}
            if self._shift_s is not None:
                keys["shift_s"] = self._shift_s
        elif trace.copies > 1:
            keys |= {"copies": 1.0, "shift_s": None}
        return {f"workload.trace.{key}": value for key, value in keys.items()}

    def copies(self, rate: float) -> float | None:
        """Return the copies of the trace that make a rate; None where it is played faster or slower, or drawn."""
        workload = self.scenario.workload
        if not isinstance(workload, TraceWorkload) or workload.trace.arrival is not None:
            return None
        trace = workload.trace
        times = float(f"{rate / (self._recorded_rate * trace.rate_scale):.9g}")
        return times if times > 1 + _ALIKE and (trace.rate_scale == 1 or trace.copies > 1) else None

    def in_step(self, rate: float) -> Traffic | None:
        """Return the traffic whose copies have their peaks together; None where no copies make this rate, or where the
        scenario says how they are shifted."""
        workload = self.scenario.workload
        if self.copies(rate) is None or not isinstance(workload, TraceWorkload):
            return None
        if self._in_step is None and workload.trace.shift_s is None:
            self._in_step = Traffic(self.scenario, IN_STEP_S)
        return self._in_step

    def words(self, rate: float) -> str:
        """How a trace comes to a rate, in words; nothing where the rate is its own, or the traffic is drawn."""
        workload = self.scenario.workload
        if not isinstance(workload, TraceWorkload) or workload.trace.arrival is not None:
            return ""
        own, trace = self._recorded_rate, workload.trace
        if (times := self.copies(rate)) is not None:
            shift_s = trace.shift_s if self._shift_s is None else self._shift_s
            shift = "anywhere in it" if shift_s is None else f"by at most {shift_s:g} s"
            return f"{times:.3g} copies of the trace ({own:.3g}/s) laid over each other, each shifted {shift}"
        if abs(rate / own - 1) < _ALIKE:
            return ""
        return f"the trace ({own:.3g}/s) played {rate / own:.3g} times as fast"

    def scenario_at(self, scenario: Scenario, rate: float) -> Scenario:
        """Return a scenario with this traffic, at a rate; it may differ from the one here in other things."""
        settings = self.settings(rate)
        if settings:
            return load(scenario, [f"{key}={json.dumps(value)}" for key, value in settings.items()])
        assert not isinstance(scenario.workload, TraceWorkload), "a trace has settings for its rate"
        return scenario.model_copy(update={"workload": at_mean_rate(scenario.workload, rate)})

    def workload(self, rate: float, seed: int, piece: int = 0) -> Workload:
        """The requests at a rate, all of them or a piece."""
        key = (rate, seed, piece)
        found = self._kept.pop(key, None)
        if found is None:
            found = self._whole(rate, seed)
            if 0 < piece < len(found) and not found.answers_back:
                found = _busiest(found, piece)
        self._kept[key] = found
        while len(self._kept) > min(_KEPT, 1 + _KEPT_ROWS // (len(found) + 1)):
            self._kept.popitem(last=False)
        return found

    def _whole(self, rate: float, seed: int) -> Workload:
        scenario = self.scenario
        workload = scenario.workload
        if isinstance(workload, TraceWorkload) and workload.trace.arrival is None and self.copies(rate) is None:
            recorded = self._at_recorded_rate(seed)
            scale = float(f"{rate / self._recorded_rate:.9g}")
            delay_s = None if recorded.delay_s is None else recorded.delay_s / scale
            return replace(recorded, arrival_s=recorded.arrival_s / scale, delay_s=delay_s)
        return build_workload(self.scenario_at(load(scenario, [f"seed={seed}"]), rate))

    def _at_recorded_rate(self, seed: int) -> Workload:
        if seed not in self._recorded:
            keys = ("rate_scale=1.0", "copies=1.0", "shift_s=null")
            plain = load(self.scenario, [f"seed={seed}", *(f"workload.trace.{key}" for key in keys)])
            self._recorded[seed] = build_workload(plain)
        return self._recorded[seed]


def _busiest(workload: Workload, piece: int) -> Workload:
    """Cut out the stretch of `piece` requests in a row that takes the least time, from time 0 on."""
    arrival = workload.arrival_s
    spans = arrival[piece - 1 :] - arrival[: len(arrival) - piece + 1]
    first = int(np.argmin(spans))
    columns: dict[str, Any] = {name: column[first : first + piece] for name, column in workload.columns().items()}
    columns["arrival_s"] = columns["arrival_s"] - float(arrival[first])
    whole = {field.name: getattr(workload, field.name) for field in fields(workload) if field.name not in columns}
    return Workload(**{**whole, **columns})


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
