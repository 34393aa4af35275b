"""The largest rate of a candidate, and the fewest replicas for a load: found by short runs, then whole ones."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scenarios.plan.answer import Answer, Bounds, bounds_of_seeds, bounds_of_trace, crossing, moved
from scenarios.plan.bottleneck import Shares, shares
from scenarios.plan.candidate import POLICY, Candidate
from scenarios.plan.goal import OF_LOAD
from scenarios.plan.search import Found, fewest, largest, rounded
from scenarios.plan.text import described, rate_text
from scenarios.plan.trial import IN_STEP_S, Laboratory, Traffic, Trial
from simulator.errors import InputError

# Rates of earlier candidates, which shorten the search for the next one's.

_FIRST_RATIO = 1.1  # short runs take the busiest stretch, and so find too little
_TIMES_DEARER = 20.0  # times the price of a request elsewhere
_ALIKE = 0.03  # share by which the short rates of candidates that behave alike differ


@dataclass(frozen=True, slots=True)
class Known:
    """A candidate whose largest rate is known, with the ends of its bracket; `short` is the rate of its short runs."""

    short: float
    held: float
    failed: float
    answer: Answer

    def is_in(self, trials: Sequence[Trial]) -> bool:
        """Return whether these trials came out as its own did at the same rates, request by request."""
        own = {(trial.rate, trial.replicas, trial.seed): trial for trial in self.answer.trials}
        return all(
            (twin := own.get((trial.rate, trial.replicas, trial.seed))) is not None and _are_equal(trial, twin)
            for trial in trials
        )


@dataclass(slots=True)
class Experience:
    """Rates of earlier candidates. `ratios` are rates of whole runs over those of short ones, by policy."""

    ratios: dict[str, float] = field(default_factory=dict)
    best: float = 0.0  # requests per second and USD per hour, the most so far
    known: list[Known] = field(default_factory=list)

    def ratio(self, candidate: Candidate) -> float:
        """Return the ratio to expect: that of the policy, or else the latest of another."""
        found = self.ratios.get(candidate.scenario.engine.policy)
        return found if found is not None else next(reversed(self.ratios.values()), _FIRST_RATIO)

    def alike(self, candidate: Candidate, short: float) -> Known | None:
        """Find a candidate of another policy, alike in all else, whose short runs came to the same rate."""
        rest = _without_policy(candidate)
        for each in self.known:
            if _without_policy(each.answer.candidate) == rest and abs(each.short / short - 1) < _ALIKE:
                return each
        return None

    def is_expensive(self, candidate: Candidate, rate: float) -> bool:
        """Return whether its requests cost many times those of another candidate."""
        price = candidate.usd_per_hour(candidate.scenario.replicas)
        return price is not None and price > 0 and rate / price * _TIMES_DEARER < self.best

    def learn(self, answer: Answer, short: float | None, held: float, failed: float | None) -> None:
        """Take in a candidate's answer."""
        candidate = answer.candidate
        if short is not None:
            self.ratios[candidate.scenario.engine.policy] = held / short
            if failed is not None:
                self.known.append(Known(short, held, failed, answer))
        price = candidate.usd_per_hour(candidate.scenario.replicas)
        if price:
            self.best = max(self.best, held / price)


def _without_policy(candidate: Candidate) -> dict[str, object]:
    return {key: value for key, value in candidate.settings.items() if key != POLICY}


def _are_equal(one: Trial, other: Trial) -> bool:
    return one.values == other.values and all(
        np.array_equal(mine, theirs, equal_nan=True) for mine, theirs in zip(one.tails, other.tails, strict=True)
    )


PIECE = 2000
"""Requests of a short run: enough for a 99th percentile to be within some tens of percent."""

TOLERANCE = 0.02
"""The bracket's ends differ by this share, or by `_OF_INTERVAL` of the interval where that is wide."""

_OF_INTERVAL = 0.2
_WIDEST = 0.06  # bracket
_EXPENSIVE = 0.2  # bracket of a candidate whose requests cost many times those of another: its interval covers it
_EXPENSIVE_DRAWN = 0.1  # of drawn traffic, where the interval is that of the seeds alone
_SHORT_TOLERANCE = 0.1
SLOPE = 2.0  # of the excess over the logarithm of the rate, before two runs tell it
FARTHEST = 4096.0  # factor between the scenario's rate and the smallest or largest that is tried
_FIRST_STEP = 1.08  # from the guess of the short runs
_BEYOND = 1.03  # an end of an interval lies at most this factor outside of the rates that were run, or a part of it

STEP_TIMES = 0.05
"""The share by which all step times may be wrong: the answer says by how much its rate moves with them."""


