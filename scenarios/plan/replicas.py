"""The fewest replicas for a load: simulated as a fleet behind its router, from what one replica carries on."""

from __future__ import annotations

import math
from dataclasses import replace

from scenarios.plan.answer import Answer
from scenarios.plan.bottleneck import Shares
from scenarios.plan.bounds import Bounds, bounds_of_trace, crossing, moved
from scenarios.plan.candidate import Candidate
from scenarios.plan.rates import FARTHEST, STEP_TIMES, Experience, causes, piece_of, short_rate
from scenarios.plan.search import fewest, rounded
from scenarios.plan.trial import Laboratory, Trial
from scenarios.plan.wording import described, rate_text
from simulator.errors import InputError

MOST_REPLICAS = 1024


def find_replicas(lab: Laboratory, candidate: Candidate, *, load: float, experience: Experience) -> Answer:
    """The fewest replicas of a candidate that hold at a load, and the largest rate of that fleet.

    Every number of replicas is a run at the load. What a fleet of another size does at it is, replica by replica, what
    this one does at a larger or smaller load: so the runs on both sides of the answer bound the fleet's rate. They are
    of the scenario's seed, and drawn traffic is redrawn in blocks as a trace is.
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

    def holds(replicas: int) -> bool:
        if lab.is_spent:
            raise _SpentError
        if replicas not in trials:
            trials[replicas] = lab.run(candidate, load, replicas=replicas)
        return trials[replicas].holds

    is_settled = True
    start = math.ceil(load / (one * ratio))
    found: int | None = None
    if start <= 4 * MOST_REPLICAS:
        try:
            found, _ = fewest(holds, start, MOST_REPLICAS)
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
    near = [trial for trial in trials.values() if not trial.stopped]
    below = trials.get(found - 1)
    if below is not None and below.stopped and not lab.is_spent:  # its values say where the limit lies
        below = lab.run(candidate, load, replicas=found - 1, early_stop=False)
        near.append(below)
    if found > 1 and len(near) < 3 and not lab.is_spent and found < MOST_REPLICAS:
        near.append(lab.run(candidate, load, replicas=found + max(1, found // 12), early_stop=False))
    if found == 1 and not lab.is_spent:  # no smaller fleet: more load instead
        near += [lab.run(candidate, rounded(load * factor), replicas=1, early_stop=False) for factor in (1.25, 1.6)]
    bounds = _fleet_bounds(near, load, found)
    beyond = held if below is None or below.stopped else below  # the run in which a goal is missed
    note = "" if is_settled else "The budget ended before the search did: fewer replicas may hold."
    if bounds.low < load and is_settled:
        surer = math.ceil(load / (bounds.low / found))
        note = (
            f"At 95 % the fleet's rate may be as low as {rate_text(bounds.low)} requests/s: "
            f"{surer:,} replicas would be on the safe side."
        )
    return Answer(
        candidate,
        True,
        found,
        load,
        bounds,
        held.bare(),
        tuple(trial.bare() for trial in near),
        beyond.worst,
        causes(beyond, candidate, beyond.worst),
        moved(near, 1 + STEP_TIMES),
        moved(near, 1 - STEP_TIMES),
        note=note,
        excess=held.excess,
    )


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
