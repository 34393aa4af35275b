"""The race of candidates: all on a small part of the traffic, the better third on more of it, and so on.

Successive halving (K. Jamieson, A. Talwalkar, Non-stochastic best arm identification and hyperparameter optimization,
AISTATS 2016) of several draws: half of the candidates are random, each later draw is made from the better ones before
it. Every candidate meets the same requests. Runs are kept by their content, as those of a sweep are: a search that was
stopped goes on, and makes no run twice.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from scenarios.assembly.workloads import build_workload
from scenarios.plan.candidate import Candidate
from scenarios.plan.goal import Goal
from scenarios.random_draws import stream
from scenarios.runs.provenance import PROVENANCE
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.schema.trace import TraceWorkload
from scenarios.search.space import Space
from scenarios.studies.executors import Failure, SweepExecutor
from scenarios.studies.run_sweep import Store, run_and_keep
from scenarios.studies.study_run import Outcome, address
from simulator.errors import InputError
from simulator.metrics.latency import LATENCIES
from simulator.metrics.summary import METRICS

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
