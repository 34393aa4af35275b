"""The warm-up of a run: how long it takes until requests find the server as those after them do."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from simulator.metrics.latency import LATENCIES, finished, tpot_s, ttft_s
from simulator.results.records import Floats, Records
from simulator.statistics import RULE, Cut, mser5

WARMUP = "warmup"  # the key of summary.json, where the cut was looked for
_SERIES = {"ttft": ttft_s, "tpot": tpot_s}  # how the queue fills, and how the batch does


@dataclass(frozen=True, slots=True)
class WarmupCut:
    """The warm-up that `rule` found: `requests` of `arrivals`, those before `cut_s` seconds from the first arrival.

    `by` is the latency that settles last, or the one that does not settle: then `settled` is False and nothing is cut.
    """

    rule: str
    cut_s: float
    requests: int
    arrivals: int
    settled: bool
    by: str

    def entry(self) -> dict[str, Any]:
        """The warm-up's entry in summary.json."""
        return asdict(self)

    def words(self) -> str:
        """The cut in a sentence."""
        title = LATENCIES[self.by].title
        if not self.settled:
            return (
                f"no warm-up is cut: {self.rule} finds no steady state, as {title} still changes in the second half of "
                "the run, or the run is too short to say"
            )
        seen = " and ".join(LATENCIES[name].title for name in _SERIES)
        return (
            f"warm-up: the {self.requests:,} of {self.arrivals:,} requests that arrive in the first {self.cut_s:g} s "
            f"are left out ({self.rule} on {seen} in the order of arrival; {title} settles last)"
        )


def warmup_cut(records: Records) -> WarmupCut:
    """The warm-up by MSER-5, on TTFT and on TPOT of the finished requests in order of arrival; the longer of the two.

    Where one of them has no steady state, nothing is cut. A latency that no request has says nothing.
    """
    arrival = records.requests.arrival_s
    order = np.argsort(arrival, kind="stable")
    order = order[finished(records)[order]]
    last = WarmupCut(RULE, 0.0, 0, len(arrival), True, "ttft")
    for name, of in _SERIES.items():
        seconds = of(records)[order]
        known = ~np.isnan(seconds)
        if name != "ttft" and not known.any():
            continue
        found = mser5(seconds[known])
        if not found.settled:
            return WarmupCut(RULE, 0.0, 0, len(arrival), False, name)
        cut_s = _seconds(arrival, order[known], found)
        if cut_s > last.cut_s:
            last = WarmupCut(RULE, cut_s, int((arrival < arrival.min() + cut_s).sum()), len(arrival), True, name)
    return last


def _seconds(arrival: Floats, rows: np.ndarray[Any, Any], found: Cut) -> float:
    """From the first arrival to that of the first request kept, such that the sum is no later than it."""
    if not found.count:
        return 0.0
    first, kept = float(arrival.min()), float(arrival[rows[found.count]])
    seconds = kept - first
    while first + seconds > kept:
        seconds = math.nextafter(seconds, 0.0)
    return seconds
