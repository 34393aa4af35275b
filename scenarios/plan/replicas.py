"""Find the fewest replicas for a load, simulated as a fleet behind its router, from what one replica carries on."""

import math
from collections.abc import Callable
from dataclasses import replace

from scenarios.plan.answer import Answer
from scenarios.plan.bounds import Bounds, bounds_of_trace, crossing
from scenarios.plan.candidate import Candidate
from scenarios.plan.rates import FARTHEST, SLOPE, Experience, answer_of, causes, piece_of, short_rate
from scenarios.plan.search import fewest, largest
from scenarios.plan.text import described, rate_text
from scenarios.plan.traffic import IN_STEP_S, Traffic
from scenarios.plan.trial import Laboratory, Trial
from simulator.errors import InputError

MOST_REPLICAS = 1024
_FEW = 8  # replicas: one more or less is no small step
_FIRST_STEP = 1.06  # from the load, for so few
_TOLERANCE = 0.03
_SLACK = 0.02  # of the replicas of a large fleet: so many fewer might do
_MORE_IN_STEP = 1.25  # times the replicas, to begin with, where the peaks of copies meet
_STRETCH = 20_000  # requests that say about how many replicas are needed
_ENOUGH = 3  # runs, to draw a line through


def find_replicas(lab: Laboratory, candidate: Candidate, experience: Experience) -> Answer:
    """Find the fewest replicas of a candidate that hold at the load, and the largest rate of that fleet.

    Every number of replicas is a run at the load. The rate of a small fleet is searched for. A large fleet of another
    size does at the load, replica by replica, what this one does at a larger or smaller load: so the runs on both sides
    of the answer bound its rate. All have the scenario's seed; drawn traffic is redrawn in blocks, as a trace is. Where
    the load is copies of a trace, the interval spans those whose peaks meet, for which the fewest are found too.
    """
    if candidate.scenario.fleet is not None:
        raise InputError(
            "the scenario has a fleet of groups: there is no single number of replicas",
            file="--find replicas",
            hint="leave `fleet` out, or plan the groups one by one",
        )
    load, alone = lab.load, Candidate(candidate.settings, candidate.with_replicas(1), candidate.left_out)
    one = short_rate(lab, alone)
    if one is None:
        note = "The budget ended before a rate was found that holds."
        if not lab.is_spent:
            rate = lab.traffic.rate / FARTHEST
            seen = lab.run(alone, rate, piece=piece_of(lab), early_stop=False)
            note = f"A replica holds at no rate: {described(seen)}, even at {rate:.3g} requests/s."
        return Answer(candidate, False, 1, load, note=note)
    trials: dict[int, Trial] = {}
    start = math.ceil(load / (one * experience.ratio(candidate)))
    found, is_settled = None, True
    if start <= 4 * MOST_REPLICAS:
        found, is_settled = _fewest(lab, candidate, start, trials)
    if found is None:
        return _none(candidate, load, one, trials, is_settled)
    experience.ratios[candidate.scenario.engine.policy] = load / (found * one)
    return _answer(lab, candidate, found, trials, is_settled)


def _fewest(
    lab: Laboratory, candidate: Candidate, start: int, trials: dict[int, Trial], traffic: Traffic | None = None
) -> tuple[int | None, bool]:
    """Find the fewest replicas at the load, from `start` on, and whether the budget let the search end.

    Of many requests the busiest stretch alone says where the search of whole runs begins.
    """

    def held_to(piece: int, trials: dict[int, Trial]) -> Callable[[int], Trial]:
        def probe(replicas: int) -> Trial:
            if lab.is_spent:
                raise _SpentError
            if replicas not in trials:
                trials[replicas] = lab.run(candidate, lab.load, replicas=replicas, piece=piece, traffic=traffic)
            return trials[replicas]

        return probe

    try:
        if len((traffic or lab.traffic).workload(lab.load, lab.traffic.scenario.seed)) > 2 * _STRETCH:
            start = fewest(held_to(_STRETCH, {}), start, MOST_REPLICAS, slack=_SLACK)[0] or start
        return fewest(held_to(0, trials), start, MOST_REPLICAS, slack=_SLACK)[0], True
    except _SpentError:
        return min((each for each, trial in trials.items() if trial.holds), default=None), False


class _SpentError(Exception):
    """The budget is over."""


