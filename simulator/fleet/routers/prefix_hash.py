"""Consistent hashing of a prompt's beginning, with bounded loads.

After V. Mirrokni, M. Thorup and M. Zadimoghaddam, Consistent Hashing with Bounded Loads, SODA 2018, as two gateways
have it. SGLang's `prefix_hash` (sgl-model-gateway/src/policies/prefix_hash.rs, `load_ok` and
`find_worker_with_load_balance`, 065f331f; `prefix_token_count` 256, `load_factor` 1.25): the replica of the prefix, or
if it has more than `load_factor` times the mean load, the new request counted in the mean, the least loaded of those
that have not. KubeAI's `PrefixHash` (internal/loadbalancer/balance_chwbl.go, `chwblLoadOK`, 08e69e54; meanLoadFactor
125): the first of the ring that would not have more with the request. Either takes the replica of the prefix where all
have too much. Neither remembers a prompt. The hash function, and so the places on the ring, is our own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain
from math import inf
from typing import TYPE_CHECKING, Annotated, Literal

from annotated_types import Ge, Le, Unit, doc

from simulator.fleet.router import HashRing, unfinished
from simulator.fleet.routers.session_affinity import VirtualNodes
from simulator.memory.block_keys import num_shared_blocks, stretches
from simulator.parameters import check_parameters

if TYPE_CHECKING:
    from simulator.engine.admission import ReplicaLoad
    from simulator.fleet.router import Replicas
    from simulator.request import ArrivingRequest


@dataclass(slots=True)
class PrefixHash:
    """Give prompts that begin alike, for `prefix_tokens` tokens, to the same replica, unless it is too full.

    A shorter prompt is hashed by its session, or else is one of its own.
    """

    prefix_tokens: Annotated[int, Ge(1), Le(2**20), Unit("tokens"), doc("tokens of a prompt that are hashed")] = 256
    load_factor: Annotated[float, Ge(1), Le(1e6), doc("largest load of a replica / mean load")] = 1.25
    overflow: Annotated[
        Literal["least_loaded", "ring"],
        doc(
            "where the rest goes: least_loaded, as SGLang's router has it; ring: the next of the ring, as KubeAI has it"
        ),
    ] = "least_loaded"
    virtual_nodes: VirtualNodes = 100
    _ring: HashRing = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_parameters(self)
        self._ring = HashRing(self.virtual_nodes)

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        ring = self._ring.after(self._name(request), replicas)
        home = next(ring)
        total = sum([load.num_unfinished for load in replicas])
        most = self.load_factor * (total + 1) / len(replicas) if total else inf
        if self.overflow == "ring":
            return next((load for load in chain((home,), ring) if load.num_unfinished + 1 <= most), home)
        if home.num_unfinished <= most:
            return home
        return min([load for load in replicas if load.num_unfinished <= most], key=unfinished, default=home)

    def _name(self, request: ArrivingRequest) -> str:
        """What is hashed."""
        if request.input_tokens >= self.prefix_tokens:
            prompt = request.prompt()
            if not num_shared_blocks(prompt, self.prefix_tokens):
                return f"request {request.row}"
            ((kind, name, _, _),) = stretches(prompt, self.prefix_tokens, 0, 1)
            return f"{kind} {name}"
        return f"request {request.row}" if request.session_id is None else f"session {request.session_id}"
