"""A ring of hashes: each replica owns points of it, and a name belongs to the next point after its own.

D. Karger et al., Consistent Hashing and Random Trees, STOC 1997: when a replica joins or leaves, only the names next to
its points move.
"""

from bisect import bisect_right
from collections.abc import Iterator
from hashlib import blake2b

from simulator.engine.replica_load import ReplicaLoad
from simulator.fleet.replicas import Replicas


class HashRing:
    """The ring of the replicas that take requests now, with so many points each."""

    def __init__(self, virtual_nodes: int) -> None:
        self._virtual_nodes = virtual_nodes
        self._ring: list[tuple[int, int]] = []  # (point, number)
        self._seen: object = None
        self._version = -1

    def after(self, name: str, replicas: Replicas) -> Iterator[ReplicaLoad]:
        """All replicas, in the order of their first points after that of `name`."""
        if replicas is not self._seen or replicas.version != self._version:
            self._seen, self._version = replicas, replicas.version
            points = range(self._virtual_nodes)
            self._ring = sorted((_point(f"replica {load.index}.{i}"), load.index) for load in replicas for i in points)
        ring = self._ring
        start = bisect_right(ring, (_point(name), -1))
        met = set()
        for place in range(start, start + len(ring)):
            number = ring[place % len(ring)][1]
            if number not in met:
                met.add(number)
                yield replicas.by_number[number]


def _point(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
