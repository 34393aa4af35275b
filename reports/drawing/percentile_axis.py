"""The percentile axis: each further nine takes as much height as the one before, so that p90 to p99.9 can be read.

It is the axis of Gil Tene's HdrHistogram plots (https://hdrhistogram.github.io/HdrHistogram): a linear one would leave
the requests that an SLO is about the topmost hundredth.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axis import Axis, XAxis

from simulator.results.records import Floats

TICKS = (0.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 99.99)


def height(percent: Floats) -> Floats:
    """Nines of a percentile: 0 at p0, 1 at p90, 2 at p99, and no more than 4.3."""
    return np.asarray(-np.log10(np.maximum(1.0 - percent / 100.0, 5e-5)))


def highest(samples: int) -> float:
    """The highest percentile that so many samples have one value beyond."""
    return 100.0 * (1.0 - 1.0 / max(samples, 1))


def tail_axis(axis: Axis, top: float) -> None:
    """Ticks and ends of an axis of `height`, up to the percentile `top`."""
    ticks = [tick for tick in TICKS if tick <= top]
    axis.set_ticks(height(np.array(ticks)).tolist(), [f"{tick:g}" for tick in ticks])
    ends = (0.0, float(height(np.array(top))) * 1.01)
    if isinstance(axis, XAxis):
        axis.axes.set_xlim(*ends)
    else:
        axis.axes.set_ylim(*ends)
