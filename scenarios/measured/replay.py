"""A log as a workload: the arrivals and the lengths that the server met."""

from __future__ import annotations

import numpy as np

from scenarios.measured.measured_run import MeasuredRun
from simulator.errors import InputError
from simulator.workload import Workload


def workload_of(log: MeasuredRun) -> Workload:
    """Return the served requests of a log, ties in its order, each under its name or row number there.

    Raises InputError for a log without arrivals, and for one that keeps a sample of its requests.
    """
    if not log.has_arrivals:
        raise InputError("the log has no arrivals to replay", file=log.file, hint="leave --replay out")
    if log.sample_of is not None:
        what = f"the log keeps {len(log.row):,} of {log.sample_of:,} requests: a replay of them is not the traffic"
        hint = "leave --replay out and give the scenario the traffic of the run, or record every request"
        raise InputError(what, file=log.file, hint=hint)
    order = np.argsort(log.arrival_s, kind="stable")
    names = log.request_ids or tuple(str(row) for row in log.row.tolist())
    outputs = log.output_tokens[order]
    count = len(order)
    return Workload(
        arrival_s=log.arrival_s[order],
        input_tokens=log.input_tokens[order],
        output_tokens=outputs,
        max_tokens=np.full(count, int(outputs.max()), dtype=np.int64),
        priority=np.zeros(count, dtype=np.int64),
        class_index=np.zeros(count, dtype=np.int64),
        class_names=("default",),
        request_ids=[names[place] for place in order.tolist()],
        notes=("arrivals and lengths are those of the log; what its prompts share is not known",),
    )
