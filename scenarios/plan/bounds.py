"""The uncertainty of a rate: its interval at 95 %, and whether two candidates can be told apart.

Two sources of doubt, by the traffic.

- Drawn traffic: each seed has its own largest rate. The interval is Student's over the logarithms of these, or the
  bracket of the search where all seeds have the same.
- A single trace: what the hour would have been like with other requests of its kind is asked of the trace itself.
  Its requests are cut, in order of arrival, into blocks, and blocks are drawn again with replacement (block bootstrap;
  Lahiri, Resampling Methods for Dependent Data, 2003). Each draw has its own percentiles at every rate that was run,
  with the same blocks everywhere; where they cross the limits, by a line through the rates, is the draw's largest rate.
  Its 2.5 % and 97.5 % quantiles, widened to the bracket of the search, are the interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from scenarios.plan.goal import Goal
from scenarios.plan.trial import Trial
from scenarios.random_draws import stream
from simulator.metrics.outcomes import ATTAINMENT
from simulator.results.records import Floats
from simulator.statistics import mean_interval

DRAWS = 400
BLOCKS = 40
_LEAST_IN_A_BLOCK = 5
_STRETCH = math.log(1.5)  # a draw's rate lies at most so far outside of the rates that were run
_MOST_EXCESS = 3.0  # far from the limit, excesses say little of where it is crossed
_STEEPNESS = (1.0, 40.0)  # of excess over the logarithm of the rate, beyond the rates that were run


@dataclass(frozen=True, slots=True)
class Bounds:
    """A rate with its interval at 95 %. `draws` are logarithms of rates, one a seed or one a draw of the bootstrap."""

    value: float
    low: float
    high: float
    draws: Floats = field(repr=False, default_factory=lambda: np.empty(0))
    paired_by_seed: bool = False

    def spanning(self, other: Bounds) -> Bounds:
        """Return these bounds, their interval widened to that of another way to see the same rate."""
        return replace(self, low=min(self.low, other.low), high=max(self.high, other.high))

    def times(self, factor: float) -> Bounds:
        """Return the bounds of a multiple."""
        ends = self.value * factor, self.low * factor, self.high * factor
        return Bounds(*ends, self.draws + math.log(factor), self.paired_by_seed)


def bounds_of_seeds(rates: Sequence[float]) -> Bounds:
    """Return the geometric mean of the seeds' rates, and Student's interval of its logarithm."""
    logs = np.log(np.asarray(rates))
    found = mean_interval(logs.tolist())
    ends = (found.mean, found.mean) if found.n < 2 else (found.low, found.high)
    value, low, high = map(math.exp, (found.mean, *ends))
    return Bounds(value, low, high, logs, True)


def bounds_of_trace(trials: Sequence[Trial], held: float, failed: float | None) -> Bounds:
    """Return the bounds from trials of one trace at several rates, of which `held` is the largest that holds."""
    known = _known(trials)
    if not known:
        return Bounds(held, held, held if failed is None else failed)
    requests = max((len(tail) for tail in known[0].tails), default=0)
    draws = _crossings(known, known[0].goals, _weights(requests))
    low, high = np.exp(np.quantile(draws, (0.025, 0.975))).tolist()
    return Bounds(held, min(low, held), max(high, held if failed is None else failed), draws)


def moved(trials: Sequence[Trial], factor: float) -> float | None:
    """Return the share by which the largest rate moves if every step takes `factor` times as long, from the same runs.

    By the law of scaling it is the rate at which limits as much tighter hold, divided by `factor`. None where the runs
    do not tell.
    """
    known = _known(trials)
    if len(known) < 2:
        return None
    goals, weights = known[0].goals, np.ones((1, 1))
    here = float(_crossings(known, goals, weights)[0])
    there = float(_crossings(known, [goal.scaled(factor) for goal in goals], weights)[0]) - math.log(factor)
    return math.exp(there - here) - 1


def crossing(trials: Sequence[Trial]) -> float | None:
    """Return the rate at which the excess crosses 0, between the runs that were made; None where they do not tell."""
    known = _known(trials)
    if len(known) < 2:
        return None
    return math.exp(float(_crossings(known, known[0].goals, np.ones((1, 1)))[0]))


def difference(one: Bounds, other: Bounds) -> tuple[float, float] | None:
    """Return the interval at 95 % of log(one / other), draw by draw; None where the two cannot be paired."""
    if len(one.draws) != len(other.draws) or len(one.draws) < 2:
        return None
    apart = one.draws - other.draws
    if one.paired_by_seed:
        found = mean_interval(apart.tolist())
        return found.low, found.high
    low, high = np.quantile(apart, (0.025, 0.975)).tolist()
    return low, high


def draws_of(goal: Goal, per_request: Floats) -> Floats:
    """Return a goal's value in each draw of a trace's blocks, from the values of its requests, in order of arrival."""
    return _redrawn(goal, per_request, _weights(len(per_request)))


def _known(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that ran to their end, by rate, each rate once."""
    found = {trial.rate / trial.replicas: trial for trial in trials if not trial.stopped}
    return [found[rate] for rate in sorted(found)]


