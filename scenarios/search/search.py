"""A whole search: the race on one part of the traffic, the proof on the other, and what came of both."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from scenarios.assembly.engine_policy import policy_label
from scenarios.assembly.workloads import build_workload
from scenarios.plan.candidate import POLICY, Candidate
from scenarios.plan.goal import OF_LIMITS, Goal
from scenarios.runs.result import Result
from scenarios.runs.runner import run_on
from scenarios.schema.scenario import Scenario
from scenarios.search.held_out import HeldOut, held_out
from scenarios.search.parts import Parts, parts_of
from scenarios.search.payers import Group, groups
from scenarios.search.policy_file import command_of
from scenarios.search.race import Aim, Race, Trial, with_part
from scenarios.search.space import Space
from scenarios.studies.executors import SweepExecutor
from simulator.errors import InputError
from simulator.metrics.table import METRICS


@dataclass(frozen=True)  # no slots: who pays is worked out once
class Searched:
    """What a search came to.

    `best` is the candidate that won the race and was tried on held-out traffic; `is_better` says whether it is better
    there beyond doubt: the 95 % interval of the difference does not hold 0. `runs` are those on held-out traffic.
    """

    base: Scenario
    aim: Aim
    parts: Parts
    trials: Sequence[Trial]
    best: Trial
    proof: HeldOut
    runs: tuple[Sequence[Result], Sequence[Result]]  # of the scenario's own policy, of the best
    made: int
    reused: int
    cpu_s: float

    @property
    def is_better(self) -> bool:
        """Whether the best candidate is better than the scenario's own policy on held-out traffic."""
        difference = self.proof.difference
        low = difference.low if self.aim.better > 0 else -difference.high
        return self.best is not self.trials[0] and low > 0

    @property
    def taken(self) -> Candidate:
        """The candidate to take: the best, or the scenario's own policy where that is not better beyond doubt."""
        return (self.best if self.is_better else self.trials[0]).candidate

    @property
    def deploy(self) -> str | None:
        """The command of a server that decides so; None where no flag of a server says all of it."""
        return command_of(self.taken.scenario)

    @cached_property
    def groups(self) -> list[Group]:
        """Which requests pay."""
        return groups(*self.runs)

    def to_json(self) -> dict[str, Any]:
        """The answer, as `--json` prints it."""
        proof = self.proof
        return {
            "objective": self.aim.metric,
            "found": self.is_better,
            "best": settings_of(self.best.candidate),
            "baseline": settings_of(self.trials[0].candidate),
            "held_out": {
                "best": proof.best,
                "baseline": proof.baseline,
                "bound": proof.bound,
                "difference": _interval(proof.difference),
            },
            "gap_closed": None if proof.closed is None else _interval(proof.closed),
            "deploy": self.deploy,
            "trials": len(self.trials),
            "runs": self.made,
            "reused": self.reused,
            "cpu_s": self.cpu_s,
        }


def search(
    base: Scenario,
    objective: str,
    goals: Sequence[Goal],
    folder: Path,
    executor: SweepExecutor,
    *,
    trials: int,
    seeds: int,
    holdout: float,
    budget_s: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Searched:
    """Search a policy for a scenario; outcomes of runs are kept in `folder`, where a later search finds them.

    Raises InputError for an objective that is none, traffic that cannot be parted, and a scenario that cannot be run.
    """
    aim = Aim(checked(objective, base), tuple(goals))
    parts = parts_of(base, seeds, holdout)
    workload = build_workload(with_part(base, parts.rounds[-1][0]))
    space = Space(base, workload, sheds=objective in OF_LIMITS)
    race = Race(space, parts, aim, folder, executor, budget_s=budget_s, progress=progress)
    best = race.run(trials)
    runs = []
    for trial in (race.baseline, best):
        runs.append([_run(trial.candidate.scenario, part) for part in parts.held_out])
        if best is race.baseline:
            runs.append(runs[0])
            break
    proof = held_out(runs[1], runs[0], aim.metric)
    return Searched(base, aim, parts, race.trials, best, proof, (runs[0], runs[1]), race.runs, race.reused, race.cpu_s)


def checked(objective: str, base: Scenario) -> str:
    """Return the objective. Raises InputError unless it is a metric of a run of which more or less is better."""
    from scenarios.schema.source.hints import did_you_mean

    known = [key for key, metric in METRICS.items() if metric.better and metric.by_run and metric.of is not None]
    if objective not in known:
        hint = did_you_mean(objective, known) or "a key of summary.json of which more or less is better"
        raise InputError(f"unknown metric {objective!r}", file="--objective", hint=hint)
    slo = base.resolve_slo()
    if objective in OF_LIMITS and (slo is None or not slo.limits):
        what = f"{objective} counts requests within the limits of the SLO, and the scenario has none"
        raise InputError(what, file="--objective", hint="--set slo.ttft_ms=1000 --set slo.tpot_ms=50 gives limits")
    return objective


def settings_of(candidate: Candidate) -> dict[str, Any]:
    """The settings of a candidate, with its policy."""
    return {POLICY: policy_label(candidate.scenario.engine.policy), **candidate.settings}


def _run(scenario: Scenario, part: Sequence[str]) -> Result:
    chosen = with_part(scenario, tuple(part))
    return run_on(chosen, build_workload(chosen))


def _interval(found: Any) -> dict[str, float | None]:
    values = {"value": found.mean, "low": found.low, "high": found.high}
    return {name: value if math.isfinite(value) else None for name, value in values.items()}
