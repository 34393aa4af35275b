"""Sums of long columns, of which a piece is in memory at a time, as numpy would add up the whole."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

AT_ONCE = 1 << 17  # numbers that numpy itself adds up; at least 128


def pairwise_sum(count: int, part: Callable[[slice], Floats], start: int = 0) -> float:
    """The sum of `count` floats from `start` on, of which `part` gives a stretch: that of `numpy.sum`, to the last bit.

    numpy adds up two halves by themselves, the first of a multiple of eight numbers, until 128 are left: pairwise
    summation (N. J. Higham, The Accuracy of Floating Point Summation, SIAM J. Sci. Comput. 14 (1993) 783-799).
    """
    if count <= AT_ONCE:
        return float(part(slice(start, start + count)).sum())
    half = count // 2
    half -= half % 8
    return pairwise_sum(half, part, start) + pairwise_sum(count - half, part, start + half)
