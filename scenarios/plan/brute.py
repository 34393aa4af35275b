"""`python -m scenarios.plan.brute SCENARIO GPUS POLICIES`: the rates of a plan against every rate of a fine grid.

The grid steps by 2 % from well below the plan's interval to well above it. At each rate the whole traffic is simulated
as `batchlab run` does it, and summary.json is held against the goals: no early stop, no search, nothing in common with
the plan but the simulator. The largest rate of the grid at which every goal holds agrees with the plan where the step
that begins with it meets the plan's interval.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial

from scenarios.plan.candidate import Candidate
from scenarios.plan.goal import Goal, goals_of
from scenarios.plan.plan import make_plan
from scenarios.plan.traffic import Traffic
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


def largest_on(traffic: Traffic, candidate: Candidate, goals: Sequence[Goal], rates: Sequence[float]) -> float | None:
    """The largest rate of a grid at which every goal holds."""
    scenarios = (traffic.scenario_at(candidate.scenario, rate) for rate in rates)
    found = []
    for place, held in Local().map(partial(holds, tuple(goals)), scenarios):
        if isinstance(held, Failure):
            raise RuntimeError(held.message)
        if held:
            found.append(rates[place])
    return max(found, default=None)


def compare(source: str, gpus: Sequence[str], policies: str) -> int:
    """Print a line for each candidate; returns how many disagree."""
    base = load(source)
    goals = goals_of(base)
    plan = make_plan(base, goals, gpus=gpus, policies=policies)
    print(f"plan: {plan.runs} runs in {plan.cpu_s:.1f} CPU seconds", flush=True)
    traffic, wrong = Traffic(base), 0
    for answer in plan.answers:
        if answer.bounds is None:
            print(f"{answer.candidate.label}: no rate; {answer.note}", flush=True)
            continue
        started = time.monotonic()
        low, high = answer.bounds.low, answer.bounds.high
        rates = grid_of(low, high)
        brute = largest_on(traffic, answer.candidate, goals, rates)
        agrees = brute is not None and brute * STEP >= low and brute <= high
        wrong += not agrees
        print(
            f"{answer.candidate.label}: plan {answer.bounds.value:.5g} [{low:.5g}, {high:.5g}], grid of {len(rates)} "
            f"rates {'none' if brute is None else f'{brute:.5g}'}: {'agrees' if agrees else 'DISAGREES'} "
            f"({time.monotonic() - started:.0f} s)",
            flush=True,
        )
    print(f"{len(plan.answers) - wrong} of {len(plan.answers)} agree")
    return wrong


if __name__ == "__main__":
    sys.exit(min(compare(sys.argv[1], sys.argv[2].split(","), sys.argv[3]), 1))
