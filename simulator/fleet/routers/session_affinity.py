"""The replica that a session hashes to, so that all turns of a conversation find the KV of the turns before."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Le, doc

from simulator.fleet.router import HashRing
from simulator.parameters import check_parameters

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest

VirtualNodes = Annotated[int, Ge(1), Le(10_000), doc("points of each replica on the ring of hashes")]


@dataclass(slots=True)
class SessionAffinity:
    """Give every request of a session to the same replica, by consistent hashing.

    D. Karger et al., Consistent Hashing and Random Trees, STOC 1997: each replica owns `virtual_nodes` points of a
    ring, and a session belongs to the next point after its own. When a replica joins or leaves, only the sessions
    next to its points move. The routers of vLLM's production stack and of SGLang do the same. A request without a
    session is one of its own.
    """

    reads_loads: ClassVar = False

    virtual_nodes: VirtualNodes = 100
    _ring: HashRing = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_parameters(self)
        self._ring = HashRing(self.virtual_nodes)

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        session = request.session_id
        name = f"request {request.row}" if session is None else f"session {session}"
        return next(self._ring.after(name, replicas))
