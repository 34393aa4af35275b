"""When a source that switches does so: between on and off, or between the states of an MMPP."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from scenarios.generate.sums import sums_beyond
from scenarios.schema.mmpp import Mmpp
from scenarios.schema.workload import OnOff
from simulator.errors import InputError
from simulator.workload import Floats

Stream = Callable[[str], np.random.Generator]

MOST_PERIODS = 20_000_000


def switches(config: OnOff | Mmpp, stream: Stream, until_s: float) -> tuple[Floats, Floats]:
    """The times of the switches, up to the first after `until_s`, and the factor on the rate before each of them."""
    return _on_and_off(config, stream, until_s) if isinstance(config, OnOff) else _jumps(config, stream, until_s)


def dispersion(config: Mmpp) -> float:
    """Index of dispersion of the counts in the limit of long times: 1 + 2 pi L D L 1 / (pi L 1).

    L has the rates on its diagonal, D = (1 pi - Q)^-1 - 1 pi is the deviation matrix of the states (Fischer and
    Meier-Hellstern, The Markov-modulated Poisson process cookbook, Performance Evaluation 18 (1993) 149-171).
    """
    shares, rates = config.time_shares(), config.rate * config.factors
    ones = np.ones((len(rates), 1)) * shares
    deviation = np.linalg.inv(ones - config.generator()) - ones
    found = float(1 + 2 * (shares * rates) @ deviation @ rates / (shares @ rates))
    return max(1.0, found)  # rounding, where lengths of states lie many orders of magnitude apart


def _on_and_off(config: OnOff, stream: Stream, until_s: float) -> tuple[Floats, Floats]:
    """The times at which the source switches, up to the first after until_s; and the factor before each switch."""
    rng = stream("periods")
    expected = 2 * until_s / (config.on_s + config.off_s)
    _check_periods("onoff", "on and off periods", "longer on_s and off_s", expected, until_s)
    starts_on = bool(rng.random() < config.on_s / (config.on_s + config.off_s))
    means = np.array([config.on_s, config.off_s] if starts_on else [config.off_s, config.on_s])

    def periods(count: int) -> Floats:
        drawn: Floats = rng.standard_exponential((count, 2)) * means
        return drawn.ravel()

    switch_s = sums_beyond(periods, until_s, math.ceil(expected / 2), 1.0)
    return switch_s, np.where(np.arange(len(switch_s)) % 2 == 0, float(starts_on), float(not starts_on))


def _jumps(config: Mmpp, stream: Stream, until_s: float) -> tuple[Floats, Floats]:
    """The times at which the state changes, up to the first after until_s; and the factor before each change.

    States and the lengths of their stays have streams of their own, so that however many are drawn at a time, the first
    are the same.
    """
    shares, means_s = config.time_shares(), config.means_s
    expected = until_s * float(np.sum(shares / means_s))
    _check_periods("mmpp", "states", "longer states", expected, until_s)
    choices, stays = stream("states"), stream("periods")
    states = [int(np.searchsorted(np.cumsum(shares)[:-1], choices.random(), side="right"))]
    edges = np.cumsum(config.next_state(), axis=1)[:, :-1]

    def lengths(count: int) -> Floats:
        first = len(states) - 1
        uniform = choices.random(count)
        after = np.transpose([np.searchsorted(row, uniform, side="right") for row in edges])
        for following in after.tolist():
            states.append(following[states[-1]])
        drawn: Floats = stays.standard_exponential(count) * means_s[states[first : first + count]]
        return drawn

    change_s = sums_beyond(lengths, until_s, math.ceil(expected), 1.0)
    return change_s, config.factors[states[: len(change_s)]]


def _check_periods(process: str, what: str, longer: str, expected: float, until_s: float) -> None:
    if expected > MOST_PERIODS:
        raise InputError(
            f"{process}: about {expected:.3g} {what} in {until_s:g} s, at most {MOST_PERIODS} are allowed",
            hint=f"{longer}, or a shorter workload",
        )
