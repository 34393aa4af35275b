"""`python -m scenarios.plan.brute SCENARIO GPUS POLICIES`: the rates of a plan against every rate of a fine grid.

The grid steps by 2 % from well below the plan's interval to well above it. From its top down the whole traffic is
simulated as `batchlab run` does it, and summary.json is held against the goals: no early stop, no search, nothing in
common with the plan but the simulator. The first rate at which every goal holds is the largest of the grid. It agrees
with the plan where the step that begins with it meets the plan's interval.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from scenarios.plan.answer import Answer
from scenarios.plan.candidate import Candidate
from scenarios.plan.goal import Goal, goals_of
from scenarios.plan.plan import make_plan
from scenarios.plan.traffic import Traffic
from scenarios.plan.twins import firsts
from scenarios.runs.runner import run
from scenarios.schema.loader import load
from scenarios.schema.scenario import Scenario
from scenarios.studies.executors import Failure, Local

STEP = 1.02
_AROUND = 1.15  # the grid begins and ends this factor outside of the interval


def grid_of(low: float, high: float) -> list[float]:
    """The rates of the grid around an interval."""
    found, rate = [], low / _AROUND
    while rate <= high * _AROUND:
        found.append(float(f"{rate:.5g}"))
        rate *= STEP
    return found


def holds(goals: Sequence[Goal], scenario: Scenario) -> bool:
    """Whether a whole run of a scenario meets every goal; goals of classes are not known here."""
    summary = run(scenario).summary
    return all(goal.holds(summary[goal.metric]) for goal in goals) and not summary["saturated"]


@dataclass(frozen=True, slots=True)
class Case:
    """A candidate and the rates to try, ascending."""

    candidate: Candidate
    rates: tuple[float, ...]


def largest_on(base: Scenario, goals: Sequence[Goal], case: Case) -> tuple[float | None, int]:
    """The largest rate of the grid at which every goal holds, and the number of runs that it took."""
    traffic = Traffic(base)
    for runs, rate in enumerate(reversed(case.rates), 1):
        if holds(goals, traffic.scenario_at(case.candidate.scenario, rate)):
            return rate, runs
    return None, len(case.rates)


def compare(source: str, gpus: Sequence[str], policies: str) -> int:
    """Print a line for each candidate; returns how many disagree."""
    base = load(source)
    goals = goals_of(base)
    plan = make_plan(base, goals, gpus=gpus, policies=policies)
    print(f"plan: {plan.runs} runs in {plan.cpu_s:.1f} CPU seconds", flush=True)
    found = [answer for answer in plan.answers if answer.bounds is not None]
    for answer in plan.answers:
        if answer.bounds is None:
            print(f"{answer.candidate.label}: no rate; {answer.note}", flush=True)
    alone = firsts([answer.candidate for answer in found])
    wrong = len(plan.answers) - len(found)
    places = sorted(set(alone))
    cases = [Case(found[place].candidate, tuple(grid_of(*_interval(found[place])))) for place in places]
    for index, outcome in Local().map(partial(largest_on, base, goals), iter(cases)):
        if isinstance(outcome, Failure):
            raise RuntimeError(outcome.message)
        brute, runs = outcome
        for answer in (each for each, first in zip(found, alone, strict=True) if first == places[index]):
            low, high = _interval(answer)
            agrees = brute is not None and brute * STEP >= low and brute <= high
            wrong += not agrees
            value = 0.0 if answer.bounds is None else answer.bounds.value
            print(
                f"{answer.candidate.label}: plan {value:.5g} [{low:.5g}, {high:.5g}], grid "
                f"{'none' if brute is None else f'{brute:.5g}'} after {runs} of {len(cases[index].rates)} rates: "
                f"{'agrees' if agrees else 'DISAGREES'}",
                flush=True,
            )
    print(f"{len(plan.answers) - wrong} of {len(plan.answers)} agree")
    return wrong


def _interval(answer: Answer) -> tuple[float, float]:
    assert answer.bounds is not None, "what is compared has a rate"
    return answer.bounds.low, answer.bounds.high


if __name__ == "__main__":
    sys.exit(min(compare(sys.argv[1], sys.argv[2].split(","), sys.argv[3]), 1))
