"""The KV-aware router of vLLM's production stack: whoever stored the first part of the prompt first.

The rule is that of its `KvawareRouter` (src/vllm_router/routers/routing_logic.py, 008a23bd) with the look-up of
LMCache's controller (`lookup` in lmcache/v1/cache_controller/controllers/kv_controller.py, 0449f44d): chunk by chunk
of the prompt it names the server that stored the chunk first and has it still, up to one that none has. The router
takes the server of the first chunk, though another may have more. What counts for its threshold is the end of the last
chunk that names this server. Below it, a session goes by its hash, and a request without one to the server with the
fewest requests in the last minute (`_qps_routing`; stats/request_stats.py, 0978c16c). LMCache tells what its own
backends store, in chunks of 256 tokens; here events are those of the replica's prefix cache, where a chunk is stored
with its last block, and the hash of a session is our ring's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le, Unit, doc

from simulator.fleet.hash_ring import HashRing
from simulator.fleet.routers.prefix_affinity import EventLag
from simulator.fleet.routers.session_affinity import VirtualNodes
from simulator.parameters import check_parameters

if TYPE_CHECKING:
    from simulator.engine.replica_load import ReplicaLoad
    from simulator.fleet.kv_events import HeardCache
    from simulator.fleet.replicas import Replicas
    from simulator.request import ArrivingRequest


@dataclass(slots=True)
class VllmKvAware:
    """Give a request to the replica that stored the first chunk of its prompt first, if it has enough of the prompt.

    That is all but `kv_aware_threshold` tokens. Otherwise it goes by its session, or to the replica that was sent the
    fewest requests in the last `stats_window_s`, the first of equals. Loads do not matter.
    """

    reads_loads: ClassVar = False
    reads_caches: ClassVar = True
    hears_caches: ClassVar = True

    kv_aware_threshold: Annotated[
        int, Ge(0), Le(10**9), Unit("tokens"), doc("tokens of a prompt that may be missing where it is sent")
    ] = 2000
    chunk_size: Annotated[int, Ge(1), Le(2**20), Unit("tokens"), doc("tokens in a chunk of the look-up")] = 256
    stats_window_s: Annotated[float, Gt(0), Le(1e9), Unit("s"), doc("seconds for which requests are counted")] = 60.0
    virtual_nodes: VirtualNodes = 100
    kv_event_lag_s: EventLag = 0.0
    _caches: Mapping[int, Any] = field(init=False, repr=False, default_factory=dict)
    _sent: dict[int, deque[float]] = field(init=False, repr=False, default_factory=dict)
    _ring: HashRing = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_parameters(self)
        self._ring = HashRing(self.virtual_nodes)

    def listen(self, caches: Mapping[int, HeardCache]) -> None:
        """What is known of each replica's cache, by its number."""
        self._caches = caches

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        number, tokens = self.looked_up(request, replicas)
        if number is not None and tokens >= request.input_tokens - self.kv_aware_threshold:
            chosen = replicas.by_number[number]
        elif request.session_id is not None:
            chosen = next(self._ring.after(f"session {request.session_id}", replicas))
        else:
            chosen = min(replicas, key=lambda load: self._rate(load.index, request.arrival_s))
        self._sent.setdefault(chosen.index, deque()).append(request.arrival_s)
        return chosen

    def looked_up(self, request: ArrivingRequest, replicas: Replicas) -> tuple[int | None, int]:
        """The replica that stored the first chunk first, and the tokens up to the last chunk that names it."""
        numbers = [number for number in self._caches if number in replicas.by_number]
        found, tokens = None, 0
        each = [self._caches[number].stored(request, self.chunk_size) for number in numbers]
        for place, events in enumerate(zip(*each, strict=False)):
            stored = [(event, number) for event, number in zip(events, numbers, strict=True) if event is not None]
            if not stored:
                break
            first = min(stored)[1]
            found = first if found is None else found
            if first == found:
                tokens = (place + 1) * self.chunk_size
        return found, tokens

    def _rate(self, number: int, now_s: float) -> int:
        """Requests sent to a replica in the window; -1 before the first."""
        sent = self._sent.get(number)
        if sent is None:
            return -1
        while sent and sent[0] < now_s - self.stats_window_s:
            sent.popleft()
        return len(sent)
