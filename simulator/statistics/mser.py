"""Where the warm-up of a series ends: MSER-5.

A run starts empty, so its first values are not those of the steady state. The rule cuts off as many as make the
standard error of the mean of the rest smallest (K. P. White, An effective truncation heuristic for bias reduction in
simulation output, Simulation 69 (1997)), over means of five values each (K. P. White, M. J. Cobb, S. C. Spratt, A
comparison of five steady-state truncation heuristics for simulation, WSC 2000).
"""

from dataclasses import dataclass

import numpy as np

from simulator.statistics.sums import Floats

RULE = "MSER-5"
BATCH = 5  # values that are averaged before the rule looks at them
LEAST = 10  # batches; fewer say nothing


@dataclass(frozen=True, slots=True)
class Cut:
    """The number of values to leave out at the start.

    `settled` is False where no steady state was found, and nothing is cut: the values are too few, or still change in
    the second half, as those of a server do whose queue only grows.
    """

    count: int
    settled: bool


def mser5(values: Floats) -> Cut:
    """Where the warm-up of a series ends; NaN values are not allowed.

    The statistic of a cut at d of m batch means is the sum of the squares of the rest about its mean over (m - d)^2,
    and the cut is where it is least, of equals the first. Cuts up to the middle are looked at: a minimum there, at the
    very end of what may be cut, is none.
    """
    batches = len(values) // BATCH
    if batches < LEAST:
        return Cut(0, settled=False)
    means = values[: batches * BATCH].reshape(batches, BATCH).mean(axis=1)
    means = means - means.mean()  # sums of squares lose fewer digits
    left = np.arange(batches, 0, -1)
    total, squares = (np.cumsum(each[::-1])[::-1] for each in (means, means * means))
    statistic = (squares - total * total / left) / (left * left)
    middle = batches // 2
    place = int(np.argmin(statistic[: middle + 1]))
    return Cut(0, settled=False) if place == middle else Cut(place * BATCH, settled=True)
