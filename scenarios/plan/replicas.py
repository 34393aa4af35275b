"""The fewest replicas for a load: simulated as a fleet behind its router, from what one replica carries on."""

from __future__ import annotations

import math
from dataclasses import replace

from scenarios.plan.answer import Answer
from scenarios.plan.bottleneck import Shares
from scenarios.plan.bounds import Bounds, bounds_of_trace, crossing
from scenarios.plan.candidate import Candidate
from scenarios.plan.experience import Experience
from scenarios.plan.rates import FARTHEST, SLOPE, answer_of, causes, piece_of, short_rate
from scenarios.plan.search import fewest, largest
from scenarios.plan.trial import Laboratory, Trial
from scenarios.plan.wording import described, rate_text
from simulator.errors import InputError

MOST_REPLICAS = 1024
_FEW = 8  # replicas: one more or less is no small step
_FIRST_STEP = 1.06  # from the load, for so few
_TOLERANCE = 0.03
_SLACK = 0.02  # of the replicas of a large fleet: so many fewer might do
_ENOUGH = 3  # runs, to draw a line through


def find_replicas(lab: Laboratory, candidate: Candidate, *, load: float, experience: Experience) -> Answer:
    """The fewest replicas of a candidate that hold at a load, and the largest rate of that fleet.

    Every number of replicas is a run at the load. A small fleet's rate is searched for; what a large one of another
    size does at the load is, replica by replica, what this one does at a larger or smaller load, so the runs on both
    sides of the answer bound it. They are of the scenario's seed; drawn traffic is redrawn in blocks as a trace is.
    """
    if candidate.scenario.fleet is not None:
        raise InputError(
            "the scenario has a fleet of groups: there is no one number of replicas",
            file="--find replicas",
            hint="leave `fleet` out, or plan the groups one by one",
        )
    one = short_rate(lab, _alone(candidate))
    if one is None:
        return Answer(candidate, False, 1, load, note=_nothing(lab, candidate))
    ratio = experience.ratio(candidate)
    trials: dict[int, Trial] = {}

    def probe(replicas: int) -> Trial:
        if lab.is_spent:
            raise _SpentError
        if replicas not in trials:
            trials[replicas] = lab.run(candidate, load, replicas=replicas)
        return trials[replicas]

    is_settled = True
    start = math.ceil(load / (one * ratio))
    found: int | None = None
    if start <= 4 * MOST_REPLICAS:
        try:
            found, _ = fewest(probe, start, MOST_REPLICAS, slack=_SLACK)
        except _SpentError:
            is_settled = False
            found = min((each for each, trial in trials.items() if trial.holds), default=None)
    if found is None:
        return _none(candidate, load, one, trials, is_settled)
    experience.ratios[candidate.scenario.engine.policy] = load / (found * one)
    return _answer(lab, candidate, load, found, trials, is_settled)


class _SpentError(Exception):
    """The budget is over."""


def _alone(candidate: Candidate) -> Candidate:
    return Candidate(candidate.settings, candidate.with_replicas(1), candidate.left_out)


def _answer(
    lab: Laboratory, candidate: Candidate, load: float, found: int, trials: dict[int, Trial], is_settled: bool
) -> Answer:
    held = trials[found]
    near = (
        _more_load(lab, candidate, load, held) if found <= _FEW else _other_sizes(lab, candidate, load, trials, found)
    )
    bounds = _fleet_bounds(near, load, found)
    failing = [trial for trial in near if not trial.holds]
    beyond = min(failing, key=lambda trial: trial.rate / trial.replicas, default=held)  # where a goal is missed first
    note = "" if is_settled else "The budget ended before the search did: fewer replicas may hold."
    if bounds.low < load and is_settled:
        surer = math.ceil(load / (bounds.low / found))
        note = (
            f"At 95 % the fleet's rate may be as low as {rate_text(bounds.low)} requests/s: "
            f"{surer:,} replicas would be on the safe side."
        )
    return answer_of(candidate, load, bounds, held, near, beyond, note)


def _more_load(lab: Laboratory, candidate: Candidate, load: float, held: Trial) -> list[Trial]:
    """Runs of the same fleet under more load: a replica more or less would be too large a step."""

    def probe(rate: float) -> Trial:
        return held if rate <= load else lab.run(candidate, rate, replicas=held.replicas, early_stop=False)

    found = largest(
        probe,
        load,
        tolerance=_TOLERANCE,
        step=_FIRST_STEP,
        slope=SLOPE,
        least=load,
        most=load * FARTHEST,
        go_on=lambda: not lab.is_spent,
    )
    return [trial for _, trial in found.probes]


def _other_sizes(
    lab: Laboratory, candidate: Candidate, load: float, trials: dict[int, Trial], found: int
) -> list[Trial]:
    """Runs of fleets of about this size at the load."""
    near = [trial for trial in trials.values() if not trial.stopped]
    below = max((size for size, trial in trials.items() if not trial.holds), default=0)
    if below and trials[below].stopped and not lab.is_spent:  # its values say where the limit lies
        near.append(lab.run(candidate, load, replicas=below, early_stop=False))
    if len(near) < _ENOUGH and not lab.is_spent and found < MOST_REPLICAS:
        near.append(lab.run(candidate, load, replicas=found + max(1, found // 12), early_stop=False))
    return near


def _fleet_bounds(near: list[Trial], load: float, found: int) -> Bounds:
    """The rate of `found` replicas, from runs of about as many: what counts is the rate of each replica."""
    holding = [trial.rate / trial.replicas for trial in near if trial.holds]
    failing = [trial.rate / trial.replicas for trial in near if not trial.holds]
    held = max(holding, default=load / found)
    beyond = min((rate for rate in failing if rate > held), default=None)
    of_one = [replace(trial, rate=trial.rate / trial.replicas, replicas=1) for trial in near]
    bounds = bounds_of_trace(of_one, held, beyond)
    if beyond is not None and (between := crossing(of_one)) is not None:  # the bracket is as wide as a replica
        bounds = replace(bounds, value=min(max(between, held), beyond))
    return bounds.times(found)


def _none(candidate: Candidate, load: float, one: float, trials: dict[int, Trial], is_settled: bool) -> Answer:
    """No number of replicas was found."""
    seen = max(trials.values(), key=lambda trial: trial.replicas, default=None)
    needed = math.ceil(load / one)
    if not is_settled:
        note = f"The budget ended before a number of replicas was found; about {needed:,} may be needed."
    elif seen is None:
        note = f"One replica carries {rate_text(one)} requests/s: more than {MOST_REPLICAS:,} would be needed."
    else:
        note = f"{seen.replicas:,} replicas are not enough: {described(seen)}."
    known = seen is not None and not seen.stopped
    return Answer(
        candidate,
        False,
        min(needed, MOST_REPLICAS) if seen is None else seen.replicas,
        load,
        shown=None if seen is None else seen.bare(),
        binding=seen.worst if seen is not None and known else None,
        shares=causes(seen, candidate, seen.worst) if seen is not None and known else Shares({}),
        note=note,
    )


def _nothing(lab: Laboratory, candidate: Candidate) -> str:
    if lab.is_spent:
        return "The budget ended before a rate was found that holds."
    rate = lab.traffic.rate / FARTHEST
    seen = lab.run(_alone(candidate), rate, piece=piece_of(lab), early_stop=False)
    return f"A replica holds at no rate: {described(seen)}, even at {rate:.3g} requests/s."
