"""Columns of records from any sequence."""

import numpy as np

from simulator.results.records import Floats, Ints


def as_floats(values: object) -> Floats:
    """A float column."""
    return np.asarray(values, dtype=np.float64)


def as_ints(values: object) -> Ints:
    """An integer column."""
    return np.asarray(values, dtype=np.int64)
