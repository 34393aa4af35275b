"""The largest rate of a candidate: short runs say where to look, whole runs find it and say how sure it is.

The bracket is narrowed as far as that says something: to a part of the interval that the requests leave, which its own
runs tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from scenarios.plan.answer import Answer
from scenarios.plan.bottleneck import Shares, shares
from scenarios.plan.bounds import Bounds, bounds_of_seeds, bounds_of_trace, moved
from scenarios.plan.candidate import Candidate
from scenarios.plan.experience import Experience
from scenarios.plan.goal import OF_LOAD, Goal
from scenarios.plan.search import Found, largest, rounded
from scenarios.plan.trial import Laboratory, Trial
from scenarios.plan.wording import described

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
"""By how much all step times may be wrong, when it is asked what becomes of the answer."""


@dataclass(frozen=True, slots=True)
class ShortRate:
    """The largest rate of a candidate's short runs; None where none holds."""

    short: float | None


def find_rate(
    lab: Laboratory,
    candidate: Candidate,
    *,
    seeds: Sequence[int],
    experience: Experience,
    guess: float | None = None,
    short_run: ShortRate | None = None,
    load: float | None = None,
) -> Answer:
    """The largest rate of a candidate. `guess` is a rate to begin with, or else short runs say where, which are made
    unless `short_run` has them; headroom is held against `load`.
    """
    asked = lab.traffic.rate if load is None else load
    short = None
    if guess is None:
        short = (short_run or ShortRate(short_rate(lab, candidate))).short
        if short is None:
            return _without_rate(lab, candidate, asked)
    alike = None if short is None else experience.alike(candidate, short)
    start = guess if short is None else short * experience.ratio(candidate)
    assert start is not None, "without a guess, there is a short rate"
    is_expensive = experience.is_expensive(candidate, start)
    share = _EXPENSIVE_DRAWN if lab.traffic.is_random else _EXPENSIVE
    search = _Search(lab, candidate, 1 + (share if is_expensive else TOLERANCE))
    if alike is None:
        first = search.whole(start, seeds[0], _FIRST_STEP, slope=SLOPE)
    else:  # its own bracket, if it is the same
        bracket = alike.failed / alike.held
        again = replace(search, narrowest=max(bracket, search.narrowest))
        first = again.whole(alike.held, seeds[0], bracket)
    if first.held is None:
        return _without_rate(lab, candidate, asked)
    if alike is not None and len(seeds) == 1 and alike.is_in([trial for _, trial in first.probes]):
        # What lies farther out bounds the interval alone: there the runs of the one stand for the other's.
        return replace(alike.answer, candidate=candidate)
    found = [first]
    for seed in seeds[1:]:
        other = search.whole(first.held[0], seed, 1 + 2 * TOLERANCE)
        if other.held is None:
            break
        found.append(other)
    answer = _answer(lab, candidate, asked, found, len(seeds), are_ends_run=not is_expensive)
    experience.learn(answer, short, first.held[0], None if first.failed is None else first.failed[0])
    return answer


@dataclass(frozen=True, slots=True)
class _Search:
    """Whole runs of a candidate, between which its largest rate lies; `narrowest` is the bracket that will do."""

    lab: Laboratory
    candidate: Candidate
    narrowest: float

    def whole(self, start: float, seed: int, step: float, slope: float | None = None) -> Found[Trial]:
        """Search from a rate on, with a seed."""
        lab, rate = self.lab, self.lab.traffic.rate
        tolerance: float | Callable[[Sequence[tuple[float, Trial]]], float] = self.narrowest - 1 + 1e-9
        if not lab.traffic.is_random:
            tolerance = self._tolerance
        return largest(
            lambda each: lab.run(self.candidate, each, seed=seed, early_stop=False),
            start,
            tolerance=tolerance,
            step=step,
            slope=slope,
            least=rate / FARTHEST,
            most=rate * FARTHEST,
            go_on=lambda: not lab.is_spent,
            too_little=too_little,
        )

    def _tolerance(self, probes: Sequence[tuple[float, Trial]]) -> float:
        """A part of the interval that one trace leaves, as far as its runs so far tell."""
        bounds = bounds_of_trace([trial for _, trial in probes], probes[-1][0], None)
        part = min(_OF_INTERVAL * math.log(bounds.high / bounds.low), _WIDEST)
        return max(part, self.narrowest - 1 + 1e-9)


def short_rate(lab: Laboratory, candidate: Candidate) -> float | None:
    """The largest rate in short runs, to a tenth; None where there is none down to a small part of the scenario's."""
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
    whole = len(lab.traffic.workload(lab.traffic.rate, lab.traffic.scenario.seed))
    return PIECE if whole > 2 * PIECE else 0


