"""Consistent hashing of a prompt's beginning, with bounded loads.

V. Mirrokni, M. Thorup and M. Zadimoghaddam, Consistent Hashing with Bounded Loads, SODA 2018: no replica takes more
than `load_factor` times its share, and what would be too much goes on to the next replica of the ring. KubeAI's load
balancer has it as `PrefixHash` (meanLoadFactor 125 %), SGLang's router (0.3.2) as `prefix_hash`, with
`prefix_token_count` and `load_factor`. Neither is run here: the rule is the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge, Le, Unit, doc

from simulator.fleet.hash_ring import HashRing
from simulator.fleet.prompt_table import PromptTable
from simulator.fleet.routers.session_affinity import VirtualNodes
from simulator.parameters import check_parameters

if TYPE_CHECKING:
    from simulator.engine.replica_load import ReplicaLoad
    from simulator.fleet.replicas import Replicas
    from simulator.request import ArrivingRequest


@dataclass(slots=True)
class PrefixHash:
    """Give requests whose prompts begin with the same `prefix_tokens` tokens to the same replica, within its share.

    Each replica takes at most ceil(load_factor x unfinished requests / replicas), the new one counted. A request goes
    to the first replica of the ring after its prefix that has room. A shorter prompt is hashed by its session, or else
    is one of its own.
    """

    prefix_tokens: Annotated[int, Ge(1), Le(2**20), Unit("tokens"), doc("tokens of a prompt that are hashed")] = 256
    load_factor: Annotated[float, Ge(1), Le(1e6), doc("largest load of a replica / mean load")] = 1.25
    virtual_nodes: VirtualNodes = 100
    _ring: HashRing = field(init=False, repr=False)
    _table: PromptTable = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_parameters(self)
        self._ring = HashRing(self.virtual_nodes)
        self._table = PromptTable(self.prefix_tokens, 1)

    def choose(self, request: ArrivingRequest, replicas: Replicas) -> ReplicaLoad:
        total = sum([load.num_unfinished for load in replicas]) + 1
        most = ceil(self.load_factor * total / len(replicas))
        for load in self._ring.after(self._name(request), replicas):
            if load.num_unfinished < most:
                return load
        raise AssertionError("all replicas have more than the mean load")

    def _name(self, request: ArrivingRequest) -> str:
        """What is hashed."""
        keys = self._table.keys(request)
        if keys:
            return f"prefix {keys[0]}"
        return f"request {request.row}" if request.session_id is None else f"session {request.session_id}"
