"""The race of candidates: what a search may change, all on little of the traffic, the better third on more."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scenarios.assembly.engines import engine_keys, is_default
from scenarios.assembly.replica_parts import build
from scenarios.assembly.workloads import build_workload
from scenarios.plan.candidate import POLICY, Candidate, make_candidate
from scenarios.plan.goal import Goal
from scenarios.random_draws import stream
from scenarios.runs.result import PROVENANCE
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.schema.trace import TraceWorkload
from scenarios.studies.run_sweep import Failure, Outcome, Store, SweepExecutor, address, run_and_keep
from simulator.errors import InputError
from simulator.metrics.latency import LATENCIES
from simulator.metrics.summary import METRICS
from simulator.policies import DEFAULT_POLICY, built_in_policies, policy_class, policy_parameters
from simulator.queues import order_parameters
from simulator.workload import Workload

# What a search may change: the policy, and of each policy the parameters that decide what a scheduler may decide.
#
# A candidate is a policy with settings of these dimensions. Most candidates are compositions: the scenario's own
# policy, where it takes an order or a choice of victim, or the default scheduler, with a weighted order of its
# queue, caps of chunks and batch, a cadence of prompts, memory kept free, and a cap of the queue.

_ORDER, _WEIGHTED = "engine.order", "weighted"
_OF_WEIGHTED = frozenset(f"engine.{name}" for name in order_parameters(_WEIGHTED))
_NOT_DECIDED = frozenset({"version", "async_scheduling", "disable_overlap_schedule", "disable_chunked_mm_input"})
"""Parameters that say which server it is, and not what it decides."""
_STEP = 0.7  # of the logarithm of a number, as a neighbour is drawn
_SHIPPED = 0.2  # of the draws that take a shipped policy as it is, but for some of its settings
_TRIES = 50


@dataclass(frozen=True, slots=True)
class Choice:
    """Values to choose from, in an order in which neighbours are alike; some may stand several times."""

    values: tuple[Any, ...]

    def draw(self, rng: np.random.Generator) -> Any:
        return self.values[int(rng.integers(len(self.values)))]

    def near(self, rng: np.random.Generator, value: Any) -> Any:
        if value not in self.values:
            return self.draw(rng)
        place = self.values.index(value) + (1 if rng.random() < 0.5 else -1)
        return self.values[min(max(place, 0), len(self.values) - 1)]


@dataclass(frozen=True, slots=True)
class Spread:
    """Numbers between two, evenly by their logarithm; `off` instead of them in one draw of three."""

    low: float
    high: float
    off: Any
    whole: bool = False

    def draw(self, rng: np.random.Generator) -> Any:
        if rng.random() < 1 / 3:
            return self.off
        return self._number(float(rng.uniform(math.log(self.low), math.log(self.high))))

    def near(self, rng: np.random.Generator, value: Any) -> Any:
        if value == self.off or not value:
            return self.draw(rng)
        at = math.log(value) + float(rng.normal(0.0, _STEP))
        return self._number(min(max(at, math.log(self.low)), math.log(self.high)))

    def _number(self, at: float) -> float | int:
        return round(math.exp(at)) if self.whole else float(f"{math.exp(at):.3g}")


@dataclass(frozen=True, slots=True)
class ByClass:
    """A number of `each` for every class; those that are off are left out."""

    names: tuple[str, ...]
    each: Spread

    def draw(self, rng: np.random.Generator) -> dict[str, Any]:
        return self._kept({name: self.each.draw(rng) for name in self.names})

    def near(self, rng: np.random.Generator, value: Any) -> dict[str, Any]:
        name = str(rng.choice(self.names))
        return self._kept({**value, name: self.each.near(rng, value.get(name, self.each.off))})

    def _kept(self, drawn: Mapping[str, Any]) -> dict[str, Any]:
        return {name: drawn[name] for name in self.names if drawn.get(name, self.each.off) != self.each.off}


Dimension = Choice | Spread | ByClass


class Space:
    """The candidates of a search over a scenario. `sheds`: one that is turned away counts as lost, not as none."""

    def __init__(self, base: Scenario, workload: Workload, *, sheds: bool) -> None:
        self.base = base
        own = base.engine.policy
        composed = [own] if {"order", "victim"} & policy_parameters(policy_class(own)).keys() else []
        self.composed = (*composed, *([] if is_default(base) else [DEFAULT_POLICY]))
        self._common = _dimensions(base, workload, sheds=sheds)
        self._own: dict[str, Mapping[str, Dimension]] = {}
        self._shipped = [name for name in built_in_policies() if name != own]

    def first(self) -> list[Candidate]:
        """Every shipped policy with the scenario's settings, where it can serve the scenario."""
        found = [self.of({POLICY: name}) for name in self._shipped]
        return [each for each in found if each is not None]

    def drawn(self, rng: np.random.Generator) -> Candidate:
        """A random candidate."""
        return self._tried(lambda: self._draw(rng))

    def child(self, rng: np.random.Generator, parents: Sequence[Candidate]) -> Candidate:
        """A candidate near the better ones: of one of them, or of two of a policy, with a setting or two changed."""
        return self._tried(lambda: self._change(rng, parents))

    def _tried(self, make: Any) -> Candidate:
        for _ in range(_TRIES):
            if (found := self.of(make())) is not None:
                return found
        raise InputError("no candidate fits the scenario", hint="see `batchlab run` on it")

    def _draw(self, rng: np.random.Generator) -> dict[str, Any]:
        shipped = self._shipped and rng.random() < _SHIPPED
        policy = str(rng.choice(self._shipped if shipped else self.composed))
        dimensions = self._of(policy)
        share = 0.3 if shipped else 0.6
        return {POLICY: policy, **{key: each.draw(rng) for key, each in dimensions.items() if rng.random() < share}}

    def _change(self, rng: np.random.Generator, parents: Sequence[Candidate]) -> dict[str, Any]:
        """Better parents are chosen more often: they come first."""
        ranks = np.arange(len(parents), 0, -1.0)
        mine = dict(parents[int(rng.choice(len(parents), p=ranks / ranks.sum()))].settings)
        policy = str(mine.setdefault(POLICY, self.base.engine.policy))
        alike = [one.settings for one in parents if one.settings.get(POLICY, policy) == policy]
        other = alike[int(rng.integers(len(alike)))]
        mine |= {key: value for key, value in other.items() if rng.random() < 0.25}
        dimensions = self._of(policy)
        keys = [str(key) for key in rng.permutation(list(dimensions))][: int(rng.integers(1, 3))] if dimensions else []
        if mine.get(_ORDER) == _WEIGHTED and rng.random() < 0.5:
            keys = [str(rng.choice([key for key in dimensions if key in _OF_WEIGHTED]))]
        for key in keys:
            each = dimensions[key]
            mine[key] = each.near(rng, mine[key]) if key in mine and rng.random() < 0.7 else each.draw(rng)
        return mine

    def _of(self, policy: str) -> Mapping[str, Dimension]:
        """The dimensions that a policy takes: the common ones, and the words and switches among its own parameters."""
        if policy not in self._own:
            known = policy_parameters(policy_class(policy))
            taken = engine_keys(policy, {"order": _WEIGHTED} if "order" in known else {})
            found: dict[str, Dimension] = {
                key: one for key, one in self._common.items() if key[len("engine.") :] in taken
            }
            for name, each in known.items():
                key = f"engine.{name}"
                if key in found or name in _NOT_DECIDED or name == "order":
                    continue
                values = (False, True) if isinstance(each.default, bool) else each.words
                if len(values) > 1:
                    found[key] = Choice(tuple(values))
            self._own[policy] = found
        return self._own[policy]

    def of(self, settings: dict[str, Any]) -> Candidate | None:
        """The candidate of these settings; None where it cannot serve the scenario."""
        if settings.get(_ORDER) != _WEIGHTED:
            settings = {key: value for key, value in settings.items() if key not in _OF_WEIGHTED}
        if settings.get(POLICY) == self.base.engine.policy:
            settings.pop(POLICY)
        try:
            found = make_candidate(self.base, settings)
            build(found.scenario)
        except InputError:
            return None
        return found


