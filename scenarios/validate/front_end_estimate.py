"""The front end of a server, estimated from its own log: the TTFT beyond the engine's, by concurrency.

A simulation without a front end has each request's TTFT at the engine and how many ran when its first token came. The
excess of the log over that is fitted by a constant and a slope over those that ran. Only requests that went into the
batch at once count: a wait in a queue magnifies any error of the step times. The rest of such errors stays in the
estimate, so it is reported with its spread, and applied only where the log's latencies are the client's.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simulator.front_end import FrontEnd
from simulator.results.records import Floats, Records

QUEUED_S = 0.1
"""A longer wait is for a slot, not for the step in flight."""
FEWEST = 12
WIDTH = 4.0
"""A slope is estimated where the 10th and the 90th percentile of those running differ by as many."""
_ROUNDS = 20
_BEND = 1.345  # standard deviations from which on an outlier counts less and less (Huber)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A front end, estimated from `requests`. `low` and `high` are the 10th and 90th percentile of those running.

    `spread_s` is the median distance of a request's own excess from the estimate. `has_slope` False: concurrency
    hardly varied, so `per_running_s` is 0 and its part is in `fixed_s`.
    """

    front_end: FrontEnd
    requests: int
    low: float
    high: float
    spread_s: float
    has_slope: bool

    def words(self, applied: bool) -> str:
        """Return the estimate as a sentence."""
        of = self.front_end
        slope = f" and {of.per_running_s * 1e6:,.1f} us for each running request" if self.has_slope else ""
        use = "applied to the simulation" if applied else "not applied"
        near = f"half of them lie within {self.spread_s * 1e3:,.1f} ms of it"
        over = f"{self.low:,.0f} to {self.high:,.0f} running"
        return (
            f"Front end, estimated from the log: {of.fixed_s * 1e3:,.2f} ms{slope}, from {self.requests:,} requests"
            f" that did not queue, with {over}; {near}. It is {use}."
        )

    def data(self, applied: bool) -> Mapping[str, object]:
        """Return the estimate for JSON."""
        return {
            "fixed_s": self.front_end.fixed_s,
            "per_running_s": self.front_end.per_running_s,
            "requests": self.requests,
            "running": [self.low, self.high],
            "spread_s": self.spread_s,
            "applied": applied,
        }


def running_at_first(records: Records) -> Floats:
    """The requests that ran on its replica when each request's first token was sampled; NaN without one."""
    found = np.full(len(records.requests.row), np.nan)
    first_s = records.requests.first_token_s - records.front_end_s
    rows = records.rows
    for replica in np.unique(rows.replica).tolist():
        own = np.flatnonzero(rows.replica == replica)
        served = np.flatnonzero((records.requests.replica == replica) & np.isfinite(first_s))
        if not len(own) or not len(served):
            continue
        # The row that ends nearest to it: a first token ends a step with prompts, which has a row of its own.
        ends = rows.end_s[own]
        after = np.clip(np.searchsorted(ends, first_s[served]), 1, len(ends) - 1) if len(ends) > 1 else 0
        nearer = np.abs(ends[after - 1] - first_s[served]) <= np.abs(ends[after] - first_s[served])
        found[served] = rows.running[own][np.where(nearer, after - 1, after)]
    return found


def estimate(excess_s: Floats, running: Floats, queued_s: Floats) -> Estimate | None:
    """Estimate the front end from the excess of each request's TTFT; None where too few requests went in at once.

    All three have an entry a request; of NaN, none is used.
    """
    used = np.isfinite(excess_s) & np.isfinite(running) & ~(queued_s > QUEUED_S)
    if used.sum() < FEWEST:
        return None
    y, n = excess_s[used], running[used]
    low, high = (float(value) for value in np.percentile(n, (10, 90)))
    has_slope = high - low >= WIDTH
    fixed_s, per_s = _line(n, y) if has_slope else (float(np.median(y)), 0.0)
    if per_s < 0:
        fixed_s, per_s = float(np.median(y)), 0.0
    if fixed_s < 0:
        fixed_s = 0.0
        per_s = max(0.0, float(np.median(y / np.maximum(n, 1.0)))) if has_slope else 0.0
    spread_s = float(np.median(np.abs(y - fixed_s - per_s * n)))
    return Estimate(FrontEnd(fixed_s, per_s), int(used.sum()), low, high, spread_s, has_slope)


def _line(n: Floats, y: Floats) -> tuple[float, float]:
    """Fit constant and slope by least squares in which outliers count less and less (Huber)."""
    columns = np.column_stack([np.ones(len(n)), n])
    weight = np.ones(len(n))
    solution = np.zeros(2)
    for _ in range(_ROUNDS):
        root = np.sqrt(weight)
        solution, *_ = np.linalg.lstsq(columns * root[:, None], y * root, rcond=None)
        off = np.abs(y - columns @ solution)
        scale = 1.4826 * float(np.median(off))
        if scale <= 1e-12:
            break
        weight = np.minimum(1.0, _BEND * scale / np.maximum(off, 1e-300))
    return float(solution[0]), float(solution[1])
