"""The Markov-modulated Poisson process: a Poisson process whose rate jumps between states."""

import math
from typing import Annotated, Literal, Self

import numpy as np
from annotated_types import doc
from pydantic import Field, model_validator

from scenarios.schema.arrival import Arrival, Stream, check_periods, sums_beyond
from simulator.workload import Floats

MOST_STATES = 64

State = Annotated[
    tuple[Annotated[float, Field(ge=0, le=1e6)], Annotated[float, Field(ge=1e-6, le=1e9)]], Field(strict=False)
]
Weights = Annotated[tuple[Annotated[float, Field(ge=0, le=1e9)], ...], Field(strict=False)]


class Mmpp(Arrival):
    """Poisson at `rate` x the factor of the present state, `states: [[factor, mean_s], ...]` (MMPP).

    A state lasts an exponential time of mean `mean_s`; the next one is any other, all alike unless `transitions` weighs
    them. The long-run rate is rate x the mean factor over time. The process is met in its steady state. Its clock is
    real time, so a `profile` changes the rate and not the states. `onoff` is `states: [[1, on_s], [0, off_s]]`.
    """

    process: Annotated[Literal["mmpp"], doc("Poisson with a rate that jumps between states")]
    states: Annotated[
        tuple[State, ...],
        Field(strict=False, min_length=2, max_length=MOST_STATES),
        doc("states, each [factor on the rate, mean duration in s]"),
    ]
    transitions: Annotated[
        Annotated[tuple[Weights, ...], Field(strict=False)] | None,
        doc("weights of the next state, one row for each state, with 0 for itself; null: all others equally likely"),
    ] = None

    @property
    def factors(self) -> Floats:
        """The factor of each state."""
        return np.array([factor for factor, _ in self.states])

    @property
    def means_s(self) -> Floats:
        """The mean length of each state."""
        return np.array([mean_s for _, mean_s in self.states])

    def next_state(self) -> Floats:
        """The probability of each state after each, a row a state."""
        weights = 1.0 - np.eye(len(self.states)) if self.transitions is None else np.array(self.transitions)
        found: Floats = weights / weights.sum(axis=1, keepdims=True)
        return found

    def generator(self) -> Floats:
        """The generator matrix Q: rates of change from each state to each, a row a state."""
        rates: Floats = (self.next_state() - np.eye(len(self.states))) / self.means_s[:, None]
        return rates

    def time_shares(self) -> Floats:
        """The share of time in each state: the share of its visits, nu = nu P, times their mean length."""
        count = len(self.states)
        system = np.vstack((self.next_state().T - np.eye(count), np.ones(count)))
        visits = np.clip(np.linalg.lstsq(system, np.append(np.zeros(count), 1.0))[0], 0.0, None)
        shares: Floats = visits * self.means_s / (visits @ self.means_s)
        return shares

    @property
    def mean_rate(self) -> float:
        return self.rate * float(self.time_shares() @ self.factors)

    @property
    def variation(self) -> float:
        return math.sqrt(self.dispersion())

    def dispersion(self) -> float:
        """Index of dispersion of the counts in the limit of long times: 1 + 2 pi L D L 1 / (pi L 1).

        L has the rates on its diagonal, D = (1 pi - Q)^-1 - 1 pi is the deviation matrix of the states (Fischer and
        Meier-Hellstern, The Markov-modulated Poisson process cookbook, Performance Evaluation 18 (1993) 149-171).
        """
        shares, rates = self.time_shares(), self.rate * self.factors
        ones = np.ones((len(rates), 1)) * shares
        deviation = np.linalg.inv(ones - self.generator()) - ones
        found = float(1 + 2 * (shares * rates) @ deviation @ rates / (shares @ rates))
        return max(1.0, found)  # rounding, where lengths of states lie many orders of magnitude apart

    def switches(self, stream: Stream, until_s: float) -> tuple[Floats, Floats]:
        # States and the lengths of their stays have streams of their own, so that however many are drawn at a time, the
        # first are the same.
        shares, means_s = self.time_shares(), self.means_s
        expected = until_s * float(np.sum(shares / means_s))
        check_periods("mmpp", "states", "longer states", expected, until_s)
        choices, stays = stream("states"), stream("periods")
        states = [int(np.searchsorted(np.cumsum(shares)[:-1], choices.random(), side="right"))]
        edges = np.cumsum(self.next_state(), axis=1)[:, :-1]

        def lengths(count: int) -> Floats:
            first = len(states) - 1
            uniform = choices.random(count)
            after = np.transpose([np.searchsorted(row, uniform, side="right") for row in edges])
            for following in after.tolist():
                states.append(following[states[-1]])
            drawn: Floats = stays.standard_exponential(count) * means_s[states[first : first + count]]
            return drawn

        change_s = sums_beyond(lengths, until_s, math.ceil(expected), 1.0)
        return change_s, self.factors[states[: len(change_s)]]

    @model_validator(mode="after")
    def _states_make_a_process(self) -> Self:
        count = len(self.states)
        if not any(factor > 0 for factor, _ in self.states):
            raise ValueError("states: at least one factor must be above 0")
        if self.transitions is None:
            return self
        if len(self.transitions) != count or any(len(row) != count for row in self.transitions):
            raise ValueError(f"transitions must be {count} rows of {count} weights, one for each of the states")
        for index, row in enumerate(self.transitions):
            if row[index] != 0 or not any(row):
                raise ValueError(f"transitions: row {index + 1} must be 0 for staying, and above 0 for another state")
        if not _connected(np.array(self.transitions) > 0):
            raise ValueError("transitions: every state must lead to every other, at once or through others")
        return self


def _connected(leads: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> bool:
    """Return whether every state can be reached from every other."""
    reached = leads | np.eye(len(leads), dtype=np.bool_)
    for _ in range(len(leads)):
        reached = (reached.astype(np.int64) @ reached.astype(np.int64)) > 0
        if reached.all():
            return True
    return bool(reached.all())


PROCESS = Mmpp
