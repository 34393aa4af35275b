"""The largest rate of a candidate: short runs say where to look, whole runs find it and say how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scenarios.plan.answer import Answer
from scenarios.plan.bottleneck import Shares, shares
from scenarios.plan.bounds import Bounds, bounds_of_seeds, bounds_of_trace, moved
from scenarios.plan.candidate import Candidate
from scenarios.plan.goal import OF_LOAD, Goal
from scenarios.plan.search import Found, largest, rounded
from scenarios.plan.trial import Laboratory, Trial
from scenarios.plan.wording import described

PIECE = 2000
"""Requests of a short run: enough for a 99th percentile to be within some tens of percent."""

TOLERANCE = 0.02
"""The bracket's ends differ by this share at most: a fraction of what the interval adds."""

_SHORT_TOLERANCE = 0.1
FARTHEST = 4096.0  # factor between the scenario's rate and the smallest or largest that is tried
_FIRST_STEP = 1.08  # from the guess of the short runs
_DEAR = 20.0  # times the price of a request elsewhere
_BEYOND = 1.03  # an end of an interval lies at most this factor outside of the rates that were run
_FIRST_RATIO = 1.1  # short runs take the busiest stretch, and so find too little

STEP_TIMES = 0.05
"""By how much all step times may be wrong, when it is asked what becomes of the answer."""


@dataclass(slots=True)
class Experience:
    """What earlier candidates teach about later ones: the rate of whole runs over that of short ones, by policy."""

    ratios: dict[str, float] = field(default_factory=dict)
    best: float = 0.0  # requests per second and USD per hour, the most so far

    def ratio(self, candidate: Candidate) -> float:
        """The ratio to expect: of the policy, or else the latest of another."""
        known = self.ratios.get(candidate.scenario.engine.policy)
        return known if known is not None else next(reversed(self.ratios.values()), _FIRST_RATIO)


def _tolerance(experience: Experience, candidate: Candidate, rate: float) -> float:
    """The width of the bracket: wide for a candidate whose requests cost many times those of another."""
    price = candidate.usd_per_hour(candidate.scenario.replicas)
    far = price is not None and price > 0 and rate / price * _DEAR < experience.best
    return _SHORT_TOLERANCE if far else TOLERANCE


def find_rate(
    lab: Laboratory,
    candidate: Candidate,
    *,
    seeds: Sequence[int],
    experience: Experience,
    guess: float | None = None,
    load: float | None = None,
) -> Answer:
    """The largest rate of a candidate. `guess` is a rate to begin with; headroom is held against `load`."""
    asked = lab.traffic.rate if load is None else load
    start, short = guess, None
    if start is None:
        short = short_rate(lab, candidate)
        start = None if short is None else short * experience.ratio(candidate)
    if start is None:
        return _without_rate(lab, candidate, asked)
    tolerance = _tolerance(experience, candidate, start)
    found = [_search(lab, candidate, start, seeds[0], _FIRST_STEP, tolerance)]
    first = found[0]
    if first.held is None:
        return _without_rate(lab, candidate, asked)
    if short is not None:
        experience.ratios[candidate.scenario.engine.policy] = first.held[0] / short
    for seed in seeds[1:]:
        again = _search(lab, candidate, first.held[0], seed, 1 + 2 * tolerance, tolerance)
        if again.held is None:
            break
        found.append(again)
    price = candidate.usd_per_hour(candidate.scenario.replicas)
    if price:
        experience.best = max(experience.best, first.held[0] / price)
    return _answer(lab, candidate, asked, found, len(seeds))


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
    """Whether a run fails for want of load alone: every goal that it misses grows with the load."""
    missed = trial.missed
    return bool(missed) and all(goal.at_least and goal.metric in OF_LOAD for goal in missed)


def _search(
    lab: Laboratory, candidate: Candidate, start: float, seed: int, step: float, tolerance: float
) -> Found[Trial]:
    rate = lab.traffic.rate
    return largest(
        lambda each: lab.run(candidate, each, seed=seed, early_stop=False),
        start,
        tolerance=tolerance,
        step=step,
        least=rate / FARTHEST,
        most=rate * FARTHEST,
        go_on=lambda: not lab.is_spent,
        too_little=too_little,
    )


def _trace_bounds(
    lab: Laboratory, candidate: Candidate, found: Found[Trial], seed: int
) -> tuple[Bounds, tuple[Trial, ...]]:
    """The bounds of one trace, and the trials that they rest on: where an end lies beyond the rates that were run, one
    more run is made there, so that no end is a guess."""
    assert found.held is not None
    trials = [trial for _, trial in found.probes]
    failed = None if found.failed is None else found.failed[0]
    bounds = bounds_of_trace(trials, found.held[0], failed)
    rates = [trial.rate for trial in trials]
    outside = [end for end in (bounds.low, bounds.high) if not min(rates) / _BEYOND <= end <= max(rates) * _BEYOND]
    for end in outside if failed is not None else ():
        if not lab.is_spent:
            trials.append(lab.run(candidate, rounded(end), seed=seed, early_stop=False))
    if outside:
        bounds = bounds_of_trace(trials, found.held[0], failed)
    return bounds, tuple(trials)


def _answer(lab: Laboratory, candidate: Candidate, load: float, found: Sequence[Found[Trial]], seeds: int) -> Answer:
    first = found[0]
    assert first.held is not None
    held = first.held[1]
    trials = tuple(trial for _, trial in first.probes)
    rates = [each.held[0] for each in found if each.held is not None]
    failed = None if first.failed is None else first.failed[0]
    if len(found) > 1:
        bounds = bounds_of_seeds(rates)
    else:
        bounds, trials = _trace_bounds(lab, candidate, first, held.seed)
    beyond = held if first.failed is None else first.failed[1]
    note = ""
    if not all(each.is_settled for each in found) or len(found) < seeds:
        note = f"The budget ended before the search did: {rates[0]:g} requests/s hold, more may."
    elif failed is None:
        note = f"There is no limit up to {rates[0]:g} requests/s."
    return answer_of(candidate, load, bounds, held, trials, beyond, note)


def answer_of(
    candidate: Candidate, load: float, bounds: Bounds, held: Trial, near: Sequence[Trial], beyond: Trial, note: str
) -> Answer:
    """The answer of a candidate that holds, as in the trial `held`.

    `near` are the trials about its largest rate, `beyond` the one in which a goal is missed, `held` where none is.
    """
    return Answer(
        candidate,
        True,
        held.replicas,
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
    """What the requests that bind a goal wait for in a run; nothing without its records."""
    return Shares({}) if trial.records is None else shares(trial.records, candidate, binding)
