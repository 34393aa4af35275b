"""Gaps added up until they reach a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from simulator.workload import Floats

Draw = Callable[[int], Floats]
"""The next so many gaps."""


def sums_beyond(
    gaps: Draw, until: float, expected: int, cv: float, first: Floats | None = None, most: int | None = None
) -> Floats:
    """Cumulative sums of gaps, at least up to the first one that is not below `until`, or up to `most` of them."""
    parts = [] if first is None else [first]
    count = expected + math.ceil(5.0 * cv * math.sqrt(expected)) + 16
    while True:
        parts.append(gaps(count if most is None else min(count, most)))
        sums = np.cumsum(np.concatenate(parts))  # all over again: the same to the last bit however often it grows
        if sums[-1] >= until or (most is not None and len(sums) >= most):
            return sums
        count = len(sums)
