"""A plan by the pessimistic end of the prediction: steps that take longer, and first tokens later still."""

from dataclasses import dataclass
from typing import Any

from scenarios.assembly.fleet_parts import build_fleet
from scenarios.plan.candidate import Candidate
from scenarios.plan.goal import Goal
from scenarios.prediction.basis import basis_of
from scenarios.prediction.prediction import prediction_entry, step_factors
from simulator.errors import InputError
from simulator.metrics.predicted import PREDICTION, TPOT, TTFT
from simulator.metrics.summary import summarize
from simulator.results.records import Records


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