def _dimensions(base: Scenario, workload: Workload, *, sheds: bool) -> dict[str, Dimension]:
    """What may differ, as far as the traffic lets it make a difference."""
    predicts = workload.predicted_output_tokens is not None or len({*workload.max_tokens.tolist()}) > 1
    ranks = len({*workload.priority.tolist()}) > 1
    due = workload.deadline_s is not None
    orders = ["fcfs", _WEIGHTED, _WEIGHTED, _WEIGHTED]
    orders += ["sjf"] * predicts + ["priority"] * ranks + ["edf"] * due
    seqs = int(base.engine.parameter("max_num_seqs", 256))
    slo = base.resolve_slo()
    ttft_s = None if slo is None or slo.ttft_ms is None else slo.ttft_ms / 1e3
    late = Spread(0.1, 30.0, None) if ttft_s is None else Spread(ttft_s / 4, 1.5 * ttft_s, None)
    found: dict[str, Dimension] = {
        "engine.max_num_batched_tokens": Choice((256, 512, 1024, 2048, 4096, 8192, 16384)),
        "engine.max_num_seqs": Choice(tuple(sorted({max(1, seqs // n) for n in (16, 8, 4, 2, 1)} | {2 * seqs}))),
        "engine.long_prefill_token_threshold": Choice((0, 0, 2048, 1024, 512, 256)),
        "engine.prefill_schedule_interval": Choice((1, 1, 2, 4, 8, 16, 32)),
        "engine.watermark": Choice((0.0, 0.0, 0.01, 0.03, 0.1)),
        _ORDER: Choice(tuple(orders)),
        "engine.input_token_s": Spread(1e-5, 1.0, 0.0),
        "engine.late_after_s": late,
        "engine.late_token_s": Spread(1e-6, 1e-3, 0.0),
    }
    if predicts:
        found["engine.output_token_s"] = Spread(1e-5, 1.0, 0.0)
    if ranks:
        found["engine.priority_s"] = Spread(0.1, 1e3, 0.0)
    if len({*workload.class_index.tolist()}) > 1:
        found["engine.class_s"] = ByClass(tuple(workload.class_names), Spread(0.1, 1e3, 0.0))
    if base.engine.enable_prefix_caching and workload.content is not None:
        found["engine.cached_token_s"] = Spread(1e-5, 1.0, 0.0)
    if due:
        found["engine.deadline_weight"] = Spread(0.1, 10.0, 0.0)
    if sheds:
        found["engine.max_num_queued_reqs"] = Spread(8, 8 * seqs, None, whole=True)
    return found


# The parts of a scenario's traffic: those that candidates are tried on, and those that they never see.
#
# A trace is cut in time: its first part is for the search, the rest is held out. Traffic that is drawn has other
# seeds for each. Every candidate is tried on the same requests.

SEEDS = 8
"""Seeds of drawn traffic, those held out included, where none are asked for."""
_SHARES = (0.125, 0.5)  # of the traffic of the search that the first rounds see; the last sees all of it
_AT = "workload.trace"

Part = tuple[str, ...]
"""Overrides that make a scenario one with a part of its traffic."""


@dataclass(frozen=True, slots=True)
class Parts:
    """`rounds` has for each round of the race the parts that it runs, each round more; `held_out` is seen by none."""

    rounds: Sequence[Sequence[Part]]
    held_out: Sequence[Part]
    words: str


def parts_of(base: Scenario, seeds: int, holdout: float) -> Parts:
    """Cut the traffic; `holdout` is the share that is held out. Raises InputError for traffic that has no two parts."""
    if not 0.0 < holdout < 1.0:
        raise InputError(f"a share of {holdout:g} cannot be held out", file="--holdout", hint="above 0 and below 1")
    return _of_trace(base, holdout) if isinstance(base.workload, TraceWorkload) else _of_seeds(base, seeds, holdout)


def _of_seeds(base: Scenario, seeds: int, holdout: float) -> Parts:
    if seeds < 2:
        raise InputError(
            "drawn traffic needs a seed for the search and one to hold out", file="--seeds", hint="2 at least"
        )
    kept = min(max(round(seeds * holdout), 1), seeds - 1)
    every = [(f"seed={base.seed + number}",) for number in range(seeds)]
    seen = every[: seeds - kept]
    counts = sorted({*(max(1, math.floor(len(seen) * share)) for share in _SHARES), len(seen)})
    words = f"{len(seen)} seeds for the search, {kept} others held out"
    return Parts([seen[:count] for count in counts], every[seeds - kept :], words)


def _of_trace(base: Scenario, holdout: float) -> Parts:
    """Cut between two moments; early rounds see a piece around the middle of the part for the search."""
    once = load(base, [f"{_AT}.loop=1", f"{_AT}.copies=1", f"{_AT}.shift_s=null", f"{_AT}.arrival=null"])
    assert isinstance(once.workload, TraceWorkload)
    arrival_s = build_workload(once).arrival_s
    trace = once.workload.trace
    length_s = float(arrival_s[-1]) * trace.rate_scale if len(arrival_s) else 0.0
    if length_s <= 0.0:
        raise InputError("the trace's requests all arrive at once: there is no later part to hold out", file=trace.path)

    def cut(first: float, last: float) -> Part:
        end_s = length_s * (1 + 1e-9) if last == 1.0 else length_s * last  # the last request is in the last part
        start_s = length_s * first
        return (
            f"{_AT}.start_s={trace.start_s + start_s!r}", f"{_AT}.duration_s={end_s - start_s!r}", f"{_AT}.limit=null",
        )  # fmt: skip

    seen = 1.0 - holdout
    rounds = [[cut(seen * (1 - share) / 2, seen * (1 + share) / 2)] for share in _SHARES]
    words = f"the first {seen:.0%} of the trace's time for the search, the rest held out"
    return Parts([*rounds, [cut(0.0, seen)]], [cut(seen, 1.0)], words)


TRIALS = 200
_GOES_ON = 3  # one in so many goes on to the next round
_LEAST = 4  # that go on
_PARENTS = 12
_DRAWS = (0.5, 0.25, 0.25)  # of the candidates: random ones, and children of the better ones
Score = tuple[float, float]
WORST: Score = (2.0, math.inf)


@dataclass(frozen=True, slots=True)
class Aim:
    """What a search wants: the best value of a metric of summary.json, among the candidates that keep the goals.

    Where the metric is a latency, a candidate that answers fewer requests than the scenario's own policy is none: it
    would look faster for those that it turned away.
    """

    metric: str
    goals: tuple[Goal, ...] = ()

    @property
    def better(self) -> int:
        """+1 where more is better, -1 where less is."""
        return METRICS[self.metric].better

    @property
    def of_served(self) -> bool:
        """Whether the metric is one of those that were served, and says nothing of the others."""
        return any(self.metric.endswith(f"_{name}_ms") for name in LATENCIES)

    def score(self, found: Sequence[Outcome], baseline: Sequence[Outcome]) -> Score:
        """The score of a candidate's runs beside the baseline's; the least is the best."""
        if any(one.error for one in found):
            return WORST
        value = mean(self.metric, found)
        excess = sum(max(goal.excess(one.summary.get(goal.metric)), 0.0) for goal in self.goals for one in found)
        lost = sum(int(one.summary["completed"]) for one in baseline) - sum(
            int(one.summary["completed"]) for one in found
        )
        if value is None or (self.of_served and lost > 0):
            return WORST
        return (1.0, excess) if excess else (0.0, -self.better * value)


def mean(metric: str, found: Sequence[Outcome]) -> float | None:
    """The mean of a metric over runs; None where one of them has no value."""
    values = [one.summary.get(metric) for one in found]
    if any(value is None for value in values) or not values:
        return None
    return sum(float(value) for value in values if value is not None) / len(values)


@dataclass(slots=True)
class Trial:
    """A candidate and its outcomes, a list for each round that it was in."""

    candidate: Candidate
    draw: int
    rounds: list[list[Outcome]] = field(default_factory=list)
    scores: list[Score] = field(default_factory=list)

    @property
    def rank(self) -> tuple[float, ...]:
        """The further it came the better, and there by its score."""
        return (-len(self.scores), *(self.scores[-1] if self.scores else WORST))


class Race:
    """Runs candidates on the parts of the traffic. `trials` are all that were tried, the scenario's own first."""

    def __init__(
        self,
        space: Space,
        parts: Parts,
        aim: Aim,
        folder: Path,
        executor: SweepExecutor,
        *,
        budget_s: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.parts, self.aim = parts, aim
        self.trials: list[Trial] = [Trial(Candidate({}, space.base), 0)]
        self.runs = self.reused = 0
        self.cpu_s = 0.0
        self._space, self._executor, self._progress = space, executor, progress
        self._budget_s = math.inf if budget_s is None else budget_s
        self._store = Store(folder)

    @property
    def is_spent(self) -> bool:
        return self.cpu_s >= self._budget_s

    @property
    def baseline(self) -> Trial:
        return self.trials[0]

    def run(self, count: int) -> Trial:
        """Race `count` candidates; return the best, which may be the scenario's own."""
        rng = stream(self._space.base.seed, "", "search")
        for number in range(len(self.parts.rounds)):
            self._enter([self.baseline], number)
        if any(one.error for of_round in self.baseline.rounds for one in of_round):
            raise InputError(next(one.error for of_round in self.baseline.rounds for one in of_round if one.error))
        seen = {_said(self.baseline.candidate)}
        left = count
        for draw, share in enumerate(_DRAWS):
            asked = left if draw == len(_DRAWS) - 1 else min(left, round(count * share))
            fresh = self._fresh(rng, draw, asked, seen)
            left -= len(fresh)
            self.trials += fresh
            for number in range(len(self.parts.rounds)):
                self._enter(fresh if number == 0 else self._going_on(number), number)
            if self.is_spent:
                break
        last = [trial for trial in self.trials if len(trial.scores) == len(self.parts.rounds)]
        return self._plainer(min(last, key=lambda trial: trial.scores[-1]))  # of equals the first

    def _plainer(self, best: Trial) -> Trial:
        """The candidate without the settings that it is no worse without: a reader should see what matters."""
        for key in list(best.candidate.settings):
            less = {name: value for name, value in best.candidate.settings.items() if name != key}
            if self.is_spent or not less or (candidate := self._space.of(less)) is None:
                continue
            trial = Trial(candidate, len(_DRAWS))
            for number in range(len(self.parts.rounds)):
                self._enter([trial], number)
                if trial.scores[number:] > best.scores[number : number + 1]:
                    break  # it matters: the larger parts of the traffic need not be run
            if len(trial.scores) == len(self.parts.rounds):
                self.trials.append(trial)
                best = trial if trial.scores[-1] <= best.scores[-1] else best
        return best

    def outcomes(self, scenarios: Sequence[Scenario]) -> list[Outcome]:
        """The outcomes of scenarios, in order: made on the executor, or found in the store."""
        names = [address(one) for one in scenarios]
        found = {name: outcome for name in names if (outcome := self._store.get(name)) is not None}
        self.reused += len(found)
        asked = dict.fromkeys(name for name in names if name not in found)
        missing = [(name, scenarios[names.index(name)]) for name in asked]
        for place, result in self._executor.map(partial(_timed, self._store.folder), self._within(missing)):
            name = missing[place][0]
            if isinstance(result, Failure):
                found[name] = Outcome({}, result.message)
            else:
                (found[name], is_kept), seconds = result
                self.cpu_s += seconds
                if not is_kept:
                    self._store.put(name, found[name])
            self.runs += 1
            if self._progress is not None:
                self._progress(self.runs)
        return [found.get(name, _NOT_RUN) for name in names]

    def _within(self, missing: Sequence[tuple[str, Scenario]]) -> Iterator[tuple[str, Scenario]]:
        """The items, as long as the budget lasts; the scenario's own policy is run in any case."""
        for item in missing:
            if self.is_spent and self.baseline.rounds:
                return
            yield item

    def _enter(self, trials: Sequence[Trial], number: int) -> None:
        """Run trials on the parts of a round, and score them."""
        parts = self.parts.rounds[number]
        scenarios = [with_part(trial.candidate.scenario, part) for trial in trials for part in parts]
        found = self.outcomes(scenarios)
        for place, trial in enumerate(trials):
            mine = found[place * len(parts) : (place + 1) * len(parts)]
            if _NOT_RUN not in mine:
                trial.rounds.append(mine)
                trial.scores.append(self.aim.score(mine, self.baseline.rounds[number]))

    def _going_on(self, number: int) -> list[Trial]:
        """The better third of all that were in the round before, without those that are further already.

        Of candidates with equal runs, whose differences did not matter, the one goes on that changes least.
        """
        there: dict[str, Trial] = {}
        for trial in sorted(
            (t for t in self.trials if len(t.scores) >= number), key=lambda t: len(t.candidate.settings)
        ):
            runs = [{k: v for k, v in one.summary.items() if k != PROVENANCE} for one in trial.rounds[number - 1]]
            there.setdefault(repr(runs), trial)
        ranked = sorted(there.values(), key=lambda t: t.scores[number - 1])
        best = ranked[: max(_LEAST, math.ceil(len(ranked) / _GOES_ON))]
        return [t for t in best if len(t.scores) == number and t.scores[number - 1] != WORST]

    def _fresh(self, rng: np.random.Generator, draw: int, count: int, seen: set[str]) -> list[Trial]:
        parents = [trial.candidate for trial in sorted(self.trials, key=lambda trial: trial.rank)[:_PARENTS]]
        found = [Trial(each, draw) for each in self._space.first()[:count]] if draw == 0 else []
        seen.update(_said(trial.candidate) for trial in found)
        for _ in range(20 * count):
            if len(found) >= count:
                break
            candidate = self._space.drawn(rng) if draw == 0 else self._space.child(rng, parents)
            if (said := _said(candidate)) not in seen:
                seen.add(said)
                found.append(Trial(candidate, draw))
        return found


def with_part(scenario: Scenario, part: Part) -> Scenario:
    """The scenario with a part of its traffic."""
    return load(scenario, list(part))


def _said(candidate: Candidate) -> str:
    return repr(sorted(candidate.settings.items(), key=lambda item: item[0]))


_NOT_RUN = Outcome({}, "the budget had ended")


def _timed(folder: Path, item: tuple[str, Scenario]) -> tuple[tuple[Outcome, bool], float]:
    """Run an item on a worker; return its outcome with the CPU seconds that it took."""
    started_s = time.process_time()
    return run_and_keep(folder, item), time.process_time() - started_s
