"""The replica that a session hashes to, so that all turns of a conversation find the KV of the turns before."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Le, doc

from simulator.parameters import check_parameters

if TYPE_CHECKING:
    from simulator.engine.replica_load import ReplicaLoad
    from simulator.fleet.replicas import Replicas
    from simulator.request import ArrivingRequest


@dataclass(slots=True)
class SessionAffinity:
    """Give every request of a session to the same replica, by consistent hashing.

    D. Karger et al., Consistent Hashing and Random Trees, STOC 1997: each replica owns `virtual_nodes` points of a
    ring, and a session belongs to the next point after its own. When a replica joins or leaves, only the sessions
    next to its points move. The routers of vLLM's production stack and of SGLang do the same. A request without a
    session is one of its own.
    """

    reads_loads: ClassVar = False

    virtual_nodes: Annotated[int, Ge(1), Le(10_000), doc("points of each replica on the ring of hashes")] = 100
    _ring: list[tuple[int, int]] = field(default_factory=list, init=False, repr=False)  # (point, number)
    _seen: object = field(default=None, init=False, repr=False)
    _version: int = field(default=-1, init=False, repr=False)
    _places: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_parameters(self)

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        if replicas is not self._seen or replicas.version != self._version:
            self._seen, self._version = replicas, replicas.version
            self._make_ring(replicas)
        ring = self._ring
        session = request.session_id
        point = _point(f"request {request.row}" if session is None else f"session {session}")
        after = bisect_right(ring, (point, -1))
        return replicas[self._places[ring[after % len(ring)][1]]]

    def _make_ring(self, replicas: Replicas) -> None:
        numbers = [replica.index for replica in replicas]
        self._places = {number: place for place, number in enumerate(numbers)}
        points = [(_point(f"replica {number}.{i}"), number) for number in numbers for i in range(self.virtual_nodes)]
        self._ring = sorted(points)


def _point(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")