def _weights(requests: int) -> Floats:
    """Draw the number of times that each block is taken: one row a draw, one column a block."""
    blocks = max(min(BLOCKS, requests // _LEAST_IN_A_BLOCK), 1)
    drawn = stream(0, "", "plan bootstrap").multinomial(blocks, np.full(blocks, 1 / blocks), DRAWS)
    return drawn.astype(np.float64)


def _crossings(trials: Sequence[Trial], goals: Sequence[Goal], weights: Floats) -> Floats:
    """Return, for each draw, the logarithm of the rate at which the excess over all goals crosses 0."""
    rates = np.log([trial.rate / trial.replicas for trial in trials])
    excess = np.stack([_excesses(trial, goals, weights) for trial in trials])  # one row a trial, one column a draw
    excess = np.clip(excess, -_MOST_EXCESS, _MOST_EXCESS)
    replicas = math.log(trials[0].replicas)
    return np.array([_crossing(rates, column) for column in excess.T]) + replicas


def _crossing(rates: Floats, excess: Floats) -> float:
    """Return where the last stretch from below 0 to above it crosses 0."""
    below = np.flatnonzero(excess <= 0)
    last = len(rates) - 1
    if len(below) and below[-1] < last:
        i = int(below[-1])
        share = -excess[i] / (excess[i + 1] - excess[i])
        return float(rates[i] + share * (rates[i + 1] - rates[i]))
    at = last if len(below) else 0
    spread = rates[last] - rates[0]
    slope = (excess[last] - excess[0]) / spread if spread > 0 else _STEEPNESS[0]
    slope = min(max(float(slope), _STEEPNESS[0]), _STEEPNESS[1])
    return float(rates[at] + np.clip(-excess[at] / slope, -_STRETCH, _STRETCH))


def _excesses(trial: Trial, goals: Sequence[Goal], weights: Floats) -> Floats:
    """Return the largest excess over the goals, one entry a draw."""
    worst = np.full(len(weights), -math.inf)
    for goal, value, tail in zip(goals, trial.values, trial.tails, strict=True):
        drawn = _redrawn(goal, tail, weights) if len(tail) else np.array([value])
        worst = np.maximum(worst, [goal.excess(None if each is None else float(each)) for each in drawn])
    return worst


def _redrawn(goal: Goal, per_request: Floats, weights: Floats) -> Floats:
    """Return the goal's value in each draw."""
    counts = np.flatnonzero(~np.isnan(per_request))
    blocks = weights.shape[1]
    block = counts * blocks // max(len(per_request), 1)
    values = per_request[counts]
    if not len(values):
        return np.full(len(weights), np.nan)
    if goal.metric == ATTAINMENT or goal.quantile is None:
        sums, numbers = np.bincount(block, values, blocks), np.bincount(block, minlength=blocks)
        return (weights @ sums) / np.maximum(weights @ numbers, 1)
    total = weights @ np.bincount(block, minlength=blocks)
    # Only the largest values can be the percentile: sorted down, the first behind which enough of a draw lies.
    keep = min(len(values), math.ceil((1 - goal.quantile) * len(values)) * 4 + 100)
    order = np.argpartition(values, len(values) - keep)[len(values) - keep :] if keep < len(values) else np.arange(keep)
    order = order[np.argsort(-values[order], kind="stable")]
    behind = np.cumsum(weights[:, block[order]], axis=1)
    place = np.minimum((behind <= ((1 - goal.quantile) * total)[:, None]).sum(axis=1), keep - 1)
    drawn: Floats = values[order][place]
    return drawn