def find_rate(
    lab: Laboratory,
    candidate: Candidate,
    experience: Experience,
    *,
    short: float | None = None,
    guess: float | None = None,
) -> Answer:
    """Find the largest rate of a candidate, from the rate of its short runs on, or else from a `guess`."""
    alike = None if short is None else experience.alike(candidate, short)
    start = guess if short is None else short * experience.ratio(candidate)
    if start is None:
        return _without_rate(lab, candidate)
    is_expensive = experience.is_expensive(candidate, start)
    share = _EXPENSIVE_DRAWN if lab.traffic.is_random else _EXPENSIVE
    narrowest, seeds = share if is_expensive else TOLERANCE, lab.seeds
    if alike is None:
        first = _whole(lab, candidate, start, seeds[0], narrowest, step=_FIRST_STEP, slope=SLOPE)
    else:  # its own bracket, if it is the same
        bracket = alike.failed / alike.held
        first = _whole(lab, candidate, alike.held, seeds[0], max(bracket - 1, narrowest), step=bracket)
    if first.held is None:
        return _without_rate(lab, candidate)
    if alike is not None and len(seeds) == 1 and alike.is_in([trial for _, trial in first.probes]):
        # What lies farther out bounds the interval alone: there the runs of the one stand for the other's.
        return replace(alike.answer, candidate=candidate)
    found = [first]
    for seed in seeds[1:]:
        other = _whole(lab, candidate, first.held[0], seed, narrowest, step=1 + 2 * TOLERANCE)
        if other.held is None:
            break
        found.append(other)
    answer = _in_step_too(lab, _answer(lab, candidate, found, are_ends_run=not is_expensive), narrowest)
    experience.learn(answer, short, first.held[0], None if first.failed is None else first.failed[0])
    return answer


def _in_step_too(lab: Laboratory, answer: Answer, narrowest: float) -> Answer:
    """Widen the interval of an answer to the rate of copies whose peaks meet, where its load is copies of a trace."""
    rate = 0.0 if answer.bounds is None else answer.bounds.value
    in_step = lab.traffic.in_step(rate) if rate else None
    if in_step is None or answer.bounds is None or lab.is_spent:
        return answer
    seed = lab.traffic.scenario.seed
    found = _whole(lab, answer.candidate, rate, seed, narrowest, step=_FIRST_STEP, slope=SLOPE, traffic=in_step)
    if found.held is None:
        return answer
    failed = None if found.failed is None else found.failed[0]
    other = bounds_of_trace([trial for _, trial in found.probes], found.held[0], failed)
    note = (
        f"Copies shifted by at most {IN_STEP_S:g} s, whose peaks meet, keep the SLO up to {rate_text(other.value)} "
        "requests/s; the interval spans both."
    )
    return replace(answer, bounds=answer.bounds.spanning(other), note=f"{answer.note} {note}".strip())


def _whole(
    lab: Laboratory,
    candidate: Candidate,
    start: float,
    seed: int,
    narrowest: float,
    *,
    step: float,
    slope: float | None = None,
    traffic: Traffic | None = None,
) -> Found[Trial]:
    """Search in whole runs with a seed, from a rate on. The ends of the bracket may differ by the share `narrowest`."""
    rate, least = lab.traffic.rate, narrowest + 1e-9

    def tolerance(probes: Sequence[tuple[float, Trial]]) -> float:
        """Return a part of the interval that one trace leaves, as far as its runs so far tell."""
        if lab.traffic.is_random:
            return least
        bounds = bounds_of_trace([trial for _, trial in probes], probes[-1][0], None)
        return max(min(_OF_INTERVAL * math.log(bounds.high / bounds.low), _WIDEST), least)

    return largest(
        lambda each: lab.run(candidate, each, seed=seed, early_stop=False, traffic=traffic),
        start,
        tolerance=tolerance,
        step=step,
        slope=slope,
        least=rate / FARTHEST,
        most=rate * FARTHEST,
        go_on=lambda: not lab.is_spent,
        too_little=too_little,
    )


def short_rate(lab: Laboratory, candidate: Candidate) -> float | None:
    """Find the largest rate in short runs, to a tenth; None where none holds down to a small part of the scenario's."""
    rate = lab.traffic.rate
    found = largest(
        lambda each: lab.run(candidate, each, piece=piece_of(lab)),
        rate,
        tolerance=_SHORT_TOLERANCE,
        least=rate / FARTHEST,
        most=rate * FARTHEST,
        go_on=lambda: not lab.is_spent,
        too_little=too_little,
    )
    return None if found.held is None else found.held[0]


def piece_of(lab: Laboratory) -> int:
    """Requests of a short run; 0 where the whole traffic is not much longer."""
    return PIECE if lab.traffic.num_requests > 2 * PIECE else 0


def too_little(trial: Trial) -> bool:
    """Return whether a run fails for want of load alone: every goal that it misses grows with the load."""
    missed = trial.missed
    return bool(missed) and all(goal.at_least and goal.metric in OF_LOAD for goal in missed)


