"""Seconds that lie on a line, as those of a run of decode steps do: the arithmetic that cost models share."""

import numpy as np

VECTOR_FROM = 64  # steps from which an array is faster than a list comprehension; the numbers are the same


def affine_run(first: float, slope: float, start: int, step: int, repeat: int) -> list[float]:
    """`first + slope * x` for x = start, start + step, ..., `repeat` of them; each rounded as Python rounds it.

    Both paths use IEEE 754 doubles and fuse no multiplication with an addition: they agree to the bit below x = 2**53.
    """
    if repeat == 1:
        return [first + slope * start]
    stop = start + step * repeat
    if repeat < VECTOR_FROM:
        return [first + slope * x for x in range(start, stop, step)]
    run: list[float] = (first + slope * np.arange(start, stop, step)).tolist()
    return run
