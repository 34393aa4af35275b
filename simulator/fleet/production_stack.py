"""What several routers of vLLM's production stack have in common, by its source and LMCache's.

Its routers are in src/vllm_router/routers/routing_logic.py, as of fc00f98. Where a prompt does not decide, a session
goes by its hash, and a request without one to the server with the fewest requests in the last minute (`_qps_routing`;
stats/request_stats.py, 0978c16c). What servers hold they learn from LMCache's controller: chunk by chunk of the prompt
it names one server that has the chunk, up to a chunk that none has (`lookup` in
lmcache/v1/cache_controller/controllers/kv_controller.py). Of several it names the first to have registered (since
0.3.11: its pull requests 2043 and 2187; `find_kv` in lmcache/v1/cache_controller/utils.py), before that the first to
have stored the chunk (0449f44d). LMCache tells what its own backends store, in chunks of 256 tokens; here events are
those of the replica's prefix cache, where a chunk is stored with its last block, replicas register in the order of
their numbers, and the hash of a session is our ring's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Unit, doc

from simulator.fleet.prompt_table import EventLag
from simulator.fleet.router import HashRing
from simulator.fleet.routers.session_affinity import VirtualNodes
from simulator.parameters import check_parameters

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.fleet.signals import HeardCache
    from simulator.request import ArrivingRequest

ChunkSize = Annotated[int, Ge(1), Le(2**20), Unit("tokens"), doc("tokens in a chunk of the look-up")]
StatsWindow = Annotated[float, Gt(0), Le(1e9), Unit("s"), doc("seconds for which requests are counted")]
Named = Annotated[
    Literal["registered", "stored"],
    doc(
        "which of several replicas with a chunk is named: the first, or the first to have stored it (LMCache < 0.3.11)"
    ),
]


class SentLately:
    """Requests that each replica was sent in the last `window_s` seconds."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._sent: dict[int, deque[float]] = {}

    def add(self, number: int, now_s: float) -> None:
        """A replica is sent a request."""
        self._sent.setdefault(number, deque()).append(now_s)
        self.count(number, now_s)

    def count(self, number: int, now_s: float) -> int:
        """How many a replica was sent; -1 before the first of all."""
        sent = self._sent.get(number)
        if sent is None:
            return -1
        while sent and sent[0] < now_s - self._window_s:
            sent.popleft()
        return len(sent)

    def fewest(self, replicas: Replicas, now_s: float) -> ReplicaLoad:
        """The replica that was sent the fewest, the first of equals."""
        return min(replicas, key=lambda load: self.count(load.index, now_s))


@dataclass(slots=True)
class LookingUp:
    """A router that asks LMCache's controller who has a prompt, and goes without where that does not decide."""

    reads_caches: ClassVar = True
    hears_caches: ClassVar = True

    named: Named = "registered"
    chunk_size: ChunkSize = 256
    stats_window_s: StatsWindow = 60.0
    virtual_nodes: VirtualNodes = 100
    kv_event_lag_s: EventLag = 0.0
    _caches: Mapping[int, Any] = field(init=False, repr=False, default_factory=dict)
    _sent: SentLately = field(init=False, repr=False)
    _ring: HashRing = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_parameters(self)
        self._sent = SentLately(self.stats_window_s)
        self._ring = HashRing(self.virtual_nodes)

    def listen(self, caches: Mapping[int, HeardCache]) -> None:
        """What is known of each replica's cache, by its number."""
        self._caches = caches

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        chosen = self._by_prompt(self.looked_up(request, replicas), request, replicas)
        if chosen is None and request.session_id is not None:
            chosen = next(self._ring.after(f"session {request.session_id}", replicas))
        if chosen is None:
            chosen = self._sent.fewest(replicas, request.arrival_s)
        self._sent.add(chosen.index, request.arrival_s)
        return chosen

    def looked_up(self, request: ArrivingRequest, replicas: Replicas) -> dict[int, int]:
        """The replicas that are named, in the order of the first chunk that names each, and the end of the last."""
        numbers = [number for number in self._caches if number in replicas.by_number]
        ends: dict[int, int] = {}
        each = [self._caches[number].stored(request, self.chunk_size) for number in numbers]
        for place, events in enumerate(zip(*each, strict=False)):
            stored = [(event, number) for event, number in zip(events, numbers, strict=True) if event is not None]
            if not stored:
                break
            first = min([number for _, number in stored]) if self.named == "registered" else min(stored)[1]
            ends[first] = (place + 1) * self.chunk_size
        return ends

    def _by_prompt(self, ends: Mapping[int, int], request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad | None:
        """The replica that the named ones and the ends of their chunks speak for; None where they do not decide."""
        raise NotImplementedError
