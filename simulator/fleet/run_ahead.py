"""Replicas that run ahead of the router, under one that always takes the fewest unfinished requests.

A replica behind which others stand cannot be chosen at once. Where `k` replicas come before it (they have fewer
unfinished requests, or as many and a smaller number), each of them has to be given a request first, so the next `k`
requests go elsewhere; that others finish requests only puts them further before it. The times of arrival are known:
up to that of the request after those `k`, the replica is on its own. So it is advanced in long stretches on a clock of
its own, and what it finishes meanwhile is shown to the router at its time.
"""

from bisect import bisect_left, insort
from functools import partial
from heapq import heappop, heappush
from math import inf

from simulator.fleet.fleet import Fleet
from simulator.request import Request
from simulator.workload import Workload

_GO_ON, _BREAK = -1, -2  # what is due, if not a place in the order


class RunAhead:
    """Serves a workload by replicas that have clocks of their own.

    A replica's place in the order is its unfinished requests, as the router sees them, x replicas + its number.
    """

    def __init__(self, workload: Workload, fleet: Fleet) -> None:
        self._workload = workload
        self._arrival_s = workload.arrival_s
        self._count = count = len(fleet.replicas)
        self._loads, self._clocks, self._intakes = fleet.loads, fleet.clocks, fleet.intakes
        self._order = list(range(count))
        self._places = list(range(count))
        self._coming_to = list(range(count))  # places when a replica stands where it has been advanced to
        self._next_s = [0.0] * count  # of the replica's own events
        self._due = [(0.0, number, _GO_ON) for number in range(count)]  # a heap; places that change at that time
        self._broken: dict[int, Exception] = {}
        self._arrived = 0
        for replica in fleet.replicas:
            replica.tell_finished(partial(self._finished, replica.index))

    def serve(self) -> None:
        """Let everything happen."""
        for request in self._workload.requests():
            self._catch_up(request.arrival_s)
            self._submit(request)
        self._catch_up(inf)

    def _catch_up(self, until_s: float) -> None:
        """Advance whoever has something to do before `until_s`, and show what has finished by then."""
        due = self._due
        while due and due[0][0] < until_s:
            at_s, number, what = heappop(due)
            if what >= 0:
                if what < self._places[number]:  # of requests that finish at one time the last one counts
                    self._move(number, what)
            elif what == _BREAK:
                raise self._broken[number]
            elif at_s == self._next_s[number]:
                self._advance(number)

    def _submit(self, request: Request) -> None:
        """The request arrives at the replica that comes first."""
        number = self._order[0] % self._count
        self._arrived += 1
        self._clocks[number].advance(request.arrival_s)  # nothing happens there until then
        self._intakes[number].submit(request)
        place = self._coming_to[number] = self._loads[number].num_unfinished * self._count + number
        self._move(number, place)
        self._advance(number)

    def _move(self, number: int, place: int) -> None:
        order = self._order
        del order[bisect_left(order, self._places[number])]
        insort(order, place)
        self._places[number] = place

    def _advance(self, number: int) -> None:
        clock = self._clocks[number]
        try:
            clock.advance(self._alone_until_s(number))
        except Exception as error:  # others may break before, in the time of the simulation
            self._broken[number] = error
            heappush(self._due, (clock.now, number, _BREAK))
            return
        self._next_s[number] = next_s = clock.peek()
        if next_s < inf:
            heappush(self._due, (next_s, number, _GO_ON))

    def _alone_until_s(self, number: int) -> float:
        """No request arrives before at this replica, where it stands now."""
        row = self._arrived + bisect_left(self._order, self._coming_to[number])
        return self._arrival_s.item(row) if row < len(self._arrival_s) else inf

    def _finished(self, number: int) -> None:
        """Requests have finished at a replica, now in its own time."""
        place = self._coming_to[number] = self._loads[number].num_unfinished * self._count + number
        clock = self._clocks[number]
        heappush(self._due, (clock.now, number, place))
        clock.lower(self._alone_until_s(number))