def _trace_bounds(
    lab: Laboratory, candidate: Candidate, found: Found[Trial], held: Trial, *, are_ends_run: bool
) -> tuple[Bounds, list[Trial]]:
    """Return the bounds of one trace, and the trials that they rest on.

    With `are_ends_run`, one more run is made at each end that lies beyond the rates that were run: no end is a guess.
    """
    trials = [trial for _, trial in found.probes]
    failed = None if found.failed is None else found.failed[0]
    bounds = bounds_of_trace(trials, held.rate, failed)
    rates = [trial.rate for trial in trials]
    beyond = max(_BEYOND, (bounds.high / bounds.low) ** _OF_INTERVAL)
    outside = [end for end in (bounds.low, bounds.high) if not min(rates) / beyond <= end <= max(rates) * beyond]
    if not outside or not are_ends_run or failed is None:
        return bounds, trials
    for end in outside:
        if not lab.is_spent:
            trials.append(lab.run(candidate, rounded(end), seed=held.seed, early_stop=False))
    return bounds_of_trace(trials, held.rate, failed), trials


def _answer(lab: Laboratory, candidate: Candidate, found: Sequence[Found[Trial]], *, are_ends_run: bool) -> Answer:
    first = found[0]
    assert first.held is not None
    rate, held = first.held
    near = [trial for _, trial in first.probes]
    if len(found) > 1:
        bounds = bounds_of_seeds([each.held[0] for each in found if each.held is not None])
        if bounds.low == bounds.high and first.failed is not None:  # seeds that agree know no more than the bracket
            bounds = replace(bounds, high=max(bounds.high, first.failed[0]))
    else:
        bounds, near = _trace_bounds(lab, candidate, first, held, are_ends_run=are_ends_run)
    beyond = held if first.failed is None else first.failed[1]
    note = ""
    if not all(each.is_settled for each in found) or len(found) < len(lab.seeds):
        note = f"The budget ended before the search did: {rate:g} requests/s hold, and more may hold."
    elif first.failed is None:
        note = f"There is no limit up to {rate:g} requests/s."
    others = [trial for each in found[1:] for _, trial in each.probes]
    return answer_of(lab, candidate, bounds, held, near, beyond, note, others)


def answer_of(
    lab: Laboratory,
    candidate: Candidate,
    bounds: Bounds,
    held: Trial,
    near: Sequence[Trial],
    beyond: Trial,
    note: str,
    others: Sequence[Trial] = (),
) -> Answer:
    """Return the answer of a candidate that holds, as in the trial `held`.

    `near` are the trials about its largest rate, `beyond` the one in which a goal is missed, `held` where none is;
    `others` are those of other seeds.
    """
    return Answer(
        candidate,
        True,
        held.replicas,
        lab.load,
        bounds,
        held.bare(),
        tuple(trial.bare() for trial in (*near, *others)),
        beyond.worst,
        causes(beyond, candidate),
        moved(near, 1 + STEP_TIMES),
        moved(near, 1 - STEP_TIMES),
        note=note,
        load_words=lab.traffic.words(held.rate),
        excess=held.excess,
    )


def _without_rate(lab: Laboratory, candidate: Candidate) -> Answer:
    """Return the answer of a candidate for which no rate holds: it shows a run at the smallest rate."""
    answer = Answer(candidate, False, candidate.scenario.replicas, lab.load)
    if lab.is_spent:
        return replace(answer, note="The budget ended before a rate was found that holds.")
    rate = lab.traffic.rate / FARTHEST
    seen = lab.run(candidate, rate, piece=piece_of(lab), early_stop=False)
    return replace(
        answer,
        shown=seen.bare(),
        trials=(seen.bare(),),
        binding=seen.worst,
        shares=causes(seen, candidate),
        note=f"No rate holds: {described(seen)}, even at {rate:.3g} requests/s.",
        excess=seen.excess,
    )


def causes(trial: Trial, candidate: Candidate) -> Shares:
    """Return what the requests of a run's worst goal wait for; nothing without the run's records."""
    records = trial.all_records()
    return Shares({}) if records is None else shares(records, candidate, trial.worst)


# Find the fewest replicas for a load, simulated as a fleet behind its router, from what one replica carries on.

MOST_REPLICAS = 1024
_FEW = 8  # replicas: one more or less is no small step
_FIRST_FLEET_STEP = 1.06  # from the load, for so few
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
    return _fleet_answer(lab, candidate, found, trials, is_settled)


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


def _fleet_answer(
    lab: Laboratory, candidate: Candidate, found: int, trials: dict[int, Trial], is_settled: bool
) -> Answer:
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
        step=_FIRST_FLEET_STEP,
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
