"""The difference between percentiles of two series on the same requests, by the bootstrap.

Blocks are drawn, not values: neighbouring requests wait in the same queue, and a sample that tears them apart would be
too sure. Of 20 blocks that lie side by side, 20 are drawn with replacement (E. Carlstein, The use of subseries values
for estimating the variance of a general statistic from a stationary sequence, Annals of Statistics 14 (1986)), and the
interval is between the percentiles of what the samples give (B. Efron, R. Tibshirani, An Introduction to the Bootstrap
(1993), 13.3). Two series lose and keep the same blocks: what the requests do to both cancels out.

For one series `percentiles.percentile_interval` is the better choice. A difference has no ranks to lean on.
"""

import numpy as np
from numpy.typing import NDArray

from simulator.statistics.batch_means import BATCHES, LEAST
from simulator.statistics.intervals import Interval
from simulator.statistics.sums import Floats

RESAMPLES = 1_000
_MOST_VALUES = 2_000  # of a series that a sample's percentile may fall on, evenly by rank: the rest lies between these

Weights = NDArray[np.float64]


def bootstrap_difference(a: Floats, b: Floats, percent: float, *, level: float = 0.95, seed: int = 0) -> Interval:
    """A percentile of `a` less that of `b`, and its interval: the same requests in the same order in both.

    ValueError unless they are of equal length. It is no better than the percentiles themselves: where one of them has
    too few values (`percentile_interval`), so has the difference.
    """
    if len(a) != len(b):
        raise ValueError(f"pairs need as many values on both sides, not {len(a)} and {len(b)}")
    n = len(a)
    if not n:
        return Interval(np.nan, np.nan, np.nan, 0)
    value = float(np.percentile(a, percent)) - float(np.percentile(b, percent))
    if n < LEAST:
        return Interval(value, np.nan, np.nan, n)
    drawn = np.random.default_rng(seed).multinomial(BATCHES, np.full(BATCHES, 1 / BATCHES), RESAMPLES)
    weights = drawn.astype(np.float64)  # products of whole numbers: exact, whatever the order of their sums
    found = _percentiles(a, percent / 100, weights) - _percentiles(b, percent / 100, weights)
    low, high = np.percentile(found, (100 * (1 - level) / 2, 100 * (1 + level) / 2)).tolist()
    return Interval(value, min(low, value), max(high, value), n)


def _percentiles(values: Floats, p: float, weights: Weights) -> Floats:
    """The p-quantile of each sample, which holds block k `weights[sample, k]` times."""
    n = len(values)
    order = np.argsort(values, kind="stable")
    block = np.arange(n) * BATCHES // n
    wanted = p * (weights @ np.bincount(block, minlength=BATCHES).astype(np.float64))
    # Where samples put their percentiles: around its own rank, by as much as the shares of the blocks differ.
    shares = np.bincount(block[order[: max(1, round(p * n))]], minlength=BATCHES) / np.bincount(block)
    reach = 8 * float(shares.std()) / BATCHES**0.5 * n + BATCHES
    for first, last in ((max(0, int(p * n - reach)), min(n - 1, int(p * n + reach))), (0, n - 1)):
        ranks = np.unique(np.linspace(first, last, min(_MOST_VALUES, last - first + 1)).astype(np.int64))
        place = np.searchsorted(ranks, np.arange(n))  # of the first of these ranks that is no lower
        inside = place < len(ranks)
        cells = block[order][inside] * len(ranks) + place[inside]
        counts = np.bincount(cells, minlength=BATCHES * len(ranks)).reshape(BATCHES, len(ranks)).cumsum(axis=1)
        below = (weights @ counts.astype(np.float64) < wanted[:, None]).sum(axis=1)
        if (first == 0 or not (below == 0).any()) and (last == n - 1 or not (below == len(ranks)).any()):
            break
    return np.asarray(values[order][ranks[np.minimum(below, len(ranks) - 1)]], dtype=np.float64)
