"""The error of the mean of one long series whose values are correlated: nonoverlapping batch means.

The series is cut into 20 batches, whose means are nearly independent if each is long enough; between 10 and 30 are
enough whatever the length (B. Schmeiser, Batch size effects in the analysis of simulation output, Operations Research
30 (1982)). What correlation is left between neighbours widens the interval by sqrt((1 + r) / (1 - r)), with r the lag-1
correlation of the batch means, held within 0 and 0.8 (A. Tafazzoli, J. R. Wilson, Skart: a skewness- and
autoregression-adjusted batch-means procedure for simulation analysis, IIE Transactions 43 (2011)).
"""

import math
from dataclasses import dataclass

from simulator.statistics.intervals import t_quantile
from simulator.statistics.sums import Floats

BATCHES = 20
LEAST = 2 * BATCHES  # values; fewer tell nothing of their correlation
_MOST_CORRELATION = 0.8


@dataclass(frozen=True, slots=True)
class BatchError:
    """The standard error of the mean of a series, and its degrees of freedom."""

    standard: float
    freedom: int

    def half_width(self, level: float) -> float:
        """Half the width of the two-sided interval at this level."""
        return t_quantile((1 + level) / 2, self.freedom) * self.standard


def batch_error(values: Floats) -> BatchError | None:
    """How far the mean of a series may be off, by its batch means; None for fewer than `LEAST` values.

    What does not divide by 20 is left out at the start.
    """
    size = len(values) // BATCHES
    if len(values) < LEAST:
        return None
    means = values[len(values) - size * BATCHES :].reshape(BATCHES, size).mean(axis=1)
    deviations = means - means.mean()
    squares = float(deviations @ deviations)
    if squares <= 0.0:
        return BatchError(0.0, BATCHES - 1)
    correlation = float(deviations[1:] @ deviations[:-1]) / squares
    correlation = min(max(correlation, 0.0), _MOST_CORRELATION)
    widened = (1 + correlation) / (1 - correlation)
    return BatchError(math.sqrt(squares / (BATCHES - 1) / BATCHES * widened), BATCHES - 1)