def too_little(trial: Trial) -> bool:
    """Return whether a run fails for want of load alone: every goal that it misses grows with the load."""
    missed = trial.missed
    return bool(missed) and all(goal.at_least and goal.metric in OF_LOAD for goal in missed)


def _trace_bounds(
    lab: Laboratory, candidate: Candidate, found: Found[Trial], seed: int, *, are_ends_run: bool
) -> tuple[Bounds, tuple[Trial, ...]]:
    """The bounds of one trace, and the trials that they rest on. With `are_ends_run`, where an end lies beyond the
    rates that were run, one more run is made there, so that no end is a guess."""
    assert found.held is not None
    trials = [trial for _, trial in found.probes]
    failed = None if found.failed is None else found.failed[0]
    bounds = bounds_of_trace(trials, found.held[0], failed)
    rates = [trial.rate for trial in trials]
    beyond = max(_BEYOND, (bounds.high / bounds.low) ** _OF_INTERVAL)
    outside = [end for end in (bounds.low, bounds.high) if not min(rates) / beyond <= end <= max(rates) * beyond]
    if not are_ends_run or failed is None:
        return bounds, tuple(trials)
    for end in outside:
        if not lab.is_spent:
            trials.append(lab.run(candidate, rounded(end), seed=seed, early_stop=False))
    if outside:
        bounds = bounds_of_trace(trials, found.held[0], failed)
    return bounds, tuple(trials)


def _answer(
    lab: Laboratory,
    candidate: Candidate,
    load: float,
    found: Sequence[Found[Trial]],
    seeds: int,
    *,
    are_ends_run: bool,
) -> Answer:
    first = found[0]
    assert first.held is not None
    held = first.held[1]
    trials = tuple(trial for _, trial in first.probes)
    rates = [each.held[0] for each in found if each.held is not None]
    failed = None if first.failed is None else first.failed[0]
    if len(found) > 1:
        bounds = bounds_of_seeds(rates)
    else:
        bounds, trials = _trace_bounds(lab, candidate, first, held.seed, are_ends_run=are_ends_run)
    beyond = held if first.failed is None else first.failed[1]
    note = ""
    if not all(each.is_settled for each in found) or len(found) < seeds:
        note = f"The budget ended before the search did: {rates[0]:g} requests/s hold, more may."
    elif failed is None:
        note = f"There is no limit up to {rates[0]:g} requests/s."
    others = [trial for each in found[1:] for _, trial in each.probes]
    return answer_of(candidate, load, bounds, held, trials, beyond, note, others)


def answer_of(
    candidate: Candidate,
    load: float,
    bounds: Bounds,
    held: Trial,
    near: Sequence[Trial],
    beyond: Trial,
    note: str,
    others: Sequence[Trial] = (),
) -> Answer:
    """The answer of a candidate that holds, as in the trial `held`.

    `near` are the trials about its largest rate, `beyond` the one in which a goal is missed, `held` where none is;
    `others` are those of other seeds.
    """
    return Answer(
        candidate,
        True,
        held.replicas,
        load,
        bounds,
        held.bare(),
        tuple(trial.bare() for trial in (*near, *others)),
        beyond.worst,
        causes(beyond, candidate, beyond.worst),
        moved(near, 1 + STEP_TIMES),
        moved(near, 1 - STEP_TIMES),
        note=note,
        excess=held.excess,
    )


def _without_rate(lab: Laboratory, candidate: Candidate, load: float) -> Answer:
    """The answer of a candidate for which no rate holds: what the smallest that was tried misses, and by what."""
    replicas = candidate.scenario.replicas
    if lab.is_spent:
        return Answer(candidate, False, replicas, load, note="The budget ended before a rate was found that holds.")
    rate = lab.traffic.rate / FARTHEST
    seen = lab.run(candidate, rate, piece=piece_of(lab), early_stop=False)
    return Answer(
        candidate,
        False,
        replicas,
        load,
        shown=seen.bare(),
        trials=(seen.bare(),),
        binding=seen.worst,
        shares=causes(seen, candidate, seen.worst),
        note=f"No rate holds: {described(seen)}, even at {rate:.3g} requests/s.",
        excess=seen.excess,
    )


def causes(trial: Trial, candidate: Candidate, binding: Goal) -> Shares:
    """Return for what the requests that bind a goal wait in a run; nothing without its records."""
    return Shares({}) if trial.records is None else shares(trial.records, candidate, binding)
