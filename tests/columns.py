"""Columns of records and of workloads from any sequence."""

from typing import Any

import numpy as np

from simulator.results.records import Floats, Ints
from simulator.workload import Workload


def as_floats(values: object) -> Floats:
    """A float column."""
    return np.asarray(values, dtype=np.float64)


def as_ints(values: object) -> Ints:
    """An integer column."""
    return np.asarray(values, dtype=np.int64)


def workload_of(
    arrival_s: Any, input_tokens: Any, output_tokens: Any, max_tokens: Any = None, priority: Any = 0, **more: Any
) -> Workload:
    """Requests of one class: sequences, or one number for all. The cap is the longest answer unless given."""
    arrival = as_floats(arrival_s)

    def column(values: Any) -> Ints:
        return np.broadcast_to(as_ints(values), len(arrival)).copy()

    outputs = column(output_tokens)
    cap = outputs.max(initial=1) if max_tokens is None else max_tokens
    return Workload(arrival, column(input_tokens), outputs, column(cap), column(priority), column(0), **more)
