"""Rates of earlier candidates, which shorten the search for the next one's."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from scenarios.plan.answer import Answer
from scenarios.plan.candidate import POLICY, Candidate
from scenarios.plan.trial import Trial

_FIRST_RATIO = 1.1  # short runs take the busiest stretch, and so find too little
_EXPENSIVE = 20.0  # times the price of a request elsewhere
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
        return price is not None and price > 0 and rate / price * _EXPENSIVE < self.best

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