def _in_step(lab: Laboratory, candidate: Candidate, found: int) -> tuple[Bounds | None, str]:
    """Return the bounds of `found` replicas under copies of the trace whose peaks meet, and what is to be said of them.

    None where the load is no copies, or the scenario says how they are shifted.
    """
    traffic = lab.traffic.in_step(lab.load)
    if traffic is None:
        return None, ""
    trials: dict[int, Trial] = {}
    needed, is_settled = _fewest(lab, candidate, math.ceil(found * _MORE_IN_STEP), trials, traffic)
    if needed is None or not is_settled:
        return None, "The budget ended before copies were tried whose peaks meet: they may need more replicas."
    failed = max((size for size, trial in trials.items() if not trial.holds), default=None)
    held, beyond = lab.load * found / needed, lab.load * found / (failed or needed)
    several = "replica holds" if needed == 1 else "replicas hold"
    return Bounds(held, held, beyond), (
        f"Where the copies are shifted by at most {IN_STEP_S:g} s, so that their peaks meet, {needed:,} {several}; "
        "the interval spans both."
    )


def _answer(lab: Laboratory, candidate: Candidate, found: int, trials: dict[int, Trial], is_settled: bool) -> Answer:
    held, load = trials[found], lab.load
    near = _more_load(lab, candidate, held) if found <= _FEW else _other_sizes(lab, candidate, trials, found)
    bounds = _fleet_bounds(near, load, found)
    failing = [trial for trial in near if not trial.holds]
    beyond = min(failing, key=lambda trial: trial.rate / trial.replicas, default=held)  # where a goal is missed first
    note = "" if is_settled else "The budget ended before the search did: fewer replicas may hold."
    in_step, said = _in_step(lab, candidate, found)
    bounds = bounds if in_step is None else bounds.spanning(in_step)
    if bounds.low < load and is_settled:
        surer = math.ceil(load / (bounds.low / found))
        note = (
            f"At 95 % the fleet's rate may be as low as {rate_text(bounds.low)} requests/s: "
            f"{surer:,} replicas would be on the safe side."
        )
    return answer_of(lab, candidate, bounds, held, near, beyond, f"{said} {note}".strip())


def _more_load(lab: Laboratory, candidate: Candidate, held: Trial) -> list[Trial]:
    """Run the same fleet under more load: a replica more or less would be too large a step."""

    def probe(rate: float) -> Trial:
        return held if rate <= lab.load else lab.run(candidate, rate, replicas=held.replicas, early_stop=False)

    found = largest(
        probe,
        lab.load,
        tolerance=_TOLERANCE,
        step=_FIRST_STEP,
        slope=SLOPE,
        least=lab.load,
        most=lab.load * FARTHEST,
        go_on=lambda: not lab.is_spent,
    )
    return [trial for _, trial in found.probes]


def _other_sizes(lab: Laboratory, candidate: Candidate, trials: dict[int, Trial], found: int) -> list[Trial]:
    """Run fleets of about this size at the load."""
    near = [trial for trial in trials.values() if not trial.stopped]
    below = max((size for size, trial in trials.items() if not trial.holds), default=0)
    if below and trials[below].stopped and not lab.is_spent:  # its values say where the limit lies
        near.append(lab.run(candidate, lab.load, replicas=below, early_stop=False))
    if len(near) < _ENOUGH and not lab.is_spent and found < MOST_REPLICAS:
        near.append(lab.run(candidate, lab.load, replicas=found + max(1, found // 12), early_stop=False))
    return near


def _fleet_bounds(near: list[Trial], load: float, found: int) -> Bounds:
    """Return the bounds of `found` replicas' rate, from runs of about as many: what counts is the rate of each one."""
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
    """Return the answer where no number of replicas was found."""
    seen = max(trials.values(), key=lambda trial: trial.replicas, default=None)
    needed = math.ceil(load / one)
    if not is_settled:
        note = f"The budget ended before a number of replicas was found; about {needed:,} may be needed."
    elif seen is None:
        note = f"One replica carries {rate_text(one)} requests/s: more than {MOST_REPLICAS:,} would be needed."
    else:
        note = f"{seen.replicas:,} replicas are not enough: {described(seen)}."
    if seen is None:
        return Answer(candidate, False, min(needed, MOST_REPLICAS), load, note=note)
    answer = Answer(candidate, False, seen.replicas, load, shown=seen.bare(), note=note)
    return answer if seen.stopped else replace(answer, binding=seen.worst, shares=causes(seen, candidate))
