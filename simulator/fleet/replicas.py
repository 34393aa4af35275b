"""The replicas as a router sees them: a sequence of loads, and indexes that find the least of them without a scan."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import overload

from simulator.engine.replica_load import ReplicaLoad

Cost = Callable[[ReplicaLoad], float]
"""What a router minimises. Of a replica that neither begins a step nor takes a request it must not fall with time."""


class Replicas(Sequence[ReplicaLoad]):
    """The loads of the replicas that take requests, in the order of their numbers."""

    def __init__(self, loads: Sequence[ReplicaLoad]) -> None:
        self._loads = list(loads)
        self._all = tuple(loads)
        self.by_number = {load.index: load for load in loads}
        self.bits = _bits(self.by_number)  # one is set for each number
        self._indexes: dict[Cost, _LeastIndex] = {}
        self.version = 0  # changes when a replica joins or leaves
        self.looks: int | None = None  # taken so far, where loads are those of the last look

    def __len__(self) -> int:
        return len(self._loads)

    @overload
    def __getitem__(self, place: int) -> ReplicaLoad: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[ReplicaLoad]: ...
    def __getitem__(self, place: int | slice) -> ReplicaLoad | Sequence[ReplicaLoad]:
        return self._loads[place]

    def __iter__(self) -> Iterator[ReplicaLoad]:
        return iter(self._loads)

    def named(self, numbers: Iterable[int]) -> list[ReplicaLoad]:
        """Those of these numbers that take requests, in this order."""
        return [self.by_number[number] for number in numbers if number in self.by_number]

    def least(self, cost: Cost) -> ReplicaLoad:
        """The replica of least cost, the first of equals: found by an index, kept for each `cost` that is asked for.

        The work is logarithmic in the replicas and proportional to how many have changed since the last call.
        """
        index = self._indexes.get(cost)
        if index is None:
            index = self._indexes[cost] = _LeastIndex(self.by_number, cost)
        return index.least()

    def take_out(self, number: int) -> None:
        """The replica of this number takes no requests from now on."""
        del self.by_number[number]
        self._follow()

    def bring_in(self, number: int) -> None:
        """The replica of this number takes requests from now on."""
        self.by_number |= {load.index: load for load in self._all if load.index == number}
        self._follow()

    def _follow(self) -> None:
        self._loads = [load for load in self._all if load.index in self.by_number]
        self.bits = _bits(self.by_number)
        self._indexes.clear()
        self.version += 1

    def changed(self, number: int) -> None:
        """The replica of this number begins a step or has taken a request: its costs may differ."""
        if number not in self.by_number:
            return
        for index in self._indexes.values():
            index.touched[number] = None

    def looked(self) -> None:
        """A look has been taken: every cost may differ."""
        assert self.looks is not None
        self.looks += 1
        for load in self._loads:
            self.changed(load.index)


def _bits(numbers: Iterable[int]) -> int:
    return sum([1 << number for number in numbers])


class _LeastIndex:
    """A heap of the costs as they were last worked out: lower bounds, as costs do not fall unseen."""

    __slots__ = ("_cost", "_heap", "_known", "_loads", "touched")

    def __init__(self, loads: Mapping[int, ReplicaLoad], cost: Cost) -> None:
        self._cost = cost
        self._loads = loads
        self._known = {number: cost(load) for number, load in loads.items()}
        self._heap = [(known, number) for number, known in self._known.items()]
        heapify(self._heap)
        self.touched: dict[int, None] = {}  # replicas whose cost may be less than the one known

    def least(self) -> ReplicaLoad:
        heap, known, loads, cost = self._heap, self._known, self._loads, self._cost
        for number in self.touched:
            now = cost(loads[number])
            if now != known[number]:
                known[number] = now
                heappush(heap, (now, number))
        self.touched.clear()
        if len(heap) > 4 * len(loads) + 64:  # most entries are out of date
            heap[:] = [(then, number) for number, then in known.items()]
            heapify(heap)
        while True:
            then, number = heap[0]
            if known[number] != then:
                heappop(heap)
                continue
            load = loads[number]
            now = cost(load)
            if now == then:
                return load
            known[number] = now
            heapreplace(heap, (now, number))
