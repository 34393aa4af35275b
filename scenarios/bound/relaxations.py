"""Machines that are at least as good as any server: their optima bound what a scheduler can reach.

A step ends at least as much after its start as the work that is charged to what it computes (`charges`). Let a fluid
machine do that work during the step. Replicas become one machine that is `replicas` times as fast, and shares its time
between them. Every schedule of the server is then one of the machine, with preemption at any time, in which no request
ends later. So the machine's optimum is a bound.
"""

from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def least_mean_flow_s(arrival_s: Floats, work_s: Floats) -> float:
    """The least mean time from arrival to end on one machine with preemption.

    Serving the shortest remaining work first is optimal (L. Schrage, A proof of the optimality of the shortest
    remaining processing time discipline, Operations Research 16, 1968). `arrival_s` ascends.
    """
    ready: list[float] = []
    now = total = 0.0
    arrivals: list[float] = arrival_s.tolist()
    works: list[float] = work_s.tolist()
    for at, work in zip(arrivals, works, strict=True):
        while ready and now + ready[0] <= at:
            now += heappop(ready)
            total += now
        if ready and now < at:
            heappush(ready, heappop(ready) - (at - now))
        now = max(now, at)
        heappush(ready, work)
    while ready:
        now += heappop(ready)
        total += now
    return (total - sum(arrivals)) / len(arrivals)


def earliest_end_s(arrival_s: Floats, work_s: Floats) -> float:
    """When one machine can have ended all: from any time on, what arrives from then on takes its work.

    The maximum over all arrivals r of r + the work that arrives at r or later. `arrival_s` ascends.
    """
    return float(np.max(arrival_s + np.cumsum(work_s[::-1])[::-1]))


def fewest_late(arrival_s: Floats, due_s: Floats, work_s: Floats) -> int:
    """How many requests at least end after they are due, on one machine with preemption.

    Moore and Hodgson's rule (J. M. Moore, Management Science 15, 1968) for arrivals: take the requests as they arrive;
    when one would end late, drop the one of most work among those that the machine has been busy with since it last was
    idle. `arrival_s` ascends, and with it has to ascend what is due (`agreeable` makes it so).

    Proof. Let E(j, m) be the earliest time at which the machine can be free for requests after the j-th, if m of the
    first j are late and the others are served in order of arrival, which is no loss where dues ascend too (Lawler and
    Moore, Management Science 16, 1969). Either the j-th is served: E(j, m) = max(E(j-1, m), its arrival) + its work, if
    it is not late; or it is not: E(j, m) = E(j-1, m-1). The rule keeps an m, an end C and the works H of a busy time.
    It holds, with top(k) the sum of the k largest of H: no fewer than m can be late, and for every k, E(j, m + k) >=
    C - top(k), from the next arrival on. It holds at an idle machine, where C is the arrival and H is empty. If the
    j-th, of work p, is added: E(j, m + k) is at least the smaller of C - top(k) + p and C - top(k - 1), and both are at
    least C + p - the k largest of H and p. If C + p is too late, E(j, m) is infinite: m grows by one, and taking the
    largest from H and C leaves the claim for all other k. That a server cannot fill the gap before a later arrival by
    dropping an earlier request is left out: the count may be too small, and is never too large.
    """
    ends = _ends(arrival_s, work_s)
    if not np.any(ends > due_s):
        return 0
    late = 0
    free, taken = -np.inf, list[float]()
    for arrival, due, work in zip(arrival_s.tolist(), due_s.tolist(), work_s.tolist(), strict=True):
        if free <= arrival:
            free, taken = arrival, []
        free += work
        heappush(taken, -work)
        if free > due:
            free += heappop(taken)
            late += 1
    return late


def _ends(arrival_s: Floats, work_s: Floats) -> Floats:
    """When each ends, served in order of arrival."""
    done = np.cumsum(work_s)
    return np.asarray(done + np.maximum.accumulate(arrival_s - (done - work_s)))


def agreeable(arrival_s: Floats, due_s: Floats) -> list[tuple[Floats, Floats, NDArray[np.int64]]]:
    """Relax arrivals and dues so that both ascend: later dues, or earlier arrivals. Each with the order of its entries.

    Whoever meets the given ones meets these.
    """
    by_due = np.argsort(due_s, kind="stable")
    earlier = np.minimum.accumulate(arrival_s[by_due][::-1])[::-1]
    as_given = np.arange(len(arrival_s))
    return [(arrival_s, np.maximum.accumulate(due_s), as_given), (earlier, due_s[by_due], by_due)]


def least_percentile_s(
    arrival_s: Floats, work_s: Floats, alone_s: Floats, share: float, *, close: float = 0.01
) -> float:
    """A flow that more than so large a share of the requests exceed, as nearly as `close`; of `numpy.percentile`.

    By `fewest_late`, where every request is due so long after its arrival. A request that takes longer alone is late
    for certain, and takes no time here.
    """
    count = len(arrival_s)
    above = count - 1 - int(np.floor((count - 1) * share))  # so many order statistics lie above the percentile's
    low = float(np.sort(alone_s)[count - 1 - above])

    def is_exceeded(flow_s: float) -> bool:
        possible = alone_s <= flow_s
        certain = count - int(possible.sum())
        arrivals = arrival_s[possible]
        return certain > above or certain + fewest_late(arrivals, arrivals + flow_s, work_s[possible]) > above

    high = max(low, 1e-9)
    while is_exceeded(high):
        low, high = high, 4 * high
    while high - low > close * high and high > 1e-9:
        middle = (low * high) ** 0.5 if low > 0 else high / 4
        if is_exceeded(middle):
            low = middle
        else:
            high = middle
    return low
