"""The measured window: which requests count, and over which stretch of the run."""

import math
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from simulator.columns import pieces_of
from simulator.errors import InputError
from simulator.results.records import Records, Status

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Window:
    """The measured requests, and the time from their first arrival to their last token or the last abort.

    With a measured request that never finished, the window lasts until the end of the run. `whole` says that nothing
    was cut.
    """

    start_s: float
    end_s: float
    measured: Bools  # one entry a request
    whole: bool

    @property
    def duration_s(self) -> float:
        """Seconds that throughputs and means over time are divided by."""
        return self.end_s - self.start_s


def measured_window(records: Records, warmup_s: float = 0.0, cooldown_s: float = 0.0) -> Window:
    """The window without the requests that arrive in the first `warmup_s` or last `cooldown_s` seconds of the arrivals.

    Raises InputError for a cut that is negative or not finite, or that leaves no request of a run that has some.
    """
    for name, value in (("warmup_s", warmup_s), ("cooldown_s", cooldown_s)):
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"{name} must be a number of seconds, 0 or more, not {value!r}")
    arrival = records.requests.arrival_s
    if not len(arrival):
        return Window(0.0, 0.0, np.zeros(0, dtype=np.bool_), True)
    first, last = float(arrival.min()), float(arrival.max())
    if warmup_s == 0 and cooldown_s == 0:
        measured = np.ones(len(arrival), dtype=np.bool_)
        return Window(first, _end_s(records, measured, first), measured, True)
    measured = (arrival >= first + warmup_s) & (arrival <= last - cooldown_s)
    if not measured.any():
        raise InputError(
            f"warmup_s = {warmup_s:g} and cooldown_s = {cooldown_s:g} leave no request to measure",
            hint=f"the arrivals last {last - first:g} s, so the two must add up to less",
        )
    start = float(arrival[measured].min())
    return Window(start, _end_s(records, measured, start), measured, False)


def run_end_s(records: Records) -> float:
    """The end of the run: that of its last step, or its last arrival where that came later; 0.0 for an empty run."""
    steps, arrivals = pieces_of(lambda: records.step_end_s), pieces_of(lambda: records.requests.arrival_s)
    return max((float(times.max()) for times in chain(steps, arrivals)), default=0.0)


def _end_s(records: Records, measured: Bools, start_s: float) -> float:
    requests = records.requests
    if np.any(measured & (requests.status == Status.UNFINISHED)):
        return run_end_s(records)
    last = requests.last_token_s[measured & (requests.status == Status.FINISHED)]
    aborts = requests.released_s[measured & (requests.status == Status.ABORTED)]
    return max((float(times.max()) for times in (last, aborts) if len(times)), default=start_s)
